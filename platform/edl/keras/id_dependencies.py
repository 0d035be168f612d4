"""Whether the ids that a model looks up can be known before a step: whether they follow from its features alone.

Rows are pulled before a step is run, so ids must not depend on variables, on looked-up rows or on chance, and must be
the same in training as in evaluation. The model is traced once in each mode, and what leads to its ids is looked at;
nothing is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from edl.keras.graph_dependencies import iter_dependencies
from edl.keras.row_binding import LookupRecording, using_row_provider
from edl.keras.unsupported_embedding import unsupported_embedding_error


def check_id_dependencies(model: Any, layers: Sequence[Any], features: Any) -> None:
    """Refuse a model that looks up ids which do not follow from its features.

    Args:
        model: built.
        layers: its served Embeddings.
        features: nested TensorSpecs (or specs of ragged and sparse tensors).

    Raises:
        UnsupportedEmbeddingError: says which Embedding it is, and on what its ids depend.
    """
    evaluation, training = (_IdTrace(model, layers, features, training=mode) for mode in (False, True))
    for layer in layers:
        for trace in (evaluation, training):
            for ids in trace.recording.calls[layer]:
                _check_dependencies(layer, ids, trace.recording.given)
        if evaluation.id_origins(layer) != training.id_origins(layer):
            raise unsupported_embedding_error(layer, "it looks up other ids in training than in evaluation")


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
            if self.recording.refused is None:
                raise
            raise self.recording.refused from error
        captures = self._traced_function.graph.captures
        self._origin_cache: dict[Any, Any] = {inner.op: ("captured", id(outer)) for outer, inner in captures}

    def id_origins(self, layer: Any) -> list[Any]:
        """What the ids of each call are made of: equal for two traces in which they are computed alike."""
        return [self._tensor_origin(ids) for ids in self.recording.calls[layer]]

    def _tensor_origin(self, tensor: Any) -> Any:
        operation = tensor.op
        if operation not in self._origin_cache:
            own = operation.name if operation.type == "Placeholder" else ""
            attributes = sorted((name, _attribute_text(value)) for name, value in operation.node_def.attr.items())
            inputs = [self._tensor_origin(value) for value in operation.inputs]
            self._origin_cache[operation] = hash((operation.type, own, tuple(attributes), tuple(inputs)))
        return (self._origin_cache[operation], tensor.value_index)


def _attribute_text(attribute: Any) -> str:
    """An operation's attribute; the functions that TensorFlow makes of loop bodies are numbered anew each time."""
    return attribute.func.name.rstrip("0123456789") if attribute.HasField("func") else str(attribute)


def _check_dependencies(layer: Any, ids: Any, given: set[Any]) -> None:
    for operation in iter_dependencies(ids):
        if operation in given:
            raise unsupported_embedding_error(layer, "its ids depend on rows that were looked up before")
        if operation.type.startswith("LookupTable"):  # of a vocabulary
            continue
        if any(value.dtype == tf.resource for value in operation.inputs):
            raise unsupported_embedding_error(layer, "its ids depend on variables of the model")
        if operation.op_def.is_stateful:
            raise unsupported_embedding_error(layer, f"its ids depend on more than the features: on a {operation.type}")
