"""Columns of text files as values of the types of ``data.schema``: what CSV and JSON lines share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edl.data.reader import CorruptRange, CorruptRecordError, OnCorrupt

ARROW_TYPES = {
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
}
"""By the names of types in ``data.schema.features``."""


def to_numpy(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """A column without missing values; text as objects of ``bytes``."""
    # Texts of TensorFlow are bytes.
    if pa.types.is_string(column.type):
        return np.array(column.cast(pa.binary()).to_pylist(), dtype=object)
    array: npt.NDArray[Any] = column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(False)
    return array


def report_rows(faults: Mapping[int, tuple[int, str]], source: str, on_corrupt: OnCorrupt | None) -> None:
    """Report corrupt rows in their order.

    Args:
        faults: by the number of the row: a byte offset in the file, and what is wrong.
        source: the file.
        on_corrupt: see ``Reader.read``.

    Raises:
        CorruptRecordError: there is one, and ``on_corrupt`` is None.
    """
    for row, (offset, fault) in sorted(faults.items()):
        corrupt = CorruptRange(source, row, row + 1, None, offset, fault)
        if on_corrupt is None:
            raise CorruptRecordError(corrupt)
        on_corrupt(corrupt)
