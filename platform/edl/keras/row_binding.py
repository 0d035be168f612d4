"""Where served Embeddings get their rows from, while the user's model is traced.

A worker runs the model's look-ups in two parts. First, on a minibatch's features alone, a :class:`LookupRecording`
finds the ids of every table, of which ``edl.numerics.unique_ids`` takes each once and finds for each look-up the
position of its id. The rows of these ids are pulled; then the step, with rows :class:`BoundRows`, takes them by
position. So ids are compared once, away from the step.

The source belongs to the thread that traces: one thread may record while another runs steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import tensorflow as tf

from edl.keras.graph_dependencies import find_narrowing_cast, iter_dependencies
from edl.keras.unsupported_embedding import UnsupportedEmbeddingError, unsupported_embedding_error


class RowProvider(Protocol):
    """Gives rows to look-ups."""

    def rows(self, layer: Any, ids: Any) -> Any:
        """The rows ``[n, dim]`` of flat int64 ids ``[n]``, for a call of a layer."""


_ROW_PROVIDER: ContextVar[RowProvider | None] = ContextVar("source", default=None)

_UNTRACKED_LAYER = "the model does not know it; make it an attribute of the model or of a layer"


@contextmanager
def using_row_provider(source: RowProvider) -> Iterator[None]:
    """In here, in this thread, served layers get their rows from ``source``."""
    token = _ROW_PROVIDER.set(source)
    try:
        yield
    finally:
        _ROW_PROVIDER.reset(token)


def look_up_rows(layer: Any, ids: Any) -> Any:
    """Rows for a call of a layer; zeros where there is no source, which is enough to build a model."""
    source = _ROW_PROVIDER.get()
    return _zero_rows(layer, ids) if source is None else source.rows(layer, ids)


def _zero_rows(layer: Any, ids: Any) -> Any:
    return tf.zeros([tf.size(ids), layer.output_dim])


class LookupRecording:
    """Gives zeros, and keeps the ids of every call in the graph in which it was made.

    Attributes:
        calls: by layer, the ids of its calls in their order.
        given: the operations that made the zeros.
        refused: what was raised, which a tf.function that is called by the model hides in errors of its own.

    Args:
        layers: the model's served layers.
    """

    def __init__(self, layers: Iterable[Any]) -> None:
        self.calls: dict[Any, list[Any]] = {layer: [] for layer in layers}
        self.given: set[Any] = set()
        self.refused: UnsupportedEmbeddingError | None = None
        self._graph = tf.compat.v1.get_default_graph()

    def rows(self, layer: Any, ids: Any) -> Any:
        """As :class:`Source`.

        Raises:
            UnsupportedEmbeddingError: what the layer is called with cannot be known outside of the call, or is not
                what the features say.
        """
        refused = self._unsupported_context(layer) or _vectorized_map_reason(ids) or _narrowing_reason(ids)
        if refused:
            self.refused = unsupported_embedding_error(layer, *refused)
            raise self.refused
        self.calls[layer].append(ids)
        zeros = _zero_rows(layer, ids)
        self.given.add(zeros.op)
        return zeros

    def _unsupported_context(self, layer: Any) -> tuple[str, ...] | None:
        if layer not in self.calls:
            return (_UNTRACKED_LAYER,)
        if tf.compat.v1.get_default_graph() is not self._graph:
            return ("it is called inside of a loop, a tf.cond or a tf.function of the model's",)
        return None


def _vectorized_map_reason(ids: Any) -> tuple[str, ...] | None:
    """What ``tf.vectorized_map`` maps is traced for one element, with a default value in its place."""
    if any(operation.type == "PlaceholderWithDefault" for operation in iter_dependencies(ids)):
        return ("it is called inside of a vectorized_map", "call it on all elements at once, outside of the map")
    return None


def _narrowing_reason(ids: Any) -> tuple[str, ...] | None:
    """Why ids may be looked up that are in no record, and what to do; a dense table would do the same."""
    types = find_narrowing_cast(ids)
    if types is None:
        return None
    return (
        "its ids come as {} and are cut to {} on the way, so that larger ones become others".format(*types),
        f'declare the input as {types[0]}: keras.Input(..., dtype="{types[0]}"), or give {types[1]} in feed',
    )


class BoundRows:
    """Gives rows by the positions that a recording found, call by call in the same order.

    Args:
        pulled: by layer, the positions of all look-ups, int32 ``[lookups]``, and the rows, ``[n, dim]``.
    """

    def __init__(self, pulled: Mapping[Any, tuple[Any, Any]]) -> None:
        self._pulled_rows = pulled
        self._next: dict[Any, Any] = dict.fromkeys(pulled, 0)

    def rows(self, layer: Any, ids: Any) -> Any:
        """As :class:`Source`; of the ids only the number counts.

        Raises:
            UnsupportedEmbeddingError: the layer was not recorded.
        """
        if layer not in self._pulled_rows:
            raise unsupported_embedding_error(layer, _UNTRACKED_LAYER)
        positions, values = self._pulled_rows[layer]
        start = self._next[layer]
        self._next[layer] = end = start + tf.size(ids)
        return tf.gather(values, positions[start:end])
