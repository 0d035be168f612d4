"""What the values of stored arrays are like, read a piece at a time: memory does not grow with the array."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from edl.storage.durable_files import translate_os_errors
from edl.storage.safetensors_header import StoredArray
from edl.storage.safetensors_writer import AnyArray

PIECE_ELEMENTS = 1 << 20
"""Elements that are looked at together."""


@dataclass(frozen=True, slots=True)
class ArrayStatistics:
    """Of the values of one array or of several.

    Attributes:
        count: of values.
        minimum, mean, maximum: of the finite ones; None if there is none.
        nan: values that are not a number.
        infinite: values that are.
    """

    count: int
    minimum: float | None
    mean: float | None
    maximum: float | None
    nan: int
    infinite: int


def map_stored_array(array: StoredArray) -> AnyArray:
    """A stored array as a view of its file, of which only what is used is read.

    Raises:
        StorageError: the file is gone.
    """
    if not array.nbytes:
        return np.empty(array.shape, array.dtype)
    dtype = np.dtype(array.dtype).newbyteorder("<")
    with translate_os_errors(array.path, "read a checkpoint"):
        return np.memmap(array.path, dtype, mode="r", offset=array.start, shape=array.shape)


def compute_statistics(
    arrays: Iterable[StoredArray], on_read: Callable[[int], None] = lambda _: None
) -> ArrayStatistics:
    """Of all values of ``arrays`` together.

    Args:
        arrays: of any shape and type.
        on_read: told the bytes of each piece that was looked at.

    Raises:
        StorageError: a file is gone.
    """
    count = nan = infinite = 0
    total, low, high = 0.0, np.inf, -np.inf
    for piece in (piece for array in arrays for piece in _iter_pieces(array)):
        values = piece.astype(np.float64)
        finite = values[np.isfinite(values)]
        missing = int(np.isnan(values).sum())
        count, nan, infinite = count + values.size, nan + missing, infinite + values.size - finite.size - missing
        if finite.size:
            total, low, high = total + float(finite.sum()), min(low, finite.min()), max(high, finite.max())
        on_read(piece.nbytes)
    known = count - nan - infinite
    if not known:
        return ArrayStatistics(count, None, None, None, nan, infinite)
    return ArrayStatistics(count, float(low), total / known, float(high), nan, infinite)


def _iter_pieces(array: StoredArray) -> Iterator[AnyArray]:
    flat = map_stored_array(array).reshape(-1)
    for start in range(0, flat.size, PIECE_ELEMENTS):
        yield flat[start : start + PIECE_ELEMENTS]
