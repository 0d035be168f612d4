"""Writes safetensors files part by part, so that no whole array has to be in memory."""

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
from edl.storage.durable_files import remove_on_error, rename_durably, temporary_path, translate_os_errors, write_all
from edl.storage.safetensors_header import DTYPE_CODES, encode_safetensors_header

# --------------------------------------------------------------------------------------------------
# The CRC-32 of concatenated bytes, like zlib's ``crc32_combine``, which Python does not have.
#
# CRC-32 is linear: the checksum of a concatenation is that of the second part, xor the checksum of
# the first part times x^(8n), for n bytes in the second part. Products are of polynomials over
# GF(2) modulo that of the CRC (https://zlib.net/crc_v3.txt).


_MODULUS = 0xEDB88320
"""The polynomial of CRC-32; the lowest bit is the highest power of x."""
_ONE = 1 << 31
_BYTE = _ONE >> 8
"""x^8, which shifts by one byte."""


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
# Checking for free space before the first byte of a checkpoint is written.
#
# The journal is on the same disk. If a checkpoint filled the disk, the master could not write its
# journal, and the job would fail.


RESERVE_BYTES = 16 << 20
RESERVE_SHARE = 0.01
"""Space that is left for the journal: the smaller of both, in bytes and as a share of the file system."""


def ensure_free_space(folder: Path, size: int) -> None:
    """Refuse to write ``size`` bytes to a disk that does not have room for them and the reserve.

    A file system that does not report its size passes; writing then fails if it is full.

    Raises:
        StorageError: there is not enough room; the message has the numbers.
        OSError: the file system cannot be queried.
    """
    disk = os.statvfs(folder)
    total, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
    reserve = min(RESERVE_BYTES, int(total * RESERVE_SHARE))
    if total and size + reserve > free:
        raise StorageError(
            f"no space left on the disk: {size:,} bytes are to be written, {free:,} are free, and {reserve:,} of these "
            "are reserved for the journal",
            where=str(folder),
            hint="Free some space there, or keep fewer checkpoints (checkpoint.keep).",
        )


# --------------------------------------------------------------------------------------------------
# Writing a large file in steps, each of which is synced, instead of syncing everything at the end.
#
# The kernel would keep gigabytes of written data in memory, which counts toward the memory limit of
# a pod. Each new page is allocated and cleared before data is copied into it, which costs more than
# the copy; in a virtual machine that returns unused memory, it also causes a page fault in the
# host. At the end, fsync would have to write everything. In steps, the file uses the memory of one
# step again and again. RocksDB's ``bytes_per_sync`` does the same.


SYNC_STEP_BYTES = 32 << 20
"""Bytes that are written before the first sync."""


class PacedWriter:
    """Writes a new file in synced steps; a context manager.

    Args:
        path: the file; an existing one is overwritten.
        step: bytes after which a sync follows. A single write may be longer.

    Raises:
        OSError: raised by each method as the system reports it; a part may have been written.
    """

    def __init__(self, path: Path, step: int = SYNC_STEP_BYTES) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._step_bytes = step
        self._unsynced_bytes = 0

    def __enter__(self) -> Self:
        """Return the writer, which is open already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file. What was written since the last :meth:`sync` need not be durable."""
        os.close(self._descriptor)

    def write(self, data: memoryview) -> None:
        """Write ``data``, a view of single bytes, after the previous bytes."""
        write_all(self._descriptor, data)
        self._unsynced_bytes += data.nbytes
        if self._unsynced_bytes >= self._step_bytes:
            self.sync()

    def write_at(self, offset: int, data: memoryview) -> None:
        """Write ``data`` at ``offset`` from the beginning, in bytes."""
        os.lseek(self._descriptor, offset, os.SEEK_SET)
        self.write(data)

    def sync(self) -> None:
        """Make everything that was written durable, and free its page cache."""
        os.fsync(self._descriptor)
        self._unsynced_bytes = 0
        if sys.platform == "linux":
            with suppress(OSError):  # only advice: a file system that does not support it keeps the pages
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


AnyArray = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """Name, type and shape of an array to be written.

    Attributes:
        name: name in the file.
        dtype: NumPy's name of the dtype, a key of DTYPE_CODES.
        shape: shape of the whole array.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_CODES:
            raise ValueError(
                f"array {self.name!r} has dtype {self.dtype}; a checkpoint can store {', '.join(DTYPE_CODES)}"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the array in the file."""
        return prod(self.shape) * DTYPE_CODES[self.dtype][1]


def write_array_parts(
    path: Path, arrays: Sequence[ArrayShape], parts: Iterable[tuple[str, AnyArray]], metadata: Mapping[str, str]
) -> tuple[int, int]:
    """Write arrays to ``path`` part by part; return the size and CRC-32 of the file, which is then durable.

    Several processes may write the same file: each has a temporary file of its own, and the last one stays. A part is
    consumed before the next one is requested, so the caller may reuse its buffer. The checksum is computed for each
    array and combined at the end, because parts of different arrays may alternate.

    Args:
        path: the file.
        arrays: the arrays, in their order in the file.
        parts: pairs of an array's name and its next values, in its dtype and in C order.
        metadata: strings stored with the arrays.

    Raises:
        StorageError: the file cannot be written (the disk is full). No partial file is left.
        ValueError: a part does not fit its array, or an array is incomplete.
    """
    header = encode_safetensors_header([(array.name, array.dtype, array.shape) for array in arrays], metadata)
    places = _array_cursors(arrays, header.nbytes)
    temporary = temporary_path(path)
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
    """An array's place in the file: its end, the position of the next values, and the CRC-32 of those before."""

    array: ArrayShape
    position: int
    end: int
    checksum: int = 0

    def write_values(self, file: PacedWriter, values: AnyArray) -> None:
        if values.dtype.name != self.array.dtype:
            raise ValueError(f"array {self.array.name!r} is {self.array.dtype}, and a part of it is {values.dtype}")
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
                raise ValueError(f"array {place.array.name!r} is {place.end - place.position} bytes short")
        file.sync()


# --------------------------------------------------------------------------------------------------
# Whole arrays: written from their own memory, and read without pickle.


def write_array_file(path: Path, arrays: Mapping[str, AnyArray], metadata: Mapping[str, str]) -> tuple[int, int]:
    """Write ``arrays`` to ``path``; return its size in bytes and its CRC-32. The file is then durable.

    The checksum is computed while writing. So there is no second copy in memory, which the writer of the safetensors
    package needs, and no second pass over the file. The arrays must not change meanwhile.

    Raises:
        StorageError: the file cannot be written (the disk is full). No partial file is left.
        ValueError: an array's dtype cannot be stored.
    """
    shapes = [ArrayShape(name, array.dtype.name, array.shape) for name, array in arrays.items()]
    return write_array_parts(path, shapes, arrays.items(), metadata)


def read_array_file(path: Path) -> tuple[dict[str, AnyArray], dict[str, str]]:
    """Read the arrays and strings in ``path``. Each array is a copy.

    Raises:
        StorageError: the file cannot be read, or has another format.
    """
    try:
        with translate_os_errors(path, "read a checkpoint"), safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except SafetensorError as error:
        raise StorageError(f"is not a safetensors file: {error}", where=str(path)) from error


def write_byte_stream(path: Path, parts: Iterable[memoryview]) -> tuple[int, int]:
    """Write ``parts``, views of single bytes, to a new file and sync it; return its size and CRC-32.

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
