"""Describes the state of a Keras optimizer in the terms of the parameter servers: see :class:`KerasState`."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from edl.api.errors import BadInputError
from edl.keras.optimizer_translation import keras_variable_name, translate_optimizer
from edl.keras.replica_state import SeveralOptimizersState
from edl.keras.trainable_model import TrainableModel
from edl.numerics.keras_state import KerasState
from edl.numerics.optimizer_spec import OptimizerSpec

_ITERATIONS, _LEARNING_RATE = "iteration", "learning_rate"
"""Names of the variables that every Keras optimizer has; the second one is missing with a schedule."""


def describe_keras_state(model: TrainableModel) -> KerasState:
    """The description of the arrays that ``model.named_variables`` names.

    A state that parameter servers do not have is described with the reason.

    Raises:
        UserCodeError: the optimizer's ``get_config`` raised an exception.
    """
    if isinstance(model, SeveralOptimizersState):
        return KerasState(None, "train_step() makes several updates, but parameter servers make one")
    trained = {model.variables.specs[at].name: model.variables.weights[at] for at in model.variables.trained_positions}
    try:
        spec = translate_optimizer(
            model.optimizer,
            {name: keras_variable_name(variable) for name, variable in trained.items()},
            model.module.zoo,
        ).spec
        return _describe_slots(spec, list(model.optimizer.variables), trained)
    except BadInputError as error:
        return KerasState(None, error.message)


def _describe_slots(spec: OptimizerSpec, variables: Sequence[Any], trained: Mapping[str, Any]) -> KerasState:
    # Several variables of a model may have the same path, and so may their slot variables: these have the same order.
    arrays: dict[str, deque[str]] = {}
    for number, variable in enumerate(variables):
        arrays.setdefault(variable.name, deque()).append(f"slot/{number}")
    iterations = arrays.pop(_ITERATIONS, deque([""])).popleft()
    arrays.pop(_LEARNING_RATE, None)
    slots = {
        name: {slot: _take(arrays, f"{variable.path.replace('/', '_')}_{slot}") for slot in spec.slot_starts}
        for name, variable in trained.items()
    }
    left = [name for names in arrays.values() for name in names]
    # Keras' Nadam has one variable more, without a name of its own.
    product = left.pop() if spec.name == "nadam" and len(left) == 1 else ""
    if left:
        number = int(left[0].partition("/")[2])
        raise BadInputError(f"parameter servers have no equivalent of its variable '{variables[number].path}'")
    return KerasState(spec, "", iterations, product, slots)


def _take(arrays: Mapping[str, deque[str]], name: str) -> str:
    array = arrays.get(name)
    if not array:
        raise BadInputError(f"the optimizer has no variable '{name}'")
    return array.popleft()
