"""Optimizer settings as values, sent by workers to the parameter servers and stored in checkpoints.

The learning rate is not a part of them. Each push contains it, because only workers evaluate
schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from edl.api.errors import BadInputError
from edl.api.fields import JsonValue
from edl.jobfile.scalar_types import join_alternatives

# --------------------------------------------------------------------------------------------------
# The definition of each optimizer: hyperparameters with defaults and bounds, and slot variables.
#
# Names, meaning and defaults are those of keras.optimizers, and so are the names of the slots.
# There are three exceptions. Momentum is SGD with momentum > 0 in Keras. AdamW is Adam with another
# default of ``weight_decay``. Ftrl has no ``group_lasso_regularization_strength`` in Keras; EDL
# adds it (``edl.keras.group_ftrl``).


HyperparameterValue = float | bool


@dataclass(frozen=True, slots=True)
class ValueBound:
    """The allowed range of a number.

    Attributes:
        description: completes an error message after "must be".
        contains: whether a number is in the range.
    """

    description: str
    contains: Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class HyperparameterSpec:
    """A hyperparameter with its default and bound. Without a bound it is a boolean."""

    default: HyperparameterValue
    bound: ValueBound | None = None

    def describe_violation(self, value: object) -> str | None:
        """A description of the allowed values, if ``value`` is not one of them."""
        if self.bound is None:
            return None if isinstance(value, bool) else "true or false"
        # ``True`` is an int in Python; as a number it would be 1.0.
        inside = isinstance(value, int | float) and not isinstance(value, bool) and self.bound.contains(float(value))
        return None if inside else self.bound.description

    def convert_value(self, value: HyperparameterValue) -> HyperparameterValue:
        """Convert an allowed value to the type in which it is stored."""
        return bool(value) if self.bound is None else float(value)


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """A slot variable.

    Attributes:
        start_parameter: the hyperparameter whose value every element starts at; None: zero.
        required_parameter: the slot exists only if this hyperparameter is true or above zero; None:
            the slot always exists.
        former_name: the slot's name in checkpoints of earlier versions.
    """

    start_parameter: str | None = None
    required_parameter: str | None = None
    former_name: str | None = None


@dataclass(frozen=True, slots=True)
class OptimizerDefinition:
    """The definition of one optimizer; all of them have ``weight_decay``."""

    parameters: Mapping[str, HyperparameterSpec]
    slots: Mapping[str, SlotSpec] = field(default_factory=dict)


_NON_NEGATIVE = ValueBound("a finite number of at least 0", lambda value: 0 <= value < float("inf"))
_NON_POSITIVE = ValueBound("a finite number of at most 0", lambda value: float("-inf") < value <= 0)
_BELOW_ONE = ValueBound("at least 0 and below 1", lambda value: 0 <= value < 1)


def _non_negative_parameter(default: float) -> HyperparameterSpec:
    return HyperparameterSpec(default, _NON_NEGATIVE)


def _fraction_parameter(default: float) -> HyperparameterSpec:
    return HyperparameterSpec(default, _BELOW_ONE)


def _define_optimizer(
    slots: Mapping[str, SlotSpec] | None = None, **parameters: HyperparameterSpec
) -> OptimizerDefinition:
    return OptimizerDefinition({**parameters, "weight_decay": _non_negative_parameter(0.0)}, slots or {})


_FALSE_BY_DEFAULT = HyperparameterSpec(False)
_MOMENTS = {
    "beta_1": _fraction_parameter(0.9),
    "beta_2": _fraction_parameter(0.999),
    "epsilon": _non_negative_parameter(1e-7),
}

OPTIMIZER_DEFINITIONS: Mapping[str, OptimizerDefinition] = {
    "sgd": _define_optimizer(),
    "momentum": _define_optimizer(
        {"momentum": SlotSpec()}, momentum=_fraction_parameter(0.9), nesterov=_FALSE_BY_DEFAULT
    ),
    "adagrad": _define_optimizer(
        {"accumulator": SlotSpec("initial_accumulator_value")},
        initial_accumulator_value=_non_negative_parameter(0.1),
        epsilon=_non_negative_parameter(1e-7),
    ),
    "adam": _define_optimizer(
        {
            "momentum": SlotSpec(former_name="m"),
            "velocity": SlotSpec(former_name="v"),
            "velocity_hat": SlotSpec(required_parameter="amsgrad"),
        },
        **_MOMENTS,
        amsgrad=_FALSE_BY_DEFAULT,
    ),
    "rmsprop": _define_optimizer(
        {
            "velocity": SlotSpec(),
            "momentum": SlotSpec(required_parameter="momentum"),
            "average_gradient": SlotSpec(required_parameter="centered"),
        },
        rho=_fraction_parameter(0.9),
        momentum=_fraction_parameter(0.0),
        epsilon=_non_negative_parameter(1e-7),
        centered=_FALSE_BY_DEFAULT,
    ),
    "adadelta": _define_optimizer(
        {"accumulated_grad": SlotSpec(), "accumulated_delta_var": SlotSpec()},
        rho=_fraction_parameter(0.95),
        epsilon=_non_negative_parameter(1e-7),
    ),
    "adamax": _define_optimizer({"momentum": SlotSpec(), "norm": SlotSpec()}, **_MOMENTS),
    "nadam": _define_optimizer({"momentum": SlotSpec(), "velocity": SlotSpec()}, **_MOMENTS),
    "lion": _define_optimizer(
        {"momentum": SlotSpec()}, beta_1=_fraction_parameter(0.9), beta_2=_fraction_parameter(0.99)
    ),
    "ftrl": _define_optimizer(
        {"accumulator": SlotSpec("initial_accumulator_value"), "linear": SlotSpec()},
        learning_rate_power=HyperparameterSpec(-0.5, _NON_POSITIVE),
        initial_accumulator_value=_non_negative_parameter(0.1),
        l1_regularization_strength=_non_negative_parameter(0.0),
        l2_regularization_strength=_non_negative_parameter(0.0),
        l2_shrinkage_regularization_strength=_non_negative_parameter(0.0),
        beta=_non_negative_parameter(0.0),
        group_lasso_regularization_strength=_non_negative_parameter(0.0),
    ),
    "lamb": _define_optimizer({"momentum": SlotSpec(), "velocity": SlotSpec()}, **_MOMENTS),
}
"""The definitions, by the optimizer's name."""

_FIELDS = ("name", "hyperparameters")


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """An optimizer with all its hyperparameters.

    Attributes:
        name: a key of ``OPTIMIZER_DEFINITIONS``, such as ``adam``.
        hyperparameters: all hyperparameters, read-only. Missing ones get Keras' defaults.
        undecayed: variables and tables without ``weight_decay``, by their names on the PS; sorted.

    Raises:
        BadInputError: the optimizer or a hyperparameter is unknown, or a value is out of bounds.
    """

    name: str
    hyperparameters: Mapping[str, HyperparameterValue] = field(default_factory=dict)
    undecayed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZER_DEFINITIONS:
            raise BadInputError(
                f"unknown optimizer '{self.name}': expected {join_alternatives(tuple(OPTIMIZER_DEFINITIONS))}"
            )
        rule = OPTIMIZER_DEFINITIONS[self.name]
        for name, value in self.hyperparameters.items():
            _check_hyperparameter(self.name, rule, name, value)
        complete = {
            name: parameter.convert_value(self.hyperparameters.get(name, parameter.default))
            for name, parameter in rule.parameters.items()
        }
        # Complete and sorted: two specs are equal if the optimizers are, whatever was left out.
        object.__setattr__(self, "hyperparameters", MappingProxyType(complete))
        object.__setattr__(self, "undecayed", tuple(sorted(set(self.undecayed))))

    # The generated hash fails: a mapping proxy is not hashable. Nor can it be pickled (__reduce__).
    def __hash__(self) -> int:
        return hash((self.name, tuple(sorted(self.hyperparameters.items())), self.undecayed))

    def __reduce__(self) -> tuple[type[OptimizerSpec], tuple[str, dict[str, HyperparameterValue], tuple[str, ...]]]:
        return OptimizerSpec, (self.name, dict(self.hyperparameters), self.undecayed)

    def get_number(self, name: str) -> float:
        """A hyperparameter as a float, such as ``momentum`` or ``epsilon``."""
        return float(self.hyperparameters[name])

    def get_flag(self, name: str) -> bool:
        """A hyperparameter as a boolean, such as ``nesterov``."""
        return bool(self.hyperparameters[name])

    def weight_decay_for(self, name: str) -> float:
        """The weight decay of a variable or table by name; 0 if it is excluded."""
        return 0.0 if name in self.undecayed else self.get_number("weight_decay")

    @property
    def slot_starts(self) -> Mapping[str, float]:
        """The slot variables of each parameter by name, with their start values."""
        return {
            name: 0.0 if slot.start_parameter is None else self.get_number(slot.start_parameter)
            for name, slot in OPTIMIZER_DEFINITIONS[self.name].slots.items()
            if slot.required_parameter is None or self.hyperparameters[slot.required_parameter]
        }

    @property
    def former_slot_names(self) -> Mapping[str, str]:
        """Former names of slots in checkpoints of earlier versions, by current name."""
        return {
            name: slot.former_name
            for name, slot in OPTIMIZER_DEFINITIONS[self.name].slots.items()
            if slot.former_name is not None
        }

    def to_json(self) -> dict[str, JsonValue]:
        """A JSON object that ``from_json`` accepts."""
        plain: dict[str, JsonValue] = {"name": self.name, "hyperparameters": dict(self.hyperparameters)}
        return {**plain, "undecayed": list(self.undecayed)} if self.undecayed else plain

    @classmethod
    def from_json(cls, value: Mapping[str, JsonValue]) -> OptimizerSpec:
        """Parse a JSON object. Raises BadInputError if a field is missing or unknown."""
        # Optional, because to_json leaves it out when it is empty.
        undecayed = value.get("undecayed", [])
        missing_or_unknown = set(value) - {"undecayed"} != set(_FIELDS)
        if missing_or_unknown or not isinstance(value["hyperparameters"], dict) or not isinstance(undecayed, list):
            raise BadInputError(
                f"an optimizer has the fields name, hyperparameters and optionally undecayed, found {sorted(value)}"
            )
        return cls(str(value["name"]), value["hyperparameters"], tuple(map(str, undecayed)))


def _check_hyperparameter(optimizer: str, rule: OptimizerDefinition, name: str, value: object) -> None:
    if name not in rule.parameters:
        known = ", ".join(rule.parameters)
        raise BadInputError(f"optimizer {optimizer} has no hyperparameter '{name}'; it has: {known}")
    allowed = rule.parameters[name].describe_violation(value)
    if allowed is not None:
        raise BadInputError(f"{name} of optimizer {optimizer} is {value!r}, must be {allowed}")
