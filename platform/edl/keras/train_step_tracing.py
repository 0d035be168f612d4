"""A ``train_step`` of the user's before training: which updates it makes is found, and each of them is traced.

By what is found here ``replica_choice`` chooses who trains the model.

A step of several updates, as of a GAN, is traced into one graph for each (``segmented_trace``): the gradients of the
first update end the first graph, and what the user's code does after ``apply`` is traced into the second one. So the
ranks can sum and apply the first gradients before the second graph runs. The last graph contains what follows the last
update as well; it sees the variables before this update.

The optimizers are those that the model has as attributes, alone or in a list, tuple or dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from edl.keras.compiled_model import restore_compile
from edl.keras.custom_train_step import (
    CALL_BEFORE,
    LOCAL_REMEDY,
    WRITE_REMEDY,
    capture_losses,
    capture_updates,
    combination_error,
    describe_write,
    is_of_present_graph,
    missing_loss_error,
    train_step_error,
)
from edl.keras.model_building import FLOAT_TYPES, is_seed_state
from edl.keras.segmented_trace import SegmentedTrace, SegmentTrace, trace_segments
from edl.keras.traced_function import spec_for_any_count
from edl.keras.written_variables import find_written_variables

OWN_OPTIMIZER = "optimizer"
"""The attribute of the optimizer that ``compile()`` got, or the module's ``optimizer()``."""


@dataclass(frozen=True)
class StepUpdate:
    """One update of a step.

    Attributes:
        name: the optimizer as an attribute of the model, such as ``d_optimizer`` or ``optimizers/0``.
        optimizer: it applies the update.
        trained: the variables that it gets, in this order.
        statistics: the variables of layers that the step changes since the update before.
    """

    name: str
    optimizer: Any
    trained: tuple[Any, ...]
    statistics: tuple[Any, ...] = ()


@dataclass(frozen=True)
class TracedUpdate:
    """What the trace of a step has at one of its updates.

    Attributes:
        number: which one it is, from 0.
        data: what ``train_step`` got.
        gradients: of each variable of the update; None: it has none.
        loss: the loss of the step; None before its end.
    """

    number: int
    data: Any
    gradients: Sequence[Any]
    loss: Any = None


@dataclass(frozen=True)
class AppliedUpdate:
    """One update of a step that one process makes.

    Attributes:
        name: the optimizer as an attribute of the model.
        positions: those of its variables in ``model.variables``.
    """

    name: str
    positions: tuple[int, ...]


@dataclass(frozen=True)
class AppliedStep:
    """What a step does that one process makes.

    Attributes:
        updates: its updates.
        is_plain: whether it makes one update with ``self.optimizer``, and else changes what layers change before it.
        statistics: the variables of layers that it changes.
    """

    updates: tuple[AppliedUpdate, ...]
    is_plain: bool
    statistics: tuple[Any, ...]


class UpdateTracer:
    """Traces the ``train_step`` of a model.

    Args:
        model: the user's model.
        optimizer: becomes ``model.optimizer``.

    Attributes:
        uses_loss: whether the step that was traced last calls ``compute_loss``.
        optimizers: those of the model, by their attribute.
    """

    def __init__(self, model: Any, optimizer: Any) -> None:
        restore_compile(model)
        self._model = model
        self.uses_loss = False
        model.optimizer = optimizer
        self.optimizers = _find_optimizers(model)
        self._variables = {id(v): v for v in model.variables} | {id(v.value): v for v in model.variables}

    def find_only_update(self, data: Any) -> tuple[Any, ...] | None:
        """What a step changes that makes no other update than one with ``self.optimizer``; nothing is run.

        Args:
            data: what ``train_step`` gets; only types and shapes count.

        Returns:
            The variables of layers that the step changes, such as the statistics of layers that ``call`` leaves out;
            None: it makes other updates.
        """
        names: list[str] = []

        def trace(given: Any) -> None:
            # The trace in which metrics make their variables is repeated.
            names.clear()
            graph = tf.compat.v1.get_default_graph()

            def keep(name: str, optimizer: Any, pairs: Any) -> None:
                is_nested = tf.compat.v1.get_default_graph() is not graph
                names.append(f"nested {name}" if is_nested else name)

            self._call(given, keep, is_one_graph=True)

        function = tf.function(trace, autograph=False)
        graph = function.get_concrete_function(tf.nest.map_structure(spec_for_any_count, data)).graph
        if names not in ([], [OWN_OPTIMIZER]):
            return None
        written = {handle for _, handle in find_written_variables(graph)}
        return tuple(
            variable
            for variable in self._layer_variables()
            if id(variable.value.handle) in written and not is_seed_state(variable) and variable.dtype in FLOAT_TYPES
        )

    def find_applied(self, data: Any) -> AppliedStep:
        """Find what a step of the only rank does; nothing is run.

        Args:
            data: what ``train_step`` gets, as tensors; only types and shapes count.
        """
        updates: list[AppliedUpdate] = []
        behind: list[int] = []
        variables = self._model.variables
        positions = {id(variable): at for at, variable in enumerate(variables)}

        def trace(given: Any) -> None:
            # The trace in which metrics make their variables is repeated.
            updates.clear()
            behind.clear()
            graph = tf.compat.v1.get_default_graph()

            def keep(name: str, optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
                trained = [self._find_trained(variable) for _, variable in pairs]
                updates.append(AppliedUpdate(name, tuple(positions[id(variable)] for variable in trained)))
                if tf.compat.v1.get_default_graph() is graph:
                    behind.append(len(graph.get_operations()))

            with capture_losses(self._model) as losses, capture_updates(self.optimizers, keep):
                self._model.train_step(given)
            if losses and not is_of_present_graph(losses[-1].loss):
                behind.clear()

        graph = tf.function(trace, autograph=False).get_concrete_function(data).graph
        after = set(graph.get_operations()[behind[0] :]) if behind else set()
        ignored = {id(v.value.handle) for v in self._model.metrics_variables}
        ignored |= {id(v.value.handle) for v in variables if is_seed_state(v)}
        layers = {id(v.value.handle): v for v in self._layer_variables()}
        written = [each for each in find_written_variables(graph) if each[1] not in ignored]
        is_plain = (
            [each.name for each in updates] in ([], [OWN_OPTIMIZER])
            # Neither the update nor the loss is inside of a function or a condition.
            and len(behind) == len(updates)
            and all(handle in layers and operation not in after for operation, handle in written)
        )
        changed = {handle: layers[handle] for _, handle in written if handle in layers}
        return AppliedStep(tuple(updates), is_plain, tuple(changed.values()))

    def find_updates(self, data: Any) -> tuple[StepUpdate, ...]:
        """Find the updates of a step; nothing is run.

        Args:
            data: what ``train_step`` gets; only types and shapes count.

        Raises:
            BadInputError: the step does what EDL cannot train; the error names it.
        """
        updates: list[StepUpdate] = []

        def trace(segments: SegmentTrace, given: Any) -> None:
            updates.clear()

            def keep(name: str, optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
                self._refuse_nested(segments)
                updates.append(StepUpdate(name, optimizer, tuple(self._find_trained(v) for _, v in pairs)))
                segments.cut([])

            self._call(given, keep)
            segments.end([])

        traced = trace_segments(trace, [tf.nest.map_structure(spec_for_any_count, data)])
        written = [self._find_statistics(segment.graph) for segment in traced.segments]
        if updates and written[-1]:
            raise train_step_error(
                self._model,
                f"changes the variable '{written[-1][0].path}' after its last update",
                CALL_BEFORE,
            )
        return tuple(
            StepUpdate(each.name, each.optimizer, each.trained, changed)
            for each, changed in zip(updates, written, strict=False)
        )

    def refuse_other_losses(self) -> None:
        """Raise the error of a step that uses a loss which is not declared as a mean: updates count by records."""
        raise combination_error(
            self._model,
            "makes several updates and calls compute_loss(), whose loss is not known to be a mean over records",
            "compile() with a loss of keras.losses (reduction='sum_over_batch_size'), or compute a mean in the step",
        )

    def trace(
        self,
        updates: Sequence[StepUpdate],
        begin_segment: Callable[[], None],
        make_results: Callable[[TracedUpdate], Sequence[Any]],
        data: Any,
    ) -> SegmentedTrace:
        """Trace a step with these updates, with a segment for each.

        Args:
            updates: what :meth:`find_updates` found.
            begin_segment: called at the beginning of each segment.
            make_results: returns the results of the segment of an update.
            data: what ``train_step`` gets; only types and shapes count.

        Raises:
            BadInputError: for these types and shapes the step makes other updates.
        """

        def trace(segments: SegmentTrace, given: Any) -> None:
            gradients: list[list[Any]] = []

            def keep(name: str, optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
                self._refuse_nested(segments)
                number = len(gradients)
                trained = tuple(self._find_trained(variable) for _, variable in pairs)
                if number >= len(updates) or (name, _paths(trained)) != (
                    updates[number].name,
                    _paths(updates[number].trained),
                ):
                    raise train_step_error(
                        self._model,
                        f"makes other updates for some minibatches: number {number + 1} is {_describe(name, trained)}",
                        "make the same updates for every type and shape of minibatch",
                    )
                gradients.append([gradient for gradient, _ in pairs])
                if number < len(updates) - 1:
                    segments.cut(make_results(TracedUpdate(number, given, gradients[-1])))
                    begin_segment()

            begin_segment()
            for metric in self._model.metrics:
                # So a returned metric is that of this minibatch.
                metric.reset_state()
            loss = self._call(given, keep)
            if len(gradients) != len(updates):
                raise train_step_error(
                    self._model,
                    f"makes {len(gradients)} updates for some minibatches and {len(updates)} for others",
                    "make the same updates for every type and shape of minibatch",
                )
            segments.end(make_results(TracedUpdate(len(updates) - 1, given, gradients[-1], loss=loss)))

        return trace_segments(trace, [tf.nest.map_structure(spec_for_any_count, data)])

    def _call(self, data: Any, keep: Callable[..., None], *, is_one_graph: bool = False) -> Any:
        """Call ``train_step``; returns its loss, a float32 scalar.

        Args:
            is_one_graph: the trace has no segments, of which a later one may use the loss of an earlier one.
        """
        with capture_losses(self._model) as losses, capture_updates(self.optimizers, keep):
            logs = self._model.train_step(data)
        self.uses_loss = bool(losses)
        if is_one_graph and losses and not is_of_present_graph(losses[-1].loss):
            raise combination_error(
                self._model,
                "calls compute_loss() inside of a condition, a loop of TensorFlow or a tf.function",
                "call it in train_step() itself; @tf.function is not needed",
            )
        step_losses = [losses[-1].loss] if losses else returned_losses(logs)
        if not step_losses:
            raise missing_loss_error(self._model)
        return tf.add_n([tf.reduce_mean(tf.cast(each, tf.float32)) for each in step_losses])

    def _find_trained(self, variable: Any) -> Any:
        trained = self._variables.get(id(variable))
        if trained is None or trained.dtype not in FLOAT_TYPES:
            raise train_step_error(
                self._model,
                f"applies a gradient to '{getattr(variable, 'path', getattr(variable, 'name', variable))}', which is "
                "no trained variable of the model",
                "pass variables of the model's layers",
            )
        return trained

    def _find_statistics(self, graph: Any) -> tuple[Any, ...]:
        """The variables that a segment changes, but for metrics and states of random generators.

        Raises:
            BadInputError: one of them belongs to no layer, or is no float.
        """
        model = self._model
        own = {id(variable) for variable in self._layer_variables()}
        ignored = {id(v.value.handle) for v in model.metrics_variables}
        ignored |= {id(v.value.handle) for v in model.variables if is_seed_state(v)}
        named = {id(v.value.handle): v for v in model.variables}
        named |= {id(v.value.handle): v for each in self.optimizers.values() for v in each.variables}
        statistics: dict[int, Any] = {}
        for operation, handle in find_written_variables(graph):
            if handle in ignored:
                continue
            variable = named.get(handle)
            if variable is None or id(variable) not in own:
                raise train_step_error(
                    self._model,
                    describe_write(operation, getattr(variable, "path", None)),
                    WRITE_REMEDY,
                )
            if variable.dtype not in FLOAT_TYPES:
                raise combination_error(
                    self._model,
                    f"changes the variable '{variable.path}' ({variable.dtype})",
                    "make it a float32 variable: changes of several workers can only be averaged for floats",
                )
            statistics[handle] = variable
        return tuple(statistics.values())

    def _layer_variables(self) -> list[Any]:
        """The variables of layers that no optimizer changes, without those of the model itself, each once."""
        layers = self._model._flatten_layers(include_self=False)
        return list({id(v): v for layer in layers for v in layer._non_trainable_variables}.values())

    def _refuse_nested(self, segments: SegmentTrace) -> None:
        if not segments.is_current:
            raise train_step_error(
                self._model,
                "makes an update inside of a condition, a loop of TensorFlow or a tf.function",
                "call apply() in train_step() itself: the number of updates must not depend on values; @tf.function is "
                f"not needed; {LOCAL_REMEDY}",
            )


def _find_optimizers(model: Any) -> dict[str, Any]:
    """The optimizers of a model by their attribute; each once."""
    optimizers: dict[str, Any] = {}
    # Private ones are Keras' and TensorFlow's own lists of the same objects.
    attributes = {name: value for name, value in vars(model).items() if not name.startswith("_")}
    for name in sorted(attributes, key=lambda name: (name != OWN_OPTIMIZER, name)):
        value = attributes[name]
        parts: Mapping[str, Any] = {name: value}
        if isinstance(value, Mapping):
            parts = {f"{name}/{key}": each for key, each in value.items()}
        elif isinstance(value, list | tuple):
            parts = {f"{name}/{at}": each for at, each in enumerate(value)}
        for path, each in parts.items():
            if isinstance(each, keras.optimizers.Optimizer) and all(each is not other for other in optimizers.values()):
                optimizers[path] = each
    return optimizers


def returned_losses(logs: Any) -> list[Any]:
    """The value ``loss``, or else all whose names end so."""
    if not isinstance(logs, Mapping):
        return []
    return [logs["loss"]] if "loss" in logs else [value for name, value in logs.items() if name.endswith("loss")]


def _paths(variables: Sequence[Any]) -> list[str]:
    return [variable.path for variable in variables]


def _describe(name: str, trained: Sequence[Any]) -> str:
    return f"self.{name} with {len(trained)} variables, from '{trained[0].path}'" if trained else f"self.{name}"
