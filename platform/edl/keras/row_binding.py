"""Provides rows to PS-backed Embeddings while the user's model is traced.

A worker looks up rows in two parts. First, a :class:`LookupRecording` finds the ids of every table from a minibatch's
features, and ``edl.numerics.unique_ids`` finds the unique ids and each lookup's position among them. The worker pulls
the rows of the unique ids. Then the step takes the rows from :class:`BoundRows` by position. So ids are compared only
once, outside of the step.

Each thread has its own row provider: one thread may record while another runs steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edl.api.errors import BadInputError
from edl.keras.traced_function import TracedFunction, as_array, find_narrowing_cast, iter_dependencies

# --------------------------------------------------------------------------------------------------
# The error for an Embedding that is too large to stay dense but that the PS cannot store.


class UnsupportedEmbeddingError(BadInputError):
    """An Embedding of at least ``ps.embedding_threshold`` bytes that the PS cannot store."""

    _keras_call_info_injected = True
    """Without this mark, Keras rewrites an error's text at each layer that it passes."""


def unsupported_embedding_error(layer: Any, reason: str, remedy: str | None = None) -> UnsupportedEmbeddingError:
    """The error for an Embedding.

    Args:
        layer: a ``keras.layers.Embedding``.
        reason: a clause that follows a colon.
        remedy: the hint, if a dense table would have the same problem; None: the hint suggests a dense table.
    """
    return UnsupportedEmbeddingError(
        f"the Embedding '{layer.path}' ({describe_embedding(layer)}) cannot be served by the parameter servers:"
        f" {reason}",
        hint=remedy or _dense_table_hint(layer),
    )


def _dense_table_hint(layer: Any) -> str | None:
    size = table_bytes(layer)
    remedy = "change that, or keep the table dense in every worker: ps.embedding_threshold above "
    return f"{remedy}{size:.0f}" if math.isfinite(size) else None


def table_bytes(layer: Any) -> float:
    """Size of an Embedding's table as float32; infinite if its ids have no bound."""
    return math.inf if layer.input_dim is None else 4 * layer.input_dim * layer.output_dim


def describe_embedding(layer: Any) -> str:
    """Rows and columns, as messages show them."""
    return f"{'any id' if layer.input_dim is None else layer.input_dim} x {layer.output_dim}"


class RowProvider(Protocol):
    """Provides the rows of lookups."""

    def provide_rows(self, layer: Any, ids: Any) -> Any:
        """The rows ``[n, dim]`` of int64 ids ``[n]``, for one call of a layer."""


_ROW_PROVIDER: ContextVar[RowProvider | None] = ContextVar("source", default=None)

_UNTRACKED_LAYER = "the model does not track it; make it an attribute of the model or of a layer"


@contextmanager
def using_row_provider(provider: RowProvider) -> Iterator[None]:
    """Let PS-backed layers get their rows from ``provider``, in this context and this thread."""
    token = _ROW_PROVIDER.set(provider)
    try:
        yield
    finally:
        _ROW_PROVIDER.reset(token)


def bound_rows() -> BoundRows | None:
    """The rows of the step that is traced in this context, if it has rows."""
    provider = _ROW_PROVIDER.get()
    return provider if isinstance(provider, BoundRows) else None


def has_row_provider() -> bool:
    """Whether rows are looked up for parameter servers in this context."""
    return _ROW_PROVIDER.get() is not None


def look_up_rows(layer: Any, ids: Any) -> Any:
    """The rows for a call of a layer; zeros without a provider, which is enough to build a model."""
    provider = _ROW_PROVIDER.get()
    return _zero_rows(layer, ids) if provider is None else provider.provide_rows(layer, ids)


def _zero_rows(layer: Any, ids: Any) -> Any:
    return tf.zeros([tf.size(ids), layer.output_dim])


class LookupRecording:
    """Provides zeros, and records the ids of all calls in the graph in which it was created.

    Attributes:
        ids_by_layer: by layer, the ids of its calls in order.
        zero_operations: the operations that created the zeros.
        refusal: the raised error, because a tf.function in the model may raise another one in its place.

    Args:
        layers: the model's PS-backed layers.
    """

    def __init__(self, layers: Iterable[Any]) -> None:
        self.ids_by_layer: dict[Any, list[Any]] = {layer: [] for layer in layers}
        self.zero_operations: set[Any] = set()
        self.refusal: UnsupportedEmbeddingError | None = None
        self._graph = tf.compat.v1.get_default_graph()

    def provide_rows(self, layer: Any, ids: Any) -> Any:
        """Record the ids of a call and return zeros.

        Raises:
            UnsupportedEmbeddingError: the ids cannot be computed outside of the call, or a cast changes them.
        """
        refusal_text = self._unsupported_context(layer) or _vectorized_map_reason(ids) or _narrowing_reason(ids)
        if refusal_text:
            self.refusal = unsupported_embedding_error(layer, *refusal_text)
            raise self.refusal
        self.ids_by_layer[layer].append(ids)
        zeros = _zero_rows(layer, ids)
        self.zero_operations.add(zeros.op)
        return zeros

    def _unsupported_context(self, layer: Any) -> tuple[str, ...] | None:
        if layer not in self.ids_by_layer:
            return (_UNTRACKED_LAYER,)
        if tf.compat.v1.get_default_graph() is not self._graph:
            return ("it is called inside a loop, a tf.cond or a tf.function in the model",)
        return None


def _vectorized_map_reason(ids: Any) -> tuple[str, ...] | None:
    """The reason and the remedy if ids come from ``tf.vectorized_map``.

    It traces its function for a single element, which is a placeholder with a default value.
    """
    if any(operation.type == "PlaceholderWithDefault" for operation in iter_dependencies(ids)):
        return ("it is called inside a vectorized_map", "call it with all elements at once, outside of the map")
    return None


def _narrowing_reason(ids: Any) -> tuple[str, ...] | None:
    """The reason and the remedy if a cast may change ids; a dense table would have the same problem."""
    types = find_narrowing_cast(ids)
    if types is None:
        return None
    return (
        "its ids are cast from {} to {}, which changes larger ids".format(*types),
        f'declare the input as {types[0]}: keras.Input(..., dtype="{types[0]}"), or yield {types[1]} in feed',
    )


class BoundRows:
    """Provides rows by the positions of a recording; calls must come in the same order as in the recording.

    Args:
        pulled_rows: by layer, the positions of all lookups, int32 ``[lookups]``, and the rows, ``[n, dim]``.
    """

    def __init__(self, pulled_rows: Mapping[Any, tuple[Any, Any]]) -> None:
        self.pulled_rows = pulled_rows
        self._next_position: dict[Any, Any] = dict.fromkeys(pulled_rows, 0)

    def provide_rows(self, layer: Any, ids: Any) -> Any:
        """The rows for the next ``tf.size(ids)`` positions; the values of the ids are not used.

        Raises:
            UnsupportedEmbeddingError: the layer was not recorded.
        """
        if layer not in self.pulled_rows:
            raise unsupported_embedding_error(layer, _UNTRACKED_LAYER)
        positions, values = self.pulled_rows[layer]
        start = self._next_position[layer]
        self._next_position[layer] = end = start + tf.size(ids)
        return tf.gather(values, positions[start:end])

    def with_values(self, values: Sequence[Any]) -> BoundRows:
        """The same positions, from the beginning, with other rows, in the order of the layers."""
        layers = zip(self.pulled_rows.items(), values, strict=True)
        return BoundRows({layer: (positions, given) for (layer, (positions, _)), given in layers})


# --------------------------------------------------------------------------------------------------
# The ids that a model looks up in its PS-backed tables, as a function of a minibatch's features.
#
# The model is traced up to its ids. If these are integers of the features, unchanged except for
# their shape, the trace is not run: a call of TensorFlow takes ten times as long as to read them.


Ids = NDArray[np.int64]

_VALUE_PRESERVING_TYPES = frozenset({"Identity", "Reshape", "ExpandDims", "Squeeze"})
"""Operations that preserve values and their order."""


class IdTracer:
    """Computes the ids that a model looks up, from features.

    Args:
        trace_ids: a function of features that is traced; returns the ids of each table's calls as int64 tensors
            ``[n]``.
    """

    def __init__(self, trace_ids: Callable[[Any], Sequence[Sequence[Any]]]) -> None:
        self._traced_ids = TracedFunction(trace_ids)
        self._argument_indices: dict[Any, list[list[int]] | None] = {}

    def __call__(self, features: Any) -> list[Ids]:
        """For each table, the concatenated ids of all calls, ``[lookups]``."""
        trace, leaves = self._traced_ids.find_trace(features)
        if trace not in self._argument_indices:
            self._argument_indices[trace] = _find_argument_indices(trace)
        argument_indices = self._argument_indices[trace]
        if argument_indices is None:
            (inputs,) = tf.nest.pack_sequence_as((features,), leaves)
            return [_concatenate_ids(calls) for calls in trace(inputs)]
        inputs = tf.nest.flatten(leaves, expand_composites=True)
        return [_concatenate_ids([inputs[index] for index in indices]) for indices in argument_indices]


def _concatenate_ids(calls: Sequence[Any]) -> Ids:
    flat = [as_array(ids).reshape(-1) for ids in calls]
    joined = flat[0] if len(flat) == 1 else np.concatenate([np.empty(0, np.int64), *flat])
    return np.asarray(joined, np.int64)


def _find_argument_indices(trace: Any) -> list[list[int]] | None:
    """By table and call, the index of the trace's argument that is the ids; None if some ids are computed."""
    inputs = {id(tensor): index for index, tensor in enumerate(trace.inputs)}
    calls = [[_find_argument_index(ids, inputs) for ids in table] for table in _structured_outputs(trace)]
    return None if any(index is None for table in calls for index in table) else calls  # type: ignore[return-value]


def _structured_outputs(trace: Any) -> Any:
    """The outputs of a trace, nested as its function nests them."""
    return tf.nest.pack_sequence_as(trace.structured_outputs, trace.outputs)


def _find_argument_index(tensor: Any, inputs: dict[int, int]) -> int | None:
    while id(tensor) not in inputs:
        operation = tensor.op
        if operation.type not in _VALUE_PRESERVING_TYPES and not _is_widening_cast(operation):
            return None
        tensor = operation.inputs[0]
    return inputs[id(tensor)]


def _is_widening_cast(operation: Any) -> bool:
    """Whether an operation casts a smaller integer type to int64, which changes no value."""
    return bool(
        operation.type == "Cast"
        and operation.outputs[0].dtype == tf.int64
        and operation.inputs[0].dtype in (tf.int32, tf.int16, tf.int8, tf.uint8)
    )


# --------------------------------------------------------------------------------------------------
# Check that a model's ids depend only on its features.
#
# Rows are pulled before a step runs. So ids must not depend on variables, on looked-up rows or on
# random numbers, and must be the same in training and in evaluation. The check traces the model
# once in each mode and examines the operations that compute the ids; it runs nothing.


def check_id_dependencies(model: Any, layers: Sequence[Any], features: Any) -> None:
    """Refuse a model whose ids depend on more than its features.

    Args:
        model: a built model.
        layers: its PS-backed Embeddings.
        features: nested TensorSpecs (or specs of ragged and sparse tensors).

    Raises:
        UnsupportedEmbeddingError: the ids of an Embedding depend on something else; the error names both.
    """
    evaluation, training = (_IdTrace(model, layers, features, training=mode) for mode in (False, True))
    for layer in layers:
        for trace in (evaluation, training):
            for ids in trace.recording.ids_by_layer[layer]:
                _check_dependencies(layer, ids, trace.recording.zero_operations)
        if evaluation.id_origins(layer) != training.id_origins(layer):
            raise unsupported_embedding_error(layer, "it looks up different ids in training and in evaluation")


class _IdTrace:
    """A model as a graph, up to its ids."""

    def __init__(self, model: Any, layers: Sequence[Any], features: Any, *, training: bool) -> None:
        self.recording: LookupRecording

        def record(given: Any) -> None:
            self.recording = LookupRecording(layers)
            with using_row_provider(self.recording), keras.StatelessScope(collect_losses=True):
                model(given, training=training)

        try:
            self._traced_function = tf.function(record, autograph=False).get_concrete_function(features)
        except Exception as error:
            if self.recording.refusal is None:
                raise
            raise self.recording.refusal from error
        captures = self._traced_function.graph.captures
        self._origin_cache: dict[Any, Any] = {inner.op: ("captured", id(outer)) for outer, inner in captures}

    def id_origins(self, layer: Any) -> list[Any]:
        """For each call, a description of how its ids are computed; equal in two traces if they compute the same."""
        return [self._tensor_origin(ids) for ids in self.recording.ids_by_layer[layer]]

    def _tensor_origin(self, tensor: Any) -> Any:
        operation = tensor.op
        if operation not in self._origin_cache:
            own = operation.name if operation.type == "Placeholder" else ""
            attributes = sorted((name, _attribute_text(value)) for name, value in operation.node_def.attr.items())
            inputs = [self._tensor_origin(value) for value in operation.inputs]
            self._origin_cache[operation] = hash((operation.type, own, tuple(attributes), tuple(inputs)))
        return (self._origin_cache[operation], tensor.value_index)


def _attribute_text(attribute: Any) -> str:
    """An operation's attribute as text; without the numbers that TensorFlow appends to names of loop bodies."""
    return attribute.func.name.rstrip("0123456789") if attribute.HasField("func") else str(attribute)


def _check_dependencies(layer: Any, ids: Any, zero_operations: set[Any]) -> None:
    for operation in iter_dependencies(ids):
        if operation in zero_operations:
            raise unsupported_embedding_error(layer, "its ids depend on rows that were looked up before")
        # The table of a vocabulary is a resource too, but training does not change it.
        if operation.type.startswith("LookupTable"):
            continue
        if any(value.dtype == tf.resource for value in operation.inputs):
            raise unsupported_embedding_error(layer, "its ids depend on variables of the model")
        if operation.op_def.is_stateful:
            raise unsupported_embedding_error(layer, f"its ids depend on more than the features: on a {operation.type}")
