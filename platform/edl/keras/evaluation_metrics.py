"""Metrics of an evaluation whose records are distributed over workers.

The result of an evaluation task is the state variables of its metrics. The master adds the states of all tasks without
knowing their meaning, and a worker computes the values from the sum. The states of most Keras metrics can be added. A
user's metric may define ``merge_state(self, states)`` instead; ``states`` has one list of arrays (in the order of
``metric.variables``) for each task. A metric without it is first checked with the halves of a minibatch.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl.api.errors import BadInputError
from edl.jobfile.document_tree import closest_match
from edl.keras.model_contract import ModelModule
from edl.keras.model_loss import classification_kind, expand_weights
from edl.keras.out_of_range_ids import refuse_broadcast
from edl.keras.user_code import UserCodeError, source_file, user_code

# --------------------------------------------------------------------------------------------------
# Some metrics create their variables only when they see the first records: Keras' ``F1Score``,
# ``R2Score`` and ``AUC(multi_label=True)``. The worker that computes the values may not have
# evaluated any record, so the types and shapes of the inputs are sent together with the states.


MetricInputs = tuple[Any, ...]
"""Labels, predictions and, for a weighted metric, sample weights."""


def variable_shapes(metric: Any) -> list[tuple[int, ...]]:
    """The shapes of a metric's variables."""
    return [tuple(variable.shape) for variable in metric.variables]


def update_metric(metric: Any, inputs: MetricInputs) -> None:
    """Update a metric with records, and with sample weights if there are any."""
    labels, predictions, *weights = inputs
    if weights:
        metric.update_state(labels, predictions, sample_weight=weights[0])
    else:
        metric.update_state(labels, predictions)


def describe_inputs(inputs: MetricInputs) -> list[Any] | None:
    """The type and shape of each input as JSON, for any number of records; None if an input is not a dense tensor."""
    descriptions = []
    for each in inputs:
        if isinstance(each, dict | list | tuple | tf.RaggedTensor | tf.SparseTensor):
            return None
        tensor = tf.convert_to_tensor(each)
        descriptions.append(
            [tensor.dtype.name, None if tensor.shape.rank is None else [None, *tensor.shape.as_list()[1:]]]
        )
    return descriptions


def create_variables(metric: Any, description: Sequence[Any]) -> None:
    """Create a new metric's variables for the described inputs: traces an update, but does not run it."""
    specs = tuple(tf.TensorSpec(shape, dtype) for dtype, shape in description)
    tf.function(lambda *given: update_metric(metric, given), autograph=False).get_concrete_function(*specs)
    metric.reset_state()


_LOG = logging.getLogger(__name__)

LOSS_NAME = "loss"


@dataclass(frozen=True)
class _MetricEntry:
    """A metric and its inputs.

    Attributes:
        name: the name of its value.
        metric: a ``keras.metrics.Metric``.
        output: the model output that it evaluates; None if it gets all outputs.
        place: the index of that output; None if the model returns outputs by name.
        weighted: whether it gets the sample weights.
        function: the user's function that returned it, as messages name it, and ``where`` its file.
    """

    name: str
    metric: Any
    output: str | None = None
    place: int | None = None
    weighted: bool = False
    function: str = "eval_metrics_fn()"
    where: str | None = None

    @property
    def is_additive(self) -> bool:
        return not hasattr(self.metric, "merge_state")

    def select_inputs(self, labels: Any, predictions: Any, weights: Any = None) -> MetricInputs:
        """Select the metric's inputs from a minibatch."""
        if self.output is not None:
            labels, weights = self._output_part(labels), self._output_part(weights)
            predictions = self._select_prediction(predictions)
        return (labels, predictions, weights) if self.weighted and weights is not None else (labels, predictions)

    def _select_prediction(self, predictions: Any) -> Any:
        if not isinstance(predictions, Mapping):
            if self.place is not None:
                return self._output_part(predictions)
            known, hint = "it returns one without a name", "return {name: metric} without an output"
        elif self.output in predictions:
            return predictions[self.output]
        else:
            names = [str(each) for each in predictions]
            known, close = f"its outputs are {', '.join(names)}", closest_match(str(self.output), names)
            hint = f"did you mean {close}?" if close else "name one of them, or return {name: metric} without an output"
        raise BadInputError(
            f"{self.function} has the metric '{self.name}' for the output '{self.output}', "
            f"which the model lacks: {known}",
            where=self.where,
            hint=hint,
        )

    def _output_part(self, structure: Any) -> Any:
        """The part of a structure for the metric's output; the whole structure if it is not divided by outputs."""
        if isinstance(structure, Mapping):
            return structure.get(self.output, structure)
        return structure[self.place] if self.place is not None and isinstance(structure, list | tuple) else structure


class _AveragedFunction(keras.metrics.MeanMetricWrapper):  # type: ignore[misc]
    """A function of labels and predictions, averaged over records.

    The function returns one value per record, or the mean over the records of a batch.
    """

    def __init__(self, function: Callable[[Any, Any], Any], name: str) -> None:
        super().__init__(self._compute_values, name=name)
        self._function = function
        self.applies_mask = False
        """Whether it leaves out what the predictions' mask leaves out, as a function of ``compile()``."""
        self._ignored_mask_warned = False

    def _compute_values(self, labels: Any, predictions: Any) -> Any:
        function_values = self._function(labels, predictions)
        refuse_broadcast(f"the metric '{self.name}'", self._function, labels, predictions, function_values)
        return function_values

    def update_state(self, labels: Any, predictions: Any, sample_weight: Any = None) -> None:
        if getattr(predictions, "_keras_mask", None) is not None:
            if self.applies_mask:
                super().update_state(labels, predictions, sample_weight)
                return
            self._warn_of_ignored_mask()
        records = tf.cast(count_records(predictions), tf.float32)
        function_values = tf.cast(self._compute_values(labels, predictions), tf.float32)
        # Divide by the sum of weights, as Keras' weighted metrics do.
        if sample_weight is not None:
            values = (
                tf.reduce_mean(tf.reshape(function_values, [records, -1]), -1)
                if function_values.shape.rank
                else function_values
            )
            weights = tf.reshape(expand_weights(sample_weight, values, f"the metric '{self.name}'"), [-1])
            self.total.assign_add(tf.reduce_sum(values * weights))
            self.count.assign_add(tf.reduce_sum(weights))
            return
        self.total.assign_add(tf.reduce_mean(function_values) * records)
        self.count.assign_add(records)

    def _warn_of_ignored_mask(self) -> None:
        if not self._ignored_mask_warned:
            self._ignored_mask_warned = True
            _LOG.warning(
                "the predictions that the metric '%s' gets have a mask, which a function of eval_metrics_fn() does not "
                "apply by itself: exclude padding in it, or return a keras.metrics.Metric, such as "
                "keras.metrics.MeanMetricWrapper(function)",
                self.name,
            )


class _AccuracyByShape(keras.metrics.MeanMetricWrapper):  # type: ignore[misc]
    """``"accuracy"``: the kind depends on the shapes of labels and predictions, as with ``keras.Model.compile``."""

    def __init__(self, name: str) -> None:
        super().__init__(fn=_accuracy_values, name=name)
        # Keras sets this in its own metrics only; monitor callbacks of mode "auto" need it.
        self._direction = "up"


def _accuracy_values(labels: Any, predictions: Any) -> Any:
    kind = classification_kind(tf.convert_to_tensor(labels), predictions)
    functions = {
        "binary": keras.metrics.binary_accuracy,
        "sparse": keras.metrics.sparse_categorical_accuracy,
        "categorical": keras.metrics.categorical_accuracy,
    }
    return functions[kind](labels, predictions)


class EvaluationMetrics:
    """The loss and the user's metrics, with states that can be sent.

    Args:
        entries: the user's metrics.
        make_entries: creates the metrics again, without states.
        module: the user's model module.
    """

    def __init__(
        self,
        entries: tuple[_MetricEntry, ...],
        make_entries: Callable[[], tuple[_MetricEntry, ...]],
        module: ModelModule,
    ) -> None:
        self._loss_metric = _AveragedFunction(lambda _, loss: loss, LOSS_NAME)
        self._entries = entries
        self._make_entries = make_entries
        self._module = module
        self.states_verified = all(
            not entry.is_additive or type(entry.metric) in (_AveragedFunction, _AccuracyByShape) for entry in entries
        )
        self._not_finite_warned = False
        self._initial_shapes = {entry.name: variable_shapes(entry.metric) for entry in entries}
        self._input_descriptions: dict[str, list[Any] | None] = {}
        """The inputs of each metric that has been updated."""

    @classmethod
    def from_module(cls, module: ModelModule, outputs: Sequence[str] = ()) -> EvaluationMetrics:
        """The metrics of a module.

        Args:
            module: the user's model module.
            outputs: the names of the model's outputs, in order.

        Raises:
            BadInputError: ``eval_metrics_fn`` or ``weighted_metrics_fn`` returns neither metrics by name nor a list of
                metrics, or returns a function that cannot be called with labels and predictions.
        """

        def make_entries() -> tuple[_MetricEntry, ...]:
            entries = _collect_entries(module.eval_metrics_fn, outputs)
            names = {entry.name for entry in entries}
            for entry in _collect_entries(module.weighted_metrics_fn, outputs) if module.weighted_metrics_fn else ():
                name = f"weighted_{entry.name}" if entry.name in names else entry.name
                entries.append(replace(entry, name=name, weighted=True))
            for entry in entries:
                if isinstance(entry.metric, _AveragedFunction):
                    entry.metric.applies_mask = module.loss_of_each_output
            return tuple(entries)

        first_entries = make_entries()

        def make_entries_again() -> tuple[_MetricEntry, ...]:
            """Create the metrics again with the same names: Keras would call a second ``AUC()`` ``auc_1``."""
            return tuple(
                replace(entry, name=known.name) for entry, known in zip(make_entries(), first_entries, strict=True)
            )

        return cls(first_entries, make_entries_again, module)

    @property
    def directions(self) -> dict[str, str | None]:
        """By metric, including the loss: whether ``up`` or ``down`` is better, or None if Keras does not know."""
        return {entry.name: getattr(entry.metric, "_direction", None) for entry in self._all_entries()}

    def verify_states_add_up(self, labels: Any, predictions: Any, weights: Any = None) -> None:
        """Check with the halves of a minibatch that the states can be added.

        States that are not finite (for example after training diverged) prove nothing; a later minibatch is checked
        instead.

        Raises:
            BadInputError: the sum of both halves' states differs from the state after both; names the metric.
            UserCodeError: a metric raised an exception; names the metric.
        """
        halves = [_minibatch_half(labels, predictions, weights, half) for half in (0, 1)]
        undecided_entry = None
        for first, second, both in zip(self._make_entries(), self._make_entries(), self._make_entries(), strict=True):
            if not first.is_additive:
                continue
            for entry, half in ((first, 0), (second, 1), (both, 0), (both, 1)):
                self._update_entry(entry, *halves[half])
            # Keep the last undecided metric for the warning. A state that provably does not add up
            # raises instead.
            if not _states_add_up(first, second, both):
                undecided_entry = both
        self.states_verified = undecided_entry is None
        if undecided_entry is not None and not self._not_finite_warned:
            self._not_finite_warned = True
            what = f"the states of the metric '{undecided_entry.name}'" if _are_finite(predictions) else "predictions"
            _LOG.warning("evaluation: %s are not finite; check the learning rate and the records", what)

    def update(self, loss: Any, labels: Any, predictions: Any, weights: Any = None) -> None:
        """Update the metrics with a minibatch; may be called while a graph is traced.

        Raises:
            BadInputError: a function compares each label with every prediction; names the function.
            UserCodeError: a metric raised an exception; names the metric.
        """
        # The mean loss of a minibatch counts for each of its records, so that smaller minibatches
        # at the end of a range do not count for more.
        records = tf.cast(count_records(predictions), tf.float32)
        self._loss_metric.total.assign_add(loss * records)
        self._loss_metric.count.assign_add(records)
        for entry in self._entries:
            self._update_entry(entry, labels, predictions, weights)

    def reset(self) -> None:
        for entry in self._all_entries():
            entry.metric.reset_state()

    def collect_states(self) -> dict[str, Any]:
        """The states as JSON: ``{name: {"additive": bool, "states": [[number, ...], ...]}}``.

        A metric that this worker has never updated may have no variables yet; its list of states is empty. A metric
        that created its variables from records also has their types and shapes as ``given``.
        """
        return {entry.name: self._metric_state(entry) for entry in self._all_entries()}

    def _metric_state(self, entry: _MetricEntry) -> dict[str, Any]:
        if entry.metric is not self._loss_metric and entry.name not in self._input_descriptions:
            return {"additive": entry.is_additive, "states": []}
        state = {"additive": entry.is_additive, "states": [v.ravel().tolist() for v in _variable_values(entry.metric)]}
        shapes_changed = variable_shapes(entry.metric) != self._initial_shapes.get(
            entry.name, variable_shapes(entry.metric)
        )
        return state | ({"given": self._input_descriptions[entry.name]} if shapes_changed else {})

    def compute_values(self, merged: Mapping[str, Any]) -> dict[str, float]:
        """Compute the metric values of merged states.

        A metric with ``merge_state`` has a list with the states of each task.

        Raises:
            BadInputError: the states do not belong to the metric; names the metric.
            UserCodeError: a metric raised an exception; names the metric.
        """
        values_by_name: dict[str, float] = {}
        for entry in (
            _MetricEntry(LOSS_NAME, _AveragedFunction(lambda _, loss: loss, LOSS_NAME)),
            *self._make_entries(),
        ):
            with self._user_metric_code(entry):
                _assign_states(entry, merged[entry.name])
                values_by_name |= _named_numbers(entry.name, entry.metric.result())
        return values_by_name

    def _update_entry(self, entry: _MetricEntry, labels: Any, predictions: Any, weights: Any) -> None:
        inputs = entry.select_inputs(labels, predictions, weights)
        try:
            with self._user_metric_code(entry):
                update_metric(entry.metric, inputs)
        except UserCodeError as error:
            received = f"{entry.function} returned this metric; it received {_describe_shapes(inputs)}"
            hint = f"{error.hint}; {received}" if error.hint else received
            raise UserCodeError(error.message, where=error.where, hint=hint, detail=error.detail) from error
        self._input_descriptions[entry.name] = describe_inputs(inputs)

    def _user_metric_code(self, entry: _MetricEntry) -> AbstractContextManager[None]:
        return user_code(self._module.zoo, f"the metric '{entry.name}'", function=self._module.eval_metrics_fn)

    def _all_entries(self) -> tuple[_MetricEntry, ...]:
        return (_MetricEntry(LOSS_NAME, self._loss_metric), *self._entries)


def _describe_shapes(inputs: MetricInputs) -> str:
    """The shapes of labels, predictions and weights, for messages."""
    names = ("labels", "predictions", "weights")
    return ", ".join(f"{name} {_shape_text(each)}" for name, each in zip(names, inputs, strict=False))


def _shape_text(structure: Any) -> str:
    if isinstance(structure, Mapping):
        return "{" + ", ".join(f"{name}: {_shape_text(each)}" for name, each in structure.items()) + "}"
    if isinstance(structure, list | tuple):
        return f"[{', '.join(map(_shape_text, structure))}]"
    shape = getattr(structure, "shape", None)
    return type(structure).__name__ if shape is None else f"of shape {tuple(shape)}"


def count_records(structure: Any) -> Any:
    """The number of records in a minibatch: the first dimension of its first tensor."""
    return tf.shape(tf.nest.flatten(structure)[0])[0]


def output_names(model: Any) -> tuple[str, ...]:
    """The names of a model's outputs, in order; empty if it has none."""
    # A Sequential model keeps its functional graph, which has the names, in this attribute.
    graph = getattr(model, "_functional", model)
    return tuple(getattr(graph, "output_names", None) or ())


def _collect_entries(metrics_function: Callable[[], Any], outputs: Sequence[str]) -> list[_MetricEntry]:
    """Collect a function's metrics: by name, by output and name, or in lists as for ``keras.Model.compile``."""
    metrics, where = metrics_function(), source_file(metrics_function)
    if isinstance(metrics, list | tuple):
        if len(outputs) < 2 and not any(isinstance(each, list | tuple) for each in metrics):
            return [_entry_from_list_item(each, where) for each in metrics]
        metrics = _lists_by_output(metrics_function, metrics, outputs)
    if not isinstance(metrics, Mapping):
        expected = "expected metrics by name, or a list of them"
        raise BadInputError(
            f"{_function_name(metrics_function)} returned {type(metrics).__name__}, {expected}", where=where
        )
    entries = []
    for name, metric in metrics.items():
        place = outputs.index(name) if name in outputs else None
        if isinstance(metric, Mapping):
            entries += [_make_entry(f"{name}_{inner}", each, where, name, place) for inner, each in metric.items()]
        elif isinstance(metric, list | tuple):
            each_of = [_entry_from_list_item(each, where) for each in metric]
            entries += [replace(entry, name=f"{name}_{entry.name}", output=name, place=place) for entry in each_of]
        else:
            entries.append(_make_entry(name, metric, where))
    function = _function_name(metrics_function)
    return [replace(entry, function=function, where=where) for entry in entries]


def _lists_by_output(
    metrics_function: Callable[[], Any], metric_lists: Sequence[Any], outputs: Sequence[str]
) -> dict[str, Any]:
    """The lists of metrics by the outputs' names."""
    if len(metric_lists) != len(outputs) or not all(isinstance(each, list | tuple) for each in metric_lists):
        raise BadInputError(
            f"{_function_name(metrics_function)} returned a list of {len(metric_lists)} metrics, but the model has "
            f"{len(outputs)} outputs: {', '.join(outputs)}",
            where=source_file(metrics_function),
            hint="return lists by output: {output: [metric, ...]}",
        )
    return dict(zip(outputs, metric_lists, strict=True))


def _function_name(metrics_function: Callable[[], Any]) -> str:
    return f"{getattr(metrics_function, '__name__', 'eval_metrics_fn')}()"


def _entry_from_list_item(metric: Any, where: str | None) -> _MetricEntry:
    """A metric from a list, under its Keras name."""
    if isinstance(metric, str):
        return _make_entry(metric, metric, where)
    name = getattr(metric, "name", None) or getattr(metric, "__name__", None) or type(metric).__name__
    return _make_entry(str(name), metric, where)


def _metric_by_name(name: str, where: str | None) -> Any:
    if name.lower() in ("accuracy", "acc"):
        return _AccuracyByShape(name)
    try:
        metric = keras.metrics.get(name)
    except ValueError as error:
        hint = "use a name from keras.metrics, such as accuracy or AUC"
        raise BadInputError(f"Keras has no metric '{name}'", where=where, hint=hint) from error
    return metric if isinstance(metric, keras.metrics.Metric) else keras.metrics.MeanMetricWrapper(metric, name=name)


def _make_entry(
    name: str, metric: Any, where: str | None, output: str | None = None, place: int | None = None
) -> _MetricEntry:
    if isinstance(metric, str):
        metric = _metric_by_name(metric, where)
    if isinstance(metric, keras.metrics.Metric):
        return _MetricEntry(name, metric, output, place)
    if isinstance(metric, type) and issubclass(metric, keras.metrics.Metric):
        problem = f"is the class {metric.__name__}, expected an instance: {metric.__name__}()"
    elif callable(metric):
        problem = _call_problem(metric)
    else:
        problem = f"is {type(metric).__name__}, expected a keras.metrics.Metric or a function of (labels, predictions)"
    if problem:
        raise BadInputError(f"the metric '{name}' {problem}", where=where)
    return _MetricEntry(name, _AveragedFunction(metric, name), output, place)


def _call_problem(function: Callable[..., Any]) -> str:
    """The reason why the function cannot be called with labels and predictions; empty if it can."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        # Functions built in C have no signature to check.
        return ""
    try:
        signature.bind("labels", "predictions")
    except TypeError as error:
        return f"takes {signature} and cannot be called as (labels, predictions): {error}"
    return ""


def _minibatch_half(labels: Any, predictions: Any, weights: Any, half: int) -> tuple[Any, Any, Any]:
    count = int(count_records(predictions))
    middle = count // 2
    half_slice = slice(None) if count < 2 else (slice(0, middle), slice(middle, None))[half]
    cut = tf.nest.map_structure(lambda tensor: tensor[half_slice], (labels, predictions))
    parts = None if weights is None else tf.nest.map_structure(lambda tensor: tensor[half_slice], weights)
    return cut[0], cut[1], parts


def _states_add_up(first_half: _MetricEntry, second_half: _MetricEntry, whole_batch: _MetricEntry) -> bool:
    """Whether the states of both halves are all finite, and add up to the state of the whole batch.

    Raises:
        BadInputError: finite states do not add up.
    """
    all_finite = True
    for a, b, summed in zip(
        *(_variable_values(entry.metric) for entry in (first_half, second_half, whole_batch)), strict=True
    ):
        with np.errstate(invalid="ignore", over="ignore"):
            added = a + b
        finite = np.isfinite(added) & np.isfinite(summed)
        all_finite = all_finite and bool(finite.all())
        # float32 sums in another order differ slightly; states that cannot be added differ by far
        # more.
        if not np.allclose(added[finite], summed[finite], rtol=1e-3, atol=1e-4):
            raise BadInputError(
                f"the states of the metric '{first_half.name}' ({type(first_half.metric).__name__}) "
                "do not add up over workers",
                hint="define merge_state(self, states) in it: states has one list of arrays for each task",
            )
    return all_finite


def _are_finite(predictions: Any) -> bool:
    tensors = (tf.convert_to_tensor(tensor) for tensor in tf.nest.flatten(predictions, expand_composites=True))
    return all(bool(tf.reduce_all(tf.math.is_finite(tensor))) for tensor in tensors if tensor.dtype.is_floating)


def _variable_values(metric: Any) -> list[Any]:
    return [np.asarray(variable) for variable in metric.variables]


def _assign_states(entry: _MetricEntry, merged: Mapping[str, Any]) -> None:
    """Load merged states into a new metric; without any states, the metric does not change.

    Raises:
        BadInputError: the states do not fit the metric's variables.
    """
    metric = entry.metric
    sets = [states for states in ([merged["states"]] if entry.is_additive else merged["states"]) if states]
    if not sets:
        return
    if merged.get("given"):
        create_variables(metric, merged["given"])
    arrays = [_reshape_states(entry, states) for states in sets]
    if not entry.is_additive:
        metric.merge_state(arrays)
        return
    for variable, value in zip(metric.variables, arrays[0], strict=True):
        variable.assign(value)


def _reshape_states(entry: _MetricEntry, states: Sequence[Any]) -> list[Any]:
    variables = entry.metric.variables
    sizes = [np.size(state) for state in states]
    if sizes != [int(np.prod(shape)) for shape in variable_shapes(entry.metric)]:
        raise BadInputError(
            f"the metric '{entry.name}' ({type(entry.metric).__name__}) has {len(variables)} variables of shapes "
            f"{', '.join(map(str, variable_shapes(entry.metric)))}, but the evaluation returned {len(sizes)} states of "
            f"{', '.join(map(str, sizes))} values",
            hint=(
                "create the metric's variables in its __init__, or derive their shapes only from dense labels and "
                "predictions; eval_metrics_fn() must return the same metrics in all workers"
            ),
        )
    return [np.reshape(s, v.shape).astype(v.dtype) for s, v in zip(states, variables, strict=True)]


def _named_numbers(name: str, result: Any) -> dict[str, float]:
    """A result as numbers by name: a dict or vector (F1Score without averaging) has one number per element."""
    if isinstance(result, Mapping):
        return {f"{name}_{key}": float(value) for key, value in result.items()}
    array = np.asarray(result, np.float64)
    return {name: float(array)} if array.ndim == 0 else {f"{name}_{i}": float(v) for i, v in enumerate(array.ravel())}
