"""An optimizer in the terms of the native kernels: which kernel moves the rows, and the numbers of one step.

The numbers come from the functions of ``edl.numerics.optimizers``, so that they are rounded as the NumPy rules round
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from edl.api.errors import BadInputError
from edl.api.tables import TableSpec
from edl.numerics import _native
from edl.numerics.array_types import Floats
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers import Rule, Scratch, Update, rule
from edl.numerics.optimizers.adam import corrected_rate, correction, first_corrected_rate, nadam_factors, rest
from edl.numerics.optimizers.ftrl import SQUARE_ROOT, Strengths, makes_groups

Numbers = Mapping[str, float]
Steps = Callable[[float, int], _native.Step]
"""From a learning rate and the count of updates with this one to the kernel's argument."""


def kernel(optimizer: OptimizerSpec) -> _native.Optimizer:
    """The kernel that moves rows under this optimizer.

    Raises:
        BadInputError: there is none. LAMB scales a step to the length of all rows of a push, and kernels see one row.
    """
    if optimizer.name not in OPTIMIZERS:
        raise BadInputError(
            f"optimizer '{optimizer.name}' has no native kernel", hint=f"those that have: {', '.join(OPTIMIZERS)}"
        )
    kinds = _native.Optimizer
    match optimizer.name:
        case "momentum" if optimizer.flag("nesterov"):
            return kinds.nesterov
        case "adam" if optimizer.flag("amsgrad"):
            return kinds.amsgrad
        case "rmsprop" if optimizer.flag("centered"):
            return kinds.centered_momentum if optimizer.number("momentum") else kinds.centered
        case "rmsprop" if optimizer.number("momentum"):
            return kinds.rmsprop_momentum
        case "ftrl" if Strengths.of(optimizer).power != SQUARE_ROOT:
            return kinds.ftrl_power
    return kinds[optimizer.name]


def steps(optimizer: OptimizerSpec, table: TableSpec) -> Steps:
    """What makes the argument of each push to a table."""
    group = float(Strengths.of(optimizer).limit(table.dim)) if optimizer.name == "ftrl" else 0.0
    return _steps(optimizer, optimizer.decay_of(table.name), group)


def slab_rule(optimizer: OptimizerSpec, decay: float) -> Rule:
    """The kernel as ``edl.numerics.optimizers.rule``: the same bits in one pass over dense parameters instead of seven.

    A group lasso regards their rows, of which a kernel would have to know: there it is that function.

    Raises:
        BadInputError: the optimizer has no native kernel.
    """
    if makes_groups(optimizer):
        return rule(optimizer, decay)
    chosen, step = kernel(optimizer), _steps(optimizer, decay, group=0.0)

    def move(values: Floats, slots: Sequence[Floats], update: Update, scratch: Scratch) -> None:
        now = step(update.learning_rate, update.step)
        _native.move(chosen, now, values, slots, update.gradient, "")

    return move


def _steps(optimizer: OptimizerSpec, decay: float, group: float) -> Steps:
    numbers = _NUMBERS[optimizer.name]

    def step(rate: float, count: int) -> _native.Step:
        return _native.Step(decay=decay, decay_rate=rate, group=group, **numbers(optimizer, rate, count))

    return step


def _plain(optimizer: OptimizerSpec, rate: float, count: int) -> Numbers:
    return {"rate": rate}


def _momentum(optimizer: OptimizerSpec, rate: float, count: int) -> Numbers:
    return {"rate": rate, "momentum": optimizer.number("momentum")}


def _lion(optimizer: OptimizerSpec, rate: float, count: int) -> Numbers:
    first, second = _betas(optimizer)
    return {
        "rate": rate,
        "first_keep": first,
        "first_weight": rest(first),
        "second_keep": second,
        "second_weight": rest(second),
    }


def _adagrad(optimizer: OptimizerSpec, rate: float, count: int) -> Numbers:
    return {"rate": rate, "epsilon": optimizer.number("epsilon")}


def _rmsprop(optimizer: OptimizerSpec, rate: float, count: int) -> Numbers:
    return {**_adadelta(optimizer, rate, count), "momentum": optimizer.number("momentum")}


def _adadelta(optimizer: OptimizerSpec, rate: float, count: int) -> Numbers:
    rho = optimizer.number("rho")
    return {**_adagrad(optimizer, rate, count), "second_keep": rho, "second_weight": 1 - rho}


def _adam(optimizer: OptimizerSpec, rate: float, count: int) -> Numbers:
    first, second = _betas(optimizer)
    return {
        "rate": float(corrected_rate(first, second, rate, count)),
        "epsilon": optimizer.number("epsilon"),
        "first_weight": 1 - first,
        "second_weight": 1 - second,
    }


def _adamax(optimizer: OptimizerSpec, rate: float, count: int) -> Numbers:
    first, second = _betas(optimizer)
    return {
        "rate": float(first_corrected_rate(first, rate, count)),
        "epsilon": optimizer.number("epsilon"),
        "first_weight": 1 - first,
        "second_keep": second,
    }


def _nadam(optimizer: OptimizerSpec, rate: float, count: int) -> Numbers:
    first, second = _betas(optimizer)
    of_moment, of_gradient = nadam_factors(first, count)
    return {
        "rate": rate,
        "epsilon": optimizer.number("epsilon"),
        "first_weight": rest(first),
        "second_weight": rest(second),
        "momentum": of_moment,
        "of_gradient": of_gradient,
        "correction": float(correction(second, count)),
    }


def _ftrl(optimizer: OptimizerSpec, rate: float, count: int) -> Numbers:
    strengths = Strengths.of(optimizer)
    return {
        "rate": rate,
        "shrinkage": 2 * strengths.shrinkage,
        "curvature": strengths.curvature(rate) if rate else 0.0,
        "l1": strengths.l1,
        "power": strengths.power,
    }


def _betas(optimizer: OptimizerSpec) -> tuple[float, float]:
    return optimizer.number("beta_1"), optimizer.number("beta_2")


_NUMBERS: Mapping[str, Callable[[OptimizerSpec, float, int], Numbers]] = {
    "sgd": _plain,
    "momentum": _momentum,
    "lion": _lion,
    "adagrad": _adagrad,
    "rmsprop": _rmsprop,
    "adadelta": _adadelta,
    "adam": _adam,
    "adamax": _adamax,
    "nadam": _nadam,
    "ftrl": _ftrl,
}
OPTIMIZERS = tuple(_NUMBERS)
"""Those that have native kernels."""
