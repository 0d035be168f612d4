"""What the arrays of an AllReduce checkpoint mean, so that parameter servers can load them without Keras.

Workers of strategy AllReduce write the state of a Keras optimizer as numbered arrays. This description is stored with
them. It names the optimizer as parameter servers know it, and of each slot variable its trained variable.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edl.api.errors import BadInputError
from edl.core.strict_json import decode_json
from edl.numerics.optimizer_spec import OptimizerSpec

KERAS_STATE_KEY = "keras_state"
"""Key of the description in the metadata of a shard."""


@dataclass(frozen=True, slots=True)
class KerasState:
    """The arrays of a model and its Keras optimizer.

    Attributes:
        optimizer: the optimizer's rule on parameter servers; None if they have none with the same state.
        problem: why they have none, for users.
        iterations: name of the array with the number of updates; empty if the optimizer has none.
        momentum_product: name of the array in which Keras keeps the product of Nadam's momentum. Parameter servers
            compute it.
        slots: by trained variable, the name of the array of each slot variable.
    """

    optimizer: OptimizerSpec | None
    problem: str = ""
    iterations: str = ""
    momentum_product: str = ""
    slots: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def require_optimizer(self) -> OptimizerSpec:
        """The optimizer's rule on parameter servers.

        Raises:
            BadInputError: they cannot continue with the optimizer's state.
        """
        if self.optimizer is None:
            raise BadInputError(
                f"the optimizer's state cannot be exchanged with parameter servers: {self.problem}",
                hint="keep the strategy, or start a new run, without --resume",
            )
        return self.optimizer

    def to_json(self) -> str:
        """A JSON text that ``from_json`` accepts."""
        return json.dumps(
            {
                "optimizer": None if self.optimizer is None else self.optimizer.to_json(),
                "problem": self.problem,
                "iterations": self.iterations,
                "momentum_product": self.momentum_product,
                "slots": {name: dict(arrays) for name, arrays in self.slots.items()},
            }
        )

    @classmethod
    def from_json(cls, text: str) -> KerasState:
        """Parse the description of a shard.

        Raises:
            ValueError: it is not one.
        """
        value: Any = decode_json(text)
        try:
            return cls(
                None if value["optimizer"] is None else OptimizerSpec.from_json(value["optimizer"]),
                str(value["problem"]),
                str(value["iterations"]),
                str(value["momentum_product"]),
                {
                    str(variable): {str(slot): str(array) for slot, array in arrays.items()}
                    for variable, arrays in value["slots"].items()
                },
            )
        except (KeyError, TypeError, AttributeError, BadInputError) as error:
            raise ValueError(f"is not the description of a Keras optimizer's state: {error}") from error


def check_same_slots(stored: OptimizerSpec, present: OptimizerSpec, *, was: str, now: str) -> None:
    """Refuse to continue with an optimizer that has other slot variables. Hyperparameters may differ.

    Args:
        stored: the optimizer of the checkpoint.
        present: the optimizer that is to continue.
        was: the strategy that wrote the checkpoint.
        now: the strategy that reads it.

    Raises:
        BadInputError: the optimizers differ.
    """
    if (stored.name, set(stored.slot_starts)) != (present.name, set(present.slot_starts)):
        raise BadInputError(
            f"the checkpoint (strategy {was}) has the state of the optimizer {_describe(stored)}, but the job "
            f"(strategy {now}) trains with {_describe(present)}",
            hint="use the optimizer that the run started with, or start a new run, without --resume",
        )


def _describe(optimizer: OptimizerSpec) -> str:
    slots = ", ".join(optimizer.slot_starts)
    return f"{optimizer.name} ({f'slots {slots}' if slots else 'no slots'})"
