"""The head of a safetensors file: which arrays it has and where, checked against the file's size; without NumPy.

Nothing that a file says is believed before it fits the file: a header is no longer than the file, arrays lie within it,
follow each other without gaps and are as large as their shapes. So what is read later is never larger than the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from edl.api.errors import StorageError
from edl.core.strict_json import decode_json_file
from edl.storage.durable_files import translate_os_errors

MAX_HEADER_BYTES = 100 << 20
"""Bytes; what the safetensors package itself accepts."""
DTYPE_CODES = {
    "float64": ("F64", 8),
    "float32": ("F32", 4),
    "float16": ("F16", 2),
    "int64": ("I64", 8),
    "int32": ("I32", 4),
    "int16": ("I16", 2),
    "int8": ("I8", 1),
    "uint64": ("U64", 8),
    "uint32": ("U32", 4),
    "uint16": ("U16", 2),
    "uint8": ("U8", 1),
    "bool": ("BOOL", 1),
}
"""By NumPy's name: the format's name and the bytes of an element."""
_DTYPE_NAMES = {code: name for name, (code, _) in DTYPE_CODES.items()}
_MAX_DIMENSIONS = 32
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array in a file.

    Attributes:
        name: in the file.
        dtype: NumPy's name of it; little-endian.
        shape: of the array.
        path: the file.
        start: offset of its first byte in the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    start: int

    @property
    def nbytes(self) -> int:
        """Its bytes in the file."""
        return prod(self.shape) * DTYPE_CODES[self.dtype][1]


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """What a file says of itself."""

    path: Path
    arrays: Mapping[str, StoredArray]
    metadata: Mapping[str, str]


def read_safetensors_header(path: Path) -> SafetensorsHeader:
    """The arrays and the strings that are in ``path``; of the arrays, where they are.

    Raises:
        StorageError: it cannot be read, is not in the format, or is cut off.
    """
    with translate_os_errors(path, "read a checkpoint"), path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if size < _LENGTH_BYTES + length or not 0 < length <= MAX_HEADER_BYTES:
            raise StorageError(f"is not a safetensors file, or cut off: it has {size} bytes", where=str(path))
        text = file.read(length)
    try:
        return _parse_header(path, text, size)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StorageError(f"is not a safetensors file: {error}", where=str(path)) from error


def encode_safetensors_header(
    arrays: Iterable[tuple[str, str, Sequence[int]]], metadata: Mapping[str, str]
) -> memoryview:
    """The header of a file whose arrays follow each other in this order.

    A uint64 length, then JSON padded by spaces so that the data begins at a multiple of 8 bytes.

    Args:
        arrays: name, NumPy's name of the dtype (one of DTYPES), shape.
        metadata: strings stored with the arrays.
    """
    fields: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, dtype, shape in arrays:
        code, width = DTYPE_CODES[dtype]
        end = offset + prod(shape) * width
        fields[name] = {"dtype": code, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return memoryview(len(text).to_bytes(_LENGTH_BYTES, "little") + text)


def _parse_header(path: Path, text: bytes, size: int) -> SafetensorsHeader:
    fields: dict[str, Any] = decode_json_file(text)
    strings = fields.pop("__metadata__", {})
    if not all(isinstance(value, str) for value in strings.values()):
        raise ValueError("its metadata are not strings")
    data = _LENGTH_BYTES + len(text)
    found = sorted(
        (_parse_array_entry(name, field, path, data) for name, field in fields.items()), key=lambda one: one[0].start
    )
    end = data
    for array, array_end in found:
        if array.start != end or array_end != end + array.nbytes:
            raise ValueError(f"array {array.name!r} is not where it should be")
        end = array_end
    if end != size:
        raise StorageError(f"has {size} bytes where its header describes {end}", where=str(path))
    return SafetensorsHeader(path, {array.name: array for array, _ in found}, strings)


def _parse_array_entry(name: str, field: Mapping[str, Any], path: Path, data: int) -> tuple[StoredArray, int]:
    """An array and where it ends."""
    code, shape, (start, end) = field["dtype"], field["shape"], field["data_offsets"]
    if code not in _DTYPE_NAMES:
        raise ValueError(f"array {name!r} is of the type {code!r}, which EDL does not write")
    if len(shape) > _MAX_DIMENSIONS or not all(_is_valid_count(number) for number in (*shape, start, end)):
        raise ValueError(f"array {name!r} has the shape {shape} and the place {[start, end]}")
    return StoredArray(name, _DTYPE_NAMES[code], tuple(shape), path, data + start), data + end


def _is_valid_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
