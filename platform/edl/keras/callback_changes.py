"""What a callback may not change: it is found after each of a callback's methods, and refused by name.

The learning rate, ``model.stop_training`` and the values of variables have their effect. What the traced steps are made
of has none, because they are traced already and their optimizer is made. In ``keras.Model.fit`` it has no effect
either, or ends in an error that names something else.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from edl.api.errors import BadInputError
from edl.keras.traced_function import host_array
from edl.numerics.packed_state import array_checksum

_ATTRIBUTES = ("loss", "jit_compile", "run_eagerly", "steps_per_execution")
_METHODS = (
    "call",
    "compute_loss",
    "compute_metrics",
    "make_train_function",
    "predict_step",
    "test_step",
    "train_function",
    "train_step",
)
_IN_MODEL_FUNCTION = "set it in the function that makes the model"
_IN_OPTIMIZER = (
    "set it where the optimizer is made; a callback may assign a number to model.optimizer.learning_rate, and a "
    "schedule of keras.optimizers.schedules needs no callback"
)
_TWO_JOBS = (
    f"{_IN_MODEL_FUNCTION}. To train more layers later, train a second job, whose model.init_from names the first one"
)
_MISSING = object()


class StepSettings:
    """What the steps of a model are made of.

    Args:
        model: the model that callbacks see; its optimizer is set.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        layers = [(layer, _name_layer(layer, model)) for layer in model._flatten_layers()]
        variables = [(variable, f"the variable '{variable.path}'") for variable in model.variables]
        self._trainable = [(each, name, each.trainable) for each, name in (*layers, *variables)]
        self._compiled = _read_compiled(model)
        self._attributes = list(_read_attributes(model))
        # Also those that only a train_step of the user's names.
        self._optimizers = {name: each for name, each in vars(model).items() if _is_optimizer(each) and name[0] != "_"}
        self._updating = list(_find_inner(self._optimizers.values()))
        self._hyperparameters = list(_read_hyperparameters(self._updating))
        self._metrics = tuple(model._metrics)

    def refuse_changes(self, place: str) -> None:
        """Raise if one of them is another one now.

        Args:
            place: the method that was called, as messages name it.

        Raises:
            BadInputError: names it.
        """
        for what, hint in self._find_changes():
            raise BadInputError(f"{place} {what}: the steps of the job are made already", hint=hint)

    def _find_changes(self) -> Iterator[tuple[str, str]]:
        model = self._model
        if _read_compiled(model) is not self._compiled:
            yield "calls model.compile()", "compile the model in the function that makes it"
        for name, optimizer in self._optimizers.items():
            if getattr(model, name, None) is not optimizer:
                yield f"sets model.{name}", _IN_OPTIMIZER
        for (name, old), (_, new) in zip(self._attributes, _read_attributes(model), strict=True):
            if not _is_same(old, new):
                yield f"sets model.{name}", _IN_MODEL_FUNCTION
        for each, name, old in self._trainable:
            if each.trainable != old:
                yield f"changes `trainable` of {name}", _TWO_JOBS
        now = _read_hyperparameters(self._updating)
        for (kind, name, old), (_, _, new) in zip(self._hyperparameters, now, strict=True):
            if name == _RATE and old is not new:
                yield f"replaces the learning rate of {kind} by a {type(new).__name__}", _IN_OPTIMIZER
            elif not _is_same(old, new):
                yield f"sets '{name}' of {kind} from {old!r} to {new!r}", _IN_OPTIMIZER
        if len(model._metrics) > len(self._metrics):
            yield (
                f"adds the metric '{model._metrics[-1].name}' to the model, which no step updates",
                "keep it in the callback itself; metrics of evaluations are those of compile() or eval_metrics_fn()",
            )


class LayerAttributes:
    """Numbers, texts and switches in the layers of a model whose steps are traced, such as the rate of a Dropout.

    In ``fit`` a callback may change them before the first step, which is when Keras traces it.

    Args:
        model: the model that callbacks see.
    """

    def __init__(self, model: Any) -> None:
        self._values = [
            (layer, _name_layer(layer, model), name, value)
            for layer in model._flatten_layers()
            for name, value in vars(layer).items()
            if isinstance(value, bool | int | float | str) and name[0] != "_" and name != "stop_training"
        ]

    def refuse_changes(self, place: str) -> None:
        """Raise if one of them is another one now. For the argument, see ``StepSettings``.

        Raises:
            BadInputError: names it.
        """
        for layer, owner, name, old in self._values:
            if not _is_same(old, new := vars(layer).get(name)):
                raise BadInputError(
                    f"{place} sets '{name}' of {owner} from {old!r} to {new!r}: the steps of the job are made already",
                    hint=_IN_MODEL_FUNCTION,
                )


class CopiedWeights:
    """Weights of which an optimizer has a copy, as ``ScheduleFreeAdamW`` makes one where it is built.

    ``fit`` builds an optimizer at the first step, and a job before any callback is called. So a callback that loads
    weights before the first step changes the copy under ``fit`` only.

    Args:
        model: the model that callbacks see; its optimizers are built.
    """

    def __init__(self, model: Any) -> None:
        slots = [slot for each in _find_optimizers(model) if _may_copy(each) for slot in each.variables]
        # Zeros are what most slots and all biases begin with.
        values = {_describe_value(slot): slot for slot in slots if len(slot.shape) and host_array(slot).any()}
        weights = model.trainable_variables if values else []
        self._copies = [(weight, values[key]) for weight in weights if (key := _describe_value(weight)) in values]

    def refuse_changes(self, place: str) -> None:
        """Raise if a weight is not what its copy is. For the argument, see ``StepSettings``.

        Raises:
            BadInputError: names it.
        """
        for weight, copy in self._copies:
            if not np.array_equal(host_array(weight), host_array(copy)):
                raise BadInputError(
                    f"{place} assigns to the variable '{weight.path}', of which the optimizer has made a copy already "
                    f"('{copy.path}')",
                    hint="load the weights in the function that makes the model, or name their run in model.init_from",
                )


_RATE = "_learning_rate"


def _find_optimizers(model: Any) -> Iterator[Any]:
    """Also those that only a train_step of the user's names."""
    return _find_inner(each for name, each in vars(model).items() if _is_optimizer(each) and name[0] != "_")


def _may_copy(optimizer: Any) -> bool:
    """Whether an optimizer may begin with a copy of the weights; of Keras' own ones, one does."""
    return not type(optimizer).__module__.startswith("keras.") or type(optimizer).__name__ == "ScheduleFreeAdamW"


def _describe_value(variable: Any) -> tuple[tuple[int, ...], str, int]:
    return tuple(variable.shape), str(variable.dtype), array_checksum(host_array(variable))


def _name_layer(layer: Any, model: Any) -> str:
    return "the model" if layer is model else f"the layer '{layer.name}'"


def _read_compiled(model: Any) -> Any:
    # Keras makes a new one with each compile().
    return getattr(model, "_compile_config", None)


def _read_attributes(model: Any) -> Iterator[tuple[str, Any]]:
    for name in _ATTRIBUTES:
        yield name, getattr(model, name, _MISSING)
    for name in _METHODS:
        yield name, vars(model).get(name, _MISSING)


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, keras.optimizers.Optimizer)


def _find_inner(optimizers: Iterable[Any]) -> Iterator[Any]:
    """These optimizers, each with those inside it: of a ``LossScaleOptimizer`` or a ``MultiOptimizer``."""
    for each in optimizers:
        yield each
        scaled = getattr(each, "inner_optimizer", None)
        yield from _find_inner([] if scaled is None else [scaled])
        if isinstance(each, keras.optimizers.MultiOptimizer):
            yield from each.optimizers


def _read_hyperparameters(optimizers: Iterable[Any]) -> Iterator[tuple[str, str, Any]]:
    """Class of each optimizer, name and value of what it was made with."""
    for each in optimizers:
        yield type(each).__name__, _RATE, vars(each).get(_RATE)
        for name in _argument_names(type(each)):
            yield type(each).__name__, name, vars(each).get(name, _MISSING)


def _argument_names(kind: type) -> list[str]:
    names = {
        name
        for base in kind.__mro__
        if issubclass(base, keras.optimizers.Optimizer)
        for name in inspect.signature(base.__init__).parameters  # type: ignore[misc]
    }
    return sorted(names - {"self", "args", "kwargs", "name"})


def _is_same(old: Any, new: Any) -> bool:
    if old is new:
        return True
    return isinstance(old, bool | int | float | str) and type(old) is type(new) and old == new
