"""An optimizer as values: what a worker tells the parameter servers, and what a checkpoint remembers.

The learning rate is not part of it: it travels with each push, because only workers evaluate schedules. The names and
the meaning of the hyperparameters are those of keras.optimizers, and so are the defaults, except for Momentum, which
in Keras is SGD with momentum > 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from edl.core.errors import BadInputError
from edl.spec.kind import one_of
from edl.spec.node import Json

Hyperparameter = float | bool


@dataclass(frozen=True, slots=True)
class _Rule:
    """What there is to know about one optimizer: hyperparameters, their defaults and bounds, its slot variables.

    ``slots`` maps a slot variable's name to the hyperparameter it starts at; None starts at zero.
    """

    defaults: Mapping[str, Hyperparameter]
    fractions: frozenset[str] = frozenset()
    slots: Mapping[str, str | None] = field(default_factory=dict)


_RULES: Mapping[str, _Rule] = {
    "sgd": _Rule({}),
    "momentum": _Rule({"momentum": 0.9, "nesterov": False}, frozenset({"momentum"}), {"momentum": None}),
    "adagrad": _Rule(
        {"initial_accumulator_value": 0.1, "epsilon": 1e-7}, slots={"accumulator": "initial_accumulator_value"}
    ),
    "adam": _Rule(
        {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}, frozenset({"beta_1", "beta_2"}), {"m": None, "v": None}
    ),
}


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """One of the optimizers that parameter servers apply, with all its hyperparameters.

    Attributes:
        name: ``sgd``, ``momentum``, ``adagrad`` or ``adam``.
        hyperparameters: sgd has none; momentum ``momentum, nesterov``; adagrad ``initial_accumulator_value, epsilon``;
            adam ``beta_1, beta_2, epsilon``. Those that are not given get Keras' defaults; read-only.

    Raises:
        BadInputError: an unknown optimizer or hyperparameter, or a value that is out of bounds.
    """

    name: str
    hyperparameters: Mapping[str, Hyperparameter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in _RULES:
            raise BadInputError(f"optimizer '{self.name}' is not known; known are {one_of(tuple(_RULES))}")
        rule = _RULES[self.name]
        for name, value in self.hyperparameters.items():
            _check(self.name, rule, name, value)
        complete = {
            name: self._typed(value, self.hyperparameters.get(name, value)) for name, value in rule.defaults.items()
        }
        object.__setattr__(self, "hyperparameters", MappingProxyType(complete))

    def __hash__(self) -> int:
        return hash((self.name, tuple(sorted(self.hyperparameters.items()))))

    def __reduce__(self) -> tuple[type[OptimizerSpec], tuple[str, dict[str, Hyperparameter]]]:
        return OptimizerSpec, (self.name, dict(self.hyperparameters))

    def number(self, name: str) -> float:
        """A hyperparameter as a float, such as ``momentum`` or ``epsilon``."""
        return float(self.hyperparameters[name])

    def flag(self, name: str) -> bool:
        """A hyperparameter as a truth value, such as ``nesterov``."""
        return bool(self.hyperparameters[name])

    @property
    def slots(self) -> Mapping[str, float]:
        """The slot variables of each parameter by name, with the value that every element of them starts at."""
        initial = _RULES[self.name].slots
        return {slot: 0.0 if source is None else self.number(source) for slot, source in initial.items()}

    def to_json(self) -> dict[str, Json]:
        """Plain values, such that from_json gives them back."""
        return {"name": self.name, "hyperparameters": dict(self.hyperparameters)}

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> OptimizerSpec:
        """The optimizer of a JSON object; raises BadInputError unless it has exactly the two fields."""
        if set(value) != {"name", "hyperparameters"} or not isinstance(value["hyperparameters"], dict):
            raise BadInputError(f"an optimizer has the fields name and hyperparameters, found {sorted(value)}")
        return cls(str(value["name"]), value["hyperparameters"])

    @staticmethod
    def _typed(default: Hyperparameter, value: Hyperparameter) -> Hyperparameter:
        return bool(value) if isinstance(default, bool) else float(value)


def _check(optimizer: str, rule: _Rule, name: str, value: object) -> None:
    if name not in rule.defaults:
        known = ", ".join(rule.defaults) or "none"
        raise BadInputError(f"optimizer {optimizer} has no hyperparameter '{name}'; it has: {known}")
    allowed = _allowed(rule, name, value)
    if allowed is not None:
        raise BadInputError(f"{name} of optimizer {optimizer} is {value!r}, must be {allowed}")


def _allowed(rule: _Rule, name: str, value: object) -> str | None:
    """What is allowed, when ``value`` is not."""
    if isinstance(rule.defaults[name], bool):
        return None if isinstance(value, bool) else "true or false"
    if name in rule.fractions:
        inside = _is_number(value) and 0 <= float(value) < 1  # type: ignore[arg-type]
        return None if inside else "at least 0 and below 1"
    inside = _is_number(value) and 0 <= float(value) < float("inf")  # type: ignore[arg-type]
    return None if inside else "a finite number of at least 0"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
