"""Files of named arrays in the safetensors format, written from the arrays' own memory and read without pickle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from edl.api.errors import StorageError
from edl.numerics.checksum import crc32
from edl.storage.durable_files import translate_os_errors
from edl.storage.paced_writer import PacedWriter
from edl.storage.safetensors_writer import AnyArray, ArrayShape, write_array_parts


def write_array_file(path: Path, arrays: Mapping[str, AnyArray], meta: Mapping[str, str]) -> tuple[int, int]:
    """Write ``arrays`` to ``path``, durable under its name when this returns; its size in bytes and its crc32.

    Streamed, with the checksum taken on the way: no second copy in memory (what the package's own writer needs), and
    no second pass over the file. The arrays must not change meanwhile.

    Raises:
        StorageError: it cannot be written (the disk is full); nothing of it is left.
        ValueError: an array's dtype cannot be stored.
    """
    shapes = [ArrayShape(name, array.dtype.name, array.shape) for name, array in arrays.items()]
    return write_array_parts(path, shapes, arrays.items(), meta)


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
