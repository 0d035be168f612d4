"""Maps an optimizer to a native kernel and computes the kernel's arguments.

The functions of ``edl.numerics.optimizers`` compute the numbers, so that they are rounded as in the
NumPy rules. Both implementations must give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from edl.api.errors import BadInputError
from edl.api.tables import TableSpec
from edl.numerics import _native
from edl.numerics.array_types import Floats
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers import ParameterUpdate, ScratchArrays, UpdateRule, make_rule
from edl.numerics.optimizers.adam import (
    bias_correction,
    corrected_rate,
    first_moment_rate,
    nadam_factors,
    one_minus_float32,
)
from edl.numerics.optimizers.ftrl import SQUARE_ROOT_POWER, FtrlStrengths, uses_row_groups

KernelNumbers = Mapping[str, float]
KernelStepFactory = Callable[[float, int], _native.Step]
"""Computes the kernel's argument from the learning rate and the count of updates up to this one."""


def select_kernel(optimizer: OptimizerSpec) -> _native.Optimizer:
    """The kernel that updates rows under this optimizer.

    Raises:
        BadInputError: the optimizer has no kernel. LAMB needs the norm of all rows of a push, and a
            kernel sees one row.
    """
    if optimizer.name not in NATIVE_OPTIMIZERS:
        raise BadInputError(
            f"optimizer '{optimizer.name}' has no native kernel",
            hint=f"those that have: {', '.join(NATIVE_OPTIMIZERS)}",
        )
    # A variant that needs other slots or another formula has a kernel of its own.
    kinds = _native.Optimizer
    match optimizer.name:
        case "momentum" if optimizer.get_flag("nesterov"):
            return kinds.nesterov
        case "adam" if optimizer.get_flag("amsgrad"):
            return kinds.amsgrad
        case "rmsprop" if optimizer.get_flag("centered"):
            return kinds.centered_momentum if optimizer.get_number("momentum") else kinds.centered
        case "rmsprop" if optimizer.get_number("momentum"):
            return kinds.rmsprop_momentum
        case "ftrl" if FtrlStrengths.from_optimizer(optimizer).power != SQUARE_ROOT_POWER:
            return kinds.ftrl_power
    return kinds[optimizer.name]


def make_step_factory(optimizer: OptimizerSpec, table: TableSpec) -> KernelStepFactory:
    """A function that computes the kernel's argument for each push to a table."""
    group = float(FtrlStrengths.from_optimizer(optimizer).lasso_limit(table.dim)) if optimizer.name == "ftrl" else 0.0
    return _make_step_factory(optimizer, optimizer.weight_decay_for(table.name), group)


def make_flat_rule(optimizer: OptimizerSpec, decay: float) -> UpdateRule:
    """The kernel as an update rule, with the interface of ``edl.numerics.optimizers.make_rule``.

    It gives the same bits as the NumPy rule. For Adagrad it makes one pass over the dense
    parameters instead of seven.

    A group lasso needs the rows of an embedding, and the kernel sees flat values. For such an
    optimizer this function returns the NumPy rule.

    Raises:
        BadInputError: the optimizer has no native kernel.
    """
    if uses_row_groups(optimizer):
        return make_rule(optimizer, decay)
    chosen, step = select_kernel(optimizer), _make_step_factory(optimizer, decay, group=0.0)

    def move(values: Floats, slots: Sequence[Floats], update: ParameterUpdate, scratch: ScratchArrays) -> None:
        now = step(update.learning_rate, update.update_number)
        _native.move(chosen, now, values, slots, update.gradient, "")

    return move


def _make_step_factory(optimizer: OptimizerSpec, decay: float, group: float) -> KernelStepFactory:
    numbers = _KERNEL_NUMBERS[optimizer.name]

    def step(rate: float, count: int) -> _native.Step:
        return _native.Step(decay=decay, decay_rate=rate, group=group, **numbers(optimizer, rate, count))

    return step


def _sgd_numbers(optimizer: OptimizerSpec, rate: float, count: int) -> KernelNumbers:
    return {"rate": rate}


def _momentum_numbers(optimizer: OptimizerSpec, rate: float, count: int) -> KernelNumbers:
    return {"rate": rate, "momentum": optimizer.get_number("momentum")}


def _lion_numbers(optimizer: OptimizerSpec, rate: float, count: int) -> KernelNumbers:
    first, second = _moment_decays(optimizer)
    return {
        "rate": rate,
        "first_keep": first,
        "first_weight": one_minus_float32(first),
        "second_keep": second,
        "second_weight": one_minus_float32(second),
    }


def _adagrad_numbers(optimizer: OptimizerSpec, rate: float, count: int) -> KernelNumbers:
    return {"rate": rate, "epsilon": optimizer.get_number("epsilon")}


def _rmsprop_numbers(optimizer: OptimizerSpec, rate: float, count: int) -> KernelNumbers:
    return {**_adadelta_numbers(optimizer, rate, count), "momentum": optimizer.get_number("momentum")}


def _adadelta_numbers(optimizer: OptimizerSpec, rate: float, count: int) -> KernelNumbers:
    rho = optimizer.get_number("rho")
    return {**_adagrad_numbers(optimizer, rate, count), "second_keep": rho, "second_weight": 1 - rho}


def _adam_numbers(optimizer: OptimizerSpec, rate: float, count: int) -> KernelNumbers:
    first, second = _moment_decays(optimizer)
    return {
        "rate": float(corrected_rate(first, second, rate, count)),
        "epsilon": optimizer.get_number("epsilon"),
        "first_weight": 1 - first,
        "second_weight": 1 - second,
    }


def _adamax_numbers(optimizer: OptimizerSpec, rate: float, count: int) -> KernelNumbers:
    first, second = _moment_decays(optimizer)
    return {
        "rate": float(first_moment_rate(first, rate, count)),
        "epsilon": optimizer.get_number("epsilon"),
        "first_weight": 1 - first,
        "second_keep": second,
    }


def _nadam_numbers(optimizer: OptimizerSpec, rate: float, count: int) -> KernelNumbers:
    first, second = _moment_decays(optimizer)
    of_moment, of_gradient = nadam_factors(first, count)
    return {
        "rate": rate,
        "epsilon": optimizer.get_number("epsilon"),
        "first_weight": one_minus_float32(first),
        "second_weight": one_minus_float32(second),
        "momentum": of_moment,
        "of_gradient": of_gradient,
        "correction": float(bias_correction(second, count)),
    }


def _ftrl_numbers(optimizer: OptimizerSpec, rate: float, count: int) -> KernelNumbers:
    strengths = FtrlStrengths.from_optimizer(optimizer)
    return {
        "rate": rate,
        "shrinkage": 2 * strengths.shrinkage,
        "curvature": strengths.added_curvature(rate) if rate else 0.0,
        "l1": strengths.l1,
        "power": strengths.power,
    }


def _moment_decays(optimizer: OptimizerSpec) -> tuple[float, float]:
    return optimizer.get_number("beta_1"), optimizer.get_number("beta_2")


_KERNEL_NUMBERS: Mapping[str, Callable[[OptimizerSpec, float, int], KernelNumbers]] = {
    "sgd": _sgd_numbers,
    "momentum": _momentum_numbers,
    "lion": _lion_numbers,
    "adagrad": _adagrad_numbers,
    "rmsprop": _rmsprop_numbers,
    "adadelta": _adadelta_numbers,
    "adam": _adam_numbers,
    "adamax": _adamax_numbers,
    "nadam": _nadam_numbers,
    "ftrl": _ftrl_numbers,
}
NATIVE_OPTIMIZERS = tuple(_KERNEL_NUMBERS)
"""The optimizers that have native kernels."""
