"""Whole tables for an export, each held once: they may be most of a worker's memory.

Keras would draw initial values for a table (three times its size), be assigned others (twice), and copy them twice to
write them. Here the values are computed where the variable then has them, and Keras is shown them, not a copy.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from edl.api.tables import TableSpec
from edl.keras.flat_buffer import Floats, Ids
from edl.keras.row_initializer import initializer_mean
from edl.keras.traced_function import as_array
from edl.layers import Embedding as AnyId
from edl.layers.known_rows import KnownRows, constant_initializer
from edl.numerics import aligned_memory
from edl.numerics.initializers import initial_rows

_CHUNK_ROWS = 1 << 16

RowChunks = Iterable[tuple[Ids, Floats]]


def materialize_table(table: TableSpec, stored: RowChunks) -> Floats:
    """All rows of a served table: as stored, else as they would be initialized."""
    full = aligned_memory.allocate_aligned(table.rows, table.dim)
    for start in range(0, table.rows, _CHUNK_ROWS):
        ids = np.arange(start, min(table.rows, start + _CHUNK_ROWS), dtype=np.int64)
        full[start : start + len(ids)] = initial_rows(table.initializer, table.seed, ids, table.dim)
    for ids, values in stored:
        full[ids] = values
    return full


def collect_known_rows(table: TableSpec, stored: RowChunks) -> KnownRows:
    """The stored rows of a table without a bound, and one for all other ids: the mean of its initial values."""
    chunks = list(stored)
    ids = np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in chunks)])
    ids.sort()
    rows = aligned_memory.allocate_aligned(1 + len(ids), table.dim)
    rows[0] = initializer_mean(table.initializer)
    while chunks:  # each is freed before the next
        some, values = chunks.pop()
        rows[1 + np.searchsorted(ids, some)] = values
    return KnownRows(ids, rows)


@contextmanager
def filling_embeddings(tables: Mapping[str, Floats]) -> Iterator[list[Any]]:
    """Embeddings that are built in here have these values from the start.

    The user's function may make a model more than once (``clone_model``), and only the last one is known when it has
    ended. So each Embedding of a name has its values, all of them in the same memory.

    Args:
        tables: by name of the variable; not to be written to.

    Yields:
        The variables that have values of ``tables``.
    """
    build = keras.layers.Embedding.build
    filled: list[Any] = []

    @functools.wraps(build)
    def build_filled(layer: Any, input_shape: Any = None) -> None:
        if layer.input_dim is None and isinstance(layer, AnyId):  # known_rows has none of this name
            _build_without_rows(layer, input_shape)
            return
        values = tables.get(f"{layer.path}/embeddings")
        if values is None or values.shape != (layer.input_dim, layer.output_dim):
            build(layer, input_shape)
            return
        own = layer.embeddings_initializer
        layer.embeddings_initializer = constant_initializer(values)
        try:
            build(layer, input_shape)
        finally:
            layer.embeddings_initializer = own
        filled.append(layer._embeddings)

    keras.layers.Embedding.build = build_filled
    try:
        yield filled
    finally:
        keras.layers.Embedding.build = build


def _build_without_rows(layer: Any, input_shape: Any) -> None:
    """Build a layer for ids without a bound whose name no trained table has: mostly one of a model that is not kept."""
    layer.known = 0
    AnyId.build(layer, input_shape)


@contextmanager
def saving_without_copies() -> Iterator[None]:
    """Embeddings that are saved in here are copied once, by Keras, where a variable would be twice."""
    save = keras.layers.Embedding.save_own_variables

    @functools.wraps(save)
    def save_views(layer: Any, store: Any) -> None:
        save(layer, _ZeroCopyStore(store))

    keras.layers.Embedding.save_own_variables = save_views
    try:
        yield
    finally:
        keras.layers.Embedding.save_own_variables = save


class _ZeroCopyStore:
    """A store of Keras that is given the memory of float32 variables."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __setitem__(self, key: str, value: Any) -> None:
        if isinstance(value, keras.Variable) and value.dtype == "float32":
            value = as_array(value.value.read_value())
        self._store[key] = value
