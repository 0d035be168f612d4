"""The rows of a table without a fixed size in an exported model: an array of ids, and a row for each id.

During training there are none, because the rows are on parameter servers. An export sets them with
:func:`provide_known_rows`. A model that is loaded from a file creates variables of the sizes in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray


class KnownRows(NamedTuple):
    """The known rows of one table.

    Ids ``[n]`` int64, ascending; rows ``[1 + n, dim]``, the first for all other ids.
    """

    ids: NDArray[np.int64]
    rows: NDArray[np.float32]


ALIGNMENT = 64
"""Alignment of TensorFlow's tensors in bytes."""

_KNOWN_ROWS: ContextVar[Mapping[str, KnownRows] | None] = ContextVar("known", default=None)


@contextmanager
def provide_known_rows(tables: Mapping[str, KnownRows]) -> Iterator[None]:
    """Give these rows, by layer path, to layers that are built in this context."""
    token = _KNOWN_ROWS.set(tables)
    try:
        yield
    finally:
        _KNOWN_ROWS.reset(token)


def initial_known_rows(path: str, count: int | None, dim: int) -> KnownRows | None:
    """The initial rows of the layer at a path: the provided ones, zeros for the ``count`` of a file, or None."""
    provided = (_KNOWN_ROWS.get() or {}).get(path)
    if provided is not None or count is None:
        return provided
    return KnownRows(np.zeros(count, np.int64), np.zeros((1 + count, dim), np.float32))


def constant_initializer(values: NDArray[Any]) -> Callable[..., Any]:
    """An initializer with fixed values, type and shape.

    Args:
        values: the values. If they are aligned to :data:`ALIGNMENT`, the variable shares their memory, so they must not
            be changed any more.
    """
    # TensorFlow requires aligned memory for a tensor that it does not copy
    if values.ctypes.data % ALIGNMENT:
        return lambda shape, dtype=None: tf.constant(values, dtype, shape)
    return lambda shape, dtype=None: tf.experimental.dlpack.from_dlpack(values.__dlpack__())


def row_positions(known_ids: Any, ids: Any) -> Any:
    """The row index of each id; 0 for ids that are not in ``known_ids``, which are ascending."""
    known_ids, ids = tf.convert_to_tensor(known_ids), tf.cast(ids, tf.int64)
    insertion_points = tf.reshape(tf.searchsorted(known_ids, tf.reshape(ids, [-1])), tf.shape(ids))
    # an insertion point may be beyond the last id: a 0 is appended so that gather() stays in range
    is_known = tf.equal(tf.gather(tf.concat([known_ids, [0]], 0), insertion_points), ids) & (
        insertion_points < tf.size(known_ids)
    )
    return tf.where(is_known, 1 + insertion_points, 0)
