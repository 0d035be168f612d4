"""Files of named arrays in the safetensors format, written from the arrays' own memory and read without pickle."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from edl.core.errors import StorageError
from edl.store.durable import publish, removed_on_error, translated, write_all

Array = NDArray[np.generic]

_CHUNK = 8 << 20  # bytes read at a time for a checksum
_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


def write_arrays(path: Path, arrays: Mapping[str, Array], meta: Mapping[str, str]) -> tuple[int, int]:
    """Write ``arrays`` to ``path``, durable under its name when this returns; its size in bytes and its crc32.

    Streamed, with the checksum taken on the way: no second copy in memory (what the package's own writer needs), and
    no second pass over the file. The arrays must not change meanwhile.

    Raises:
        StorageError: it cannot be written (the disk is full); nothing of it is left.
        ValueError: an array's dtype cannot be stored.
    """
    stored = {name: _storable(name, array) for name, array in arrays.items()}
    header = _header(stored, meta)
    temporary = path.with_suffix(".tmp")
    with translated(path, "write a checkpoint"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with removed_on_error(temporary):
            written = _stream(temporary, [header, *(_bytes_of(array) for array in stored.values())])
            publish(temporary, path)
    return written


def read_arrays(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays and the strings in ``path``; each array is a copy of its own.

    Raises:
        StorageError: it cannot be read, or is not in the format.
    """
    try:
        with translated(path, "read a checkpoint"), safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except SafetensorError as error:
        raise StorageError(f"is not a safetensors file: {error}", where=str(path)) from error


def crc32_of(path: Path) -> int:
    """The checksum of a whole file.

    Raises:
        StorageError: it cannot be read.
    """
    checksum = 0
    with translated(path, "read a checkpoint"), path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _storable(name: str, array: Array) -> Array:
    if array.dtype.name not in _DTYPES:
        raise ValueError(f"array {name!r} has dtype {array.dtype}; a checkpoint stores {', '.join(_DTYPES)}")
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _header(arrays: Mapping[str, Array], meta: Mapping[str, str]) -> memoryview:
    """safetensors: uint64 length, then JSON padded by spaces so that the data begins at a multiple of 8 bytes."""
    fields: dict[str, object] = {"__metadata__": dict(meta)}
    offset = 0
    for name, array in arrays.items():
        extent = [offset, offset + array.nbytes]
        fields[name] = {"dtype": _DTYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": extent}
        offset += array.nbytes
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return memoryview(len(text).to_bytes(8, "little") + text)


def _stream(path: Path, parts: list[memoryview]) -> tuple[int, int]:
    """Write ``parts`` to a new file and sync it; its size and its crc32."""
    size = checksum = 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for part in parts:
            write_all(descriptor, part)
            checksum = zlib.crc32(part, checksum)
            size += part.nbytes
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return size, checksum
