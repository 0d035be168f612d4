"""The header of a safetensors file: names, types and places of its arrays. It needs no NumPy.

The header is checked against the file before it is used: it is not longer than the file, and arrays lie within the
file, follow each other without gaps and have the sizes of their shapes. So nothing that is read or allocated later can
be larger than the file.
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
"""Maximum length of a header in bytes: the limit of the safetensors package."""
DTYPE_CODES = {
    "float64": ("F64", 8),
    "float32": ("F32", 4),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
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
"""The format's name of a dtype and the bytes of an element, by NumPy's name."""
_DTYPE_NAMES = {code: name for name, (code, _) in DTYPE_CODES.items()}
_MAX_DIMENSIONS = 32
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array in a file.

    Attributes:
        name: name in the file.
        dtype: NumPy's name of the dtype; little-endian.
        shape: shape of the array.
        path: the file.
        start: offset of the first byte in the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    start: int

    @property
    def nbytes(self) -> int:
        """Bytes of the array in the file."""
        return prod(self.shape) * DTYPE_CODES[self.dtype][1]


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """The header of one file."""

    path: Path
    arrays: Mapping[str, StoredArray]
    metadata: Mapping[str, str]


def read_safetensors_header(path: Path) -> SafetensorsHeader:
    """Read the header of ``path``: its strings, and the places of its arrays.

    Raises:
        StorageError: the file cannot be read, has another format, or is truncated.
    """
    with translate_os_errors(path, "read a checkpoint"), path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        # checked before the header is read: a damaged length must not be allocated
        if size < _LENGTH_BYTES + length or not 0 < length <= MAX_HEADER_BYTES:
            raise StorageError(f"is not a safetensors file, or is truncated: it has {size} bytes", where=str(path))
        text = file.read(length)
    try:
        return _parse_header(path, text, size)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StorageError(f"is not a safetensors file: {error}", where=str(path)) from error


def encode_safetensors_header(
    arrays: Iterable[tuple[str, str, Sequence[int]]], metadata: Mapping[str, str]
) -> memoryview:
    """The header of a file in which the arrays follow each other in this order.

    It is a uint64 length, then JSON, padded with spaces so that the data begins at a multiple of 8 bytes.

    Args:
        arrays: name, NumPy's name of the dtype (a key of DTYPE_CODES), shape.
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
        raise ValueError("its metadata values are not strings")
    data = _LENGTH_BYTES + len(text)
    entries = sorted(
        (_parse_array_entry(name, field, path, data) for name, field in fields.items()), key=lambda one: one[0].start
    )
    end = data
    for array, array_end in entries:
        # no gaps and no overlaps, as the format demands: no two arrays share bytes
        if array.start != end or array_end != end + array.nbytes:
            raise ValueError(f"array {array.name!r} does not follow the previous array, or has a wrong size")
        end = array_end
    if end != size:
        raise StorageError(f"has {size} bytes, its header describes {end}", where=str(path))
    return SafetensorsHeader(path, {array.name: array for array, _ in entries}, strings)


def _parse_array_entry(name: str, field: Mapping[str, Any], path: Path, data: int) -> tuple[StoredArray, int]:
    """An array and its end."""
    code, shape, (start, end) = field["dtype"], field["shape"], field["data_offsets"]
    if code not in _DTYPE_NAMES:
        raise ValueError(f"array {name!r} has the type {code!r}, which EDL does not write")
    if len(shape) > _MAX_DIMENSIONS or not all(_is_valid_count(number) for number in (*shape, start, end)):
        raise ValueError(f"array {name!r} has the shape {shape} and the place {[start, end]}")
    return StoredArray(name, _DTYPE_NAMES[code], tuple(shape), path, data + start), data + end


def _is_valid_count(value: object) -> bool:
    # bool is a subclass of int in Python, and JSON's true is no count.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
