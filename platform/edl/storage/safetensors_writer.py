"""A file of named arrays whose parts come in any order between arrays: nobody needs a whole array in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edl.numerics.checksum import crc32
from edl.storage.crc32_combine import combine_crc32
from edl.storage.durable_files import remove_on_error, rename_durably, translate_os_errors
from edl.storage.free_space import ensure_free_space
from edl.storage.paced_writer import PacedWriter
from edl.storage.safetensors_header import DTYPE_CODES, encode_safetensors_header

AnyArray = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """An array that is to be written.

    Attributes:
        name: in the file.
        dtype: NumPy's name of it, one of DTYPES.
        shape: of the whole array.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_CODES:
            raise ValueError(
                f"array {self.name!r} has dtype {self.dtype}; a checkpoint stores {', '.join(DTYPE_CODES)}"
            )

    @property
    def nbytes(self) -> int:
        """Its bytes in the file."""
        return prod(self.shape) * DTYPE_CODES[self.dtype][1]


def write_array_parts(
    path: Path, arrays: Sequence[ArrayShape], parts: Iterable[tuple[str, AnyArray]], meta: Mapping[str, str]
) -> tuple[int, int]:
    """Write arrays to ``path`` as their parts come, durable under its name when this returns; its size and its crc32.

    A part is used before the next one is asked for, and not afterwards. The checksum is taken on the way: of each array
    by itself, put together at the end.

    Args:
        path: of the file.
        arrays: in the order in which they stand in the file.
        parts: name and the next values of that array, of its dtype, in C order.
        meta: strings kept beside the arrays.

    Raises:
        StorageError: it cannot be written (the disk is full); nothing of it is left.
        ValueError: a part is not of its array, or an array is not complete.
    """
    header = encode_safetensors_header([(array.name, array.dtype, array.shape) for array in arrays], meta)
    places = _array_cursors(arrays, header.nbytes)
    temporary = path.with_suffix(".tmp")
    with translate_os_errors(path, "write a checkpoint"):
        path.parent.mkdir(parents=True, exist_ok=True)
        ensure_free_space(path.parent, header.nbytes + sum(array.nbytes for array in arrays))
        with remove_on_error(temporary):
            _write_file(temporary, header, places, parts)
            rename_durably(temporary, path)
    size, checksum = header.nbytes, crc32(header)
    for place in places.values():
        size, checksum = size + place.array.nbytes, combine_crc32(checksum, place.checksum, place.array.nbytes)
    return size, checksum


def array_bytes(array: AnyArray) -> memoryview:
    """The bytes of a C-ordered array, without a copy."""
    return array.reshape(-1).view(np.uint8).data


@dataclass(slots=True)
class _ArrayCursor:
    """An array's part of the file: where it ends, where the next values go, and the crc32 of those before."""

    array: ArrayShape
    at: int
    end: int
    checksum: int = 0

    def write(self, file: PacedWriter, values: AnyArray) -> None:
        if values.dtype.name != self.array.dtype:
            raise ValueError(f"array {self.array.name!r} is {self.array.dtype}, a part of it is {values.dtype}")
        data = array_bytes(np.asarray(values, values.dtype.newbyteorder("<"), order="C"))
        if self.at + data.nbytes > self.end:
            raise ValueError(f"array {self.array.name!r} has more values than {list(self.array.shape)}")
        file.write_at(self.at, data)
        self.checksum = crc32(data, self.checksum)
        self.at += data.nbytes


def _array_cursors(arrays: Sequence[ArrayShape], start: int) -> dict[str, _ArrayCursor]:
    places: dict[str, _ArrayCursor] = {}
    for array in arrays:
        places[array.name] = _ArrayCursor(array, start, start + array.nbytes)
        start += array.nbytes
    return places


def _write_file(
    path: Path, header: memoryview, places: Mapping[str, _ArrayCursor], parts: Iterable[tuple[str, AnyArray]]
) -> None:
    with PacedWriter(path) as file:
        file.write(header)
        for name, values in parts:
            places[name].write(file, values)
        for place in places.values():
            if place.at != place.end:
                raise ValueError(f"array {place.array.name!r} lacks {place.end - place.at} bytes")
        file.sync()
