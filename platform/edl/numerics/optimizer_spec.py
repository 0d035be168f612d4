"""An optimizer as values: what a worker tells the parameter servers, and what a checkpoint remembers.

The learning rate is not part of it: it travels with each push, because only workers evaluate schedules.
``edl.numerics.hyperparameters`` says what each optimizer has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from edl.api.errors import BadInputError
from edl.jobfile.document_tree import JsonValue
from edl.jobfile.scalar_types import join_alternatives
from edl.numerics.hyperparameters import OPTIMIZER_DEFINITIONS, HyperparameterValue, OptimizerDefinition

_FIELDS = ("name", "hyperparameters")


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """One of the optimizers that parameter servers apply, with all its hyperparameters.

    Attributes:
        name: of a rule in ``edl.numerics.hyperparameters``, such as ``adam``.
        hyperparameters: those of the rule. Those that are not given get Keras' defaults; read-only.
        undecayed: variables and tables, by the names that the PS know, that ``weight_decay`` leaves alone; sorted.

    Raises:
        BadInputError: an unknown optimizer or hyperparameter, or a value that is out of bounds.
    """

    name: str
    hyperparameters: Mapping[str, HyperparameterValue] = field(default_factory=dict)
    undecayed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZER_DEFINITIONS:
            raise BadInputError(
                f"optimizer '{self.name}' is not known; known are {join_alternatives(tuple(OPTIMIZER_DEFINITIONS))}"
            )
        rule = OPTIMIZER_DEFINITIONS[self.name]
        for name, value in self.hyperparameters.items():
            _check_hyperparameter(self.name, rule, name, value)
        complete = {
            name: parameter.typed(self.hyperparameters.get(name, parameter.default))
            for name, parameter in rule.parameters.items()
        }
        object.__setattr__(self, "hyperparameters", MappingProxyType(complete))
        object.__setattr__(self, "undecayed", tuple(sorted(set(self.undecayed))))

    def __hash__(self) -> int:
        return hash((self.name, tuple(sorted(self.hyperparameters.items())), self.undecayed))

    def __reduce__(self) -> tuple[type[OptimizerSpec], tuple[str, dict[str, HyperparameterValue], tuple[str, ...]]]:
        return OptimizerSpec, (self.name, dict(self.hyperparameters), self.undecayed)

    def number(self, name: str) -> float:
        """A hyperparameter as a float, such as ``momentum`` or ``epsilon``."""
        return float(self.hyperparameters[name])

    def get_flag(self, name: str) -> bool:
        """A hyperparameter as a truth value, such as ``nesterov``."""
        return bool(self.hyperparameters[name])

    def decay_of(self, name: str) -> float:
        """The weight decay of a variable or table by name: the optimizer's, or 0 for one that is left alone."""
        return 0.0 if name in self.undecayed else self.number("weight_decay")

    @property
    def slots(self) -> Mapping[str, float]:
        """The slot variables of each parameter by name, with the value that every element of them starts at."""
        return {
            name: 0.0 if slot.start is None else self.number(slot.start)
            for name, slot in OPTIMIZER_DEFINITIONS[self.name].slots.items()
            if slot.required_parameter is None or self.hyperparameters[slot.required_parameter]
        }

    @property
    def former_slot_names(self) -> Mapping[str, str]:
        """What checkpoints of earlier versions call some of the slots, by what they are called now."""
        return {
            name: slot.former_name
            for name, slot in OPTIMIZER_DEFINITIONS[self.name].slots.items()
            if slot.former_name is not None
        }

    def to_json(self) -> dict[str, JsonValue]:
        """Plain values, such that from_json gives them back."""
        plain: dict[str, JsonValue] = {"name": self.name, "hyperparameters": dict(self.hyperparameters)}
        return {**plain, "undecayed": list(self.undecayed)} if self.undecayed else plain

    @classmethod
    def from_json(cls, value: Mapping[str, JsonValue]) -> OptimizerSpec:
        """The optimizer of a JSON object; raises BadInputError unless it has exactly the fields that it may have."""
        undecayed = value.get("undecayed", [])
        missing_or_unknown = set(value) - {"undecayed"} != set(_FIELDS)
        if missing_or_unknown or not isinstance(value["hyperparameters"], dict) or not isinstance(undecayed, list):
            raise BadInputError(
                f"an optimizer has the fields name and hyperparameters, and perhaps undecayed, found {sorted(value)}"
            )
        return cls(str(value["name"]), value["hyperparameters"], tuple(map(str, undecayed)))


def _check_hyperparameter(optimizer: str, rule: OptimizerDefinition, name: str, value: object) -> None:
    if name not in rule.parameters:
        known = ", ".join(rule.parameters)
        raise BadInputError(f"optimizer {optimizer} has no hyperparameter '{name}'; it has: {known}")
    allowed = rule.parameters[name].refusal(value)
    if allowed is not None:
        raise BadInputError(f"{name} of optimizer {optimizer} is {value!r}, must be {allowed}")
