"""A file of named arrays whose parts come in any order between arrays: nobody needs a whole array in memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from edl.api.errors import StorageError
from edl.numerics.checksum import crc32
from edl.storage.durable_files import remove_on_error, rename_durably, translate_os_errors, write_all
from edl.storage.safetensors_header import DTYPE_CODES, encode_safetensors_header

# --------------------------------------------------------------------------------------------------
# The CRC-32 of bytes that are put together: zlib's ``crc32_combine``, which Python does not have.
#
# CRC-32 is linear: what the bytes behind add to it does not depend on what stands in front of them, but for the front's
# checksum times x^(8n), a polynomial over GF(2) modulo the CRC's own (https://zlib.net/crc_v3.txt).


_MODULUS = 0xEDB88320
"""Of CRC-32; the highest power of x is the lowest bit."""
_ONE = 1 << 31
_BYTE = _ONE >> 8
"""x^8: one byte further."""


def combine_crc32(first_crc: int, second_crc: int, second_length: int) -> int:
    """The CRC-32 of two concatenated byte strings.

    Args:
        first_crc: CRC-32 of the first.
        second_crc: CRC-32 of the second.
        second_length: length of the second, in bytes.
    """
    return _multiply_polynomials(_raise_polynomial(_BYTE, second_length), first_crc) ^ second_crc


def _multiply_polynomials(one: int, other: int) -> int:
    result = 0
    for bit in range(31, -1, -1):
        if one >> bit & 1:
            result ^= other
        other = other >> 1 ^ (_MODULUS if other & 1 else 0)
    return result


def _raise_polynomial(base: int, exponent: int) -> int:
    result = _ONE
    while exponent:
        if exponent & 1:
            result = _multiply_polynomials(result, base)
        base = _multiply_polynomials(base, base)
        exponent >>= 1
    return result


# --------------------------------------------------------------------------------------------------
# Whether a disk has room for a checkpoint, asked before the first byte is written.
#
# A checkpoint that fills the disk takes the journal with it, and a master that cannot write its journal ends the job.


RESERVE_BYTES = 16 << 20
RESERVE_SHARE = 0.01
"""What is left to the journal: the lesser of both, in bytes and as a share of the file system."""


def ensure_free_space(folder: Path, size: int) -> None:
    """Refuse to write ``size`` bytes to a disk that has not so many and a reserve.

    A file system that does not say how large it is passes: writing will tell.

    Raises:
        StorageError: there is no room; says how much there is.
        OSError: the folder cannot be asked.
    """
    disk = os.statvfs(folder)
    total, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    reserve = min(RESERVE_BYTES, int(total * RESERVE_SHARE))
    if total and size + reserve > free:
        raise StorageError(
            f"no space left on the disk: {size:,} bytes are to be written, {free:,} are free, and {reserve:,} of them "
            "are left to the journal",
            where=str(folder),
            hint="Make room there, or keep fewer checkpoints (checkpoint.keep).",
        )


# --------------------------------------------------------------------------------------------------
# A large file that goes to its disk while it is written, instead of all at once at the end.
#
# Left to the kernel, a file of gigabytes fills as much memory first: of the machine, and in a pod of the pod's limit.
# Each page is allocated and cleared before it is copied to, which costs more than the copy, and in a virtual machine
# that
# gives unused memory back a fault in its host as well. At the end ``fsync`` has all of it to write. Written in steps,
# the
# file needs the memory of one step over and over; this is what RocksDB's ``bytes_per_sync`` is for.


SYNC_STEP_BYTES = 32 << 20
"""Written before the disk is waited for."""


class PacedWriter:
    """A new file, as a context.

    Args:
        path: of the file; what is there already is overwritten.
        step: bytes that are written at most before the disk is waited for, but for a last part that is longer.

    Raises:
        OSError: from each method, as the system reports it; a part may have been written.
    """

    def __init__(self, path: Path, step: int = SYNC_STEP_BYTES) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._step_bytes = step
        self._unsynced_bytes = 0

    def __enter__(self) -> Self:
        """Nothing: it is open already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it; what :meth:`sync` was not called for need not be on the disk."""
        os.close(self._descriptor)

    def write(self, data: memoryview) -> None:
        """Write single bytes where the last ones ended."""
        write_all(self._descriptor, data)
        self._unsynced_bytes += data.nbytes
        if self._unsynced_bytes >= self._step_bytes:
            self.sync()

    def write_at(self, offset: int, data: memoryview) -> None:
        """The same at ``offset``, in bytes from the beginning."""
        os.lseek(self._descriptor, offset, os.SEEK_SET)
        self.write(data)

    def sync(self) -> None:
        """Make everything that was written durable, and free the memory that it took."""
        os.fsync(self._descriptor)
        self._unsynced_bytes = 0
        if sys.platform == "linux":
            with suppress(OSError):  # advice: a file system that does not take it keeps the pages
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


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
    path: Path, arrays: Sequence[ArrayShape], parts: Iterable[tuple[str, AnyArray]], metadata: Mapping[str, str]
) -> tuple[int, int]:
    """Write arrays to ``path`` part by part; return the size and CRC-32 of the file, which is durable by then.

    A part is consumed before the next one is requested, so the caller may reuse its buffer. The checksum is computed
    for each array and combined at the end, because parts of different arrays may alternate.

    Args:
        path: of the file.
        arrays: in the order in which they stand in the file.
        parts: name and the next values of that array, of its dtype, in C order.
        metadata: strings stored with the arrays.

    Raises:
        StorageError: the file cannot be written (the disk is full). No partial file is left.
        ValueError: a part does not fit its array, or an array is incomplete.
    """
    header = encode_safetensors_header([(array.name, array.dtype, array.shape) for array in arrays], metadata)
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
    position: int
    end: int
    checksum: int = 0

    def write_values(self, file: PacedWriter, values: AnyArray) -> None:
        if values.dtype.name != self.array.dtype:
            raise ValueError(f"array {self.array.name!r} is {self.array.dtype}, a part of it is {values.dtype}")
        data = array_bytes(np.asarray(values, values.dtype.newbyteorder("<"), order="C"))
        if self.position + data.nbytes > self.end:
            raise ValueError(f"array {self.array.name!r} has more values than {list(self.array.shape)}")
        file.write_at(self.position, data)
        self.checksum = crc32(data, self.checksum)
        self.position += data.nbytes


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
            places[name].write_values(file, values)
        for place in places.values():
            if place.position != place.end:
                raise ValueError(f"array {place.array.name!r} lacks {place.end - place.position} bytes")
        file.sync()


# --------------------------------------------------------------------------------------------------
# Files of named arrays in the safetensors format, written from the arrays' own memory and read without pickle.


def write_array_file(path: Path, arrays: Mapping[str, AnyArray], metadata: Mapping[str, str]) -> tuple[int, int]:
    """Write ``arrays`` to ``path``, durable under its name when this returns; its size in bytes and its crc32.

    Streamed, with the checksum taken on the way: no second copy in memory (what the package's own writer needs), and
    no second pass over the file. The arrays must not change meanwhile.

    Raises:
        StorageError: it cannot be written (the disk is full); nothing of it is left.
        ValueError: an array's dtype cannot be stored.
    """
    shapes = [ArrayShape(name, array.dtype.name, array.shape) for name, array in arrays.items()]
    return write_array_parts(path, shapes, arrays.items(), metadata)


def read_array_file(path: Path) -> tuple[dict[str, AnyArray], dict[str, str]]:
    """The arrays and the strings in ``path``; each array is a copy of its own.

    Raises:
        StorageError: it cannot be read, or is not in the format.
    """
    try:
        with translate_os_errors(path, "read a checkpoint"), safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except SafetensorError as error:
        raise StorageError(f"is not a safetensors file: {error}", where=str(path)) from error


def write_byte_stream(path: Path, parts: Iterable[memoryview]) -> tuple[int, int]:
    """Write ``parts``, views of single bytes, to a new file and sync it; its size and its crc32.

    Raises:
        OSError: as the system reports it; a part may have been written.
    """
    size = checksum = 0
    with PacedWriter(path) as file:
        for part in parts:
            file.write(part)
            checksum = crc32(part, checksum)
            size += part.nbytes
        file.sync()
    return size, checksum
