"""TFRecord files: how a record lies in them.

A record stands between its length and a checksum, and the length has a checksum as well: ``uint64 length``, ``uint32
masked CRC32C of the length``, the bytes, ``uint32 masked CRC32C of the bytes``, all little-endian
(https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details).
"""

from __future__ import annotations

import struct
from array import array
from functools import cache
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from edl.data.block_file import FoundRecords, FramingError
from edl.data.reader import PackedRecords

_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_HEADER_BYTES = _LENGTH.size + _CHECKSUM.size
_MOST_RECORD_BYTES = 1 << 31
_MASK = 0xA282EAD8
_TRUNCATED = "the file ends within a record"
WRONG_CHECKSUM = "wrong checksum"
"""Why a record cannot be read."""


def masked_crc32c(content: bytes) -> int:
    """CRC32C, rotated and shifted so that a checksum of bytes with checksums does not become trivial."""
    crc: int = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def frame_record(record: bytes) -> bytes:
    """A record as it lies in a file."""
    length = _LENGTH.pack(len(record))
    checksums = (_CHECKSUM.pack(masked_crc32c(part)) for part in (length, record))
    return length + next(checksums) + record + next(checksums)


class TFRecordFormat:
    """See ``block_file.RecordFormat``."""

    name = "tfrecord"
    blocks_at_once = 32

    def find_records(self, content: bytes, *, check: bool) -> FoundRecords:
        """The complete records; a record whose bytes have another checksum is damaged."""
        bounds, too_long = _follow_lengths(content)
        _check_lengths(content, bounds)
        if too_long:
            raise FramingError(bounds[-1], f"its length is {too_long} bytes, at most {_MOST_RECORD_BYTES} are allowed")
        packed = PackedRecords(content, bounds, _HEADER_BYTES, _CHECKSUM.size)
        damaged = _find_damage(packed) if check else ()
        return FoundRecords(packed, bounds[-1], dict.fromkeys(damaged, WRONG_CHECKSUM))

    def complete(self, rest: bytes) -> bytes:
        """A file must end with a whole record."""
        raise FramingError(0, _TRUNCATED)


# --------------------------------------------------------------------------------------------------
# Checksums of all records at once. Python only follows the lengths, because each says where the next one is.


def _follow_lengths(content: bytes) -> tuple[array[int], int]:
    """Bounds of the complete records, if the lengths are right, and a length that is too large or 0."""
    bounds = array("Q", [0])
    length_at, append = _LENGTH.unpack_from, bounds.append
    at, last = 0, len(content) - _HEADER_BYTES
    least = _HEADER_BYTES + _CHECKSUM.size
    while at <= last:
        (length,) = length_at(content, at)
        if length > _MOST_RECORD_BYTES:
            return bounds, length
        at += length + least
        append(at)
    if at > len(content):
        bounds.pop()
    return bounds, 0


def _check_lengths(content: bytes, bounds: array[int]) -> None:
    """Compare the checksums of all lengths, also of a record that is not complete."""
    begins = np.frombuffer(bounds, np.uint64).astype(np.int64)
    begins = begins[begins <= len(content) - _HEADER_BYTES]
    if not begins.size:
        return
    byte_values = np.frombuffer(content, np.uint8)
    tables, of_zeros = _length_tables()
    checksums = np.full(len(begins), of_zeros, np.uint32)
    for place, table in enumerate(tables):
        checksums ^= table[byte_values[begins + place]]
    wrong = np.flatnonzero(_mask(checksums) != _stored_checksums(byte_values, begins + _LENGTH.size))
    if wrong.size:
        raise FramingError(int(begins[wrong[0]]), "its length has a wrong checksum")


def _find_damage(packed: PackedRecords) -> list[int]:
    """Numbers of the records whose bytes have another checksum."""
    count, content = len(packed), packed.payload
    if not count:
        return []
    checksums = np.fromiter(map(google_crc32c.value, packed[:]), np.uint32, count)
    ends = np.frombuffer(packed.bounds, np.uint64)[1:].astype(np.int64)
    stored = _stored_checksums(np.frombuffer(content, np.uint8), ends - packed.tail)
    return np.flatnonzero(_mask(checksums) != stored).tolist()


def _mask(checksums: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    return (checksums >> np.uint32(15) | checksums << np.uint32(17)) + np.uint32(_MASK)


def _stored_checksums(content: npt.NDArray[np.uint8], places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    stored = np.zeros(len(places), np.uint32)
    for byte in range(_CHECKSUM.size):
        stored |= content[places + byte].astype(np.uint32) << np.uint32(8 * byte)
    return stored


@cache
def _length_tables() -> tuple[npt.NDArray[np.uint32], int]:
    """What each byte in each place of a length changes in its CRC32C, ``[8, 256]``, and that of a length of 0.

    A CRC of bytes of one size is that of zeros, changed by each byte independently of the others.
    """
    value: Any = google_crc32c.value
    size = _LENGTH.size
    of_zeros = value(bytes(size))
    tables = [
        [value(bytes(place) + bytes([byte]) + bytes(size - 1 - place)) ^ of_zeros for byte in range(256)]
        for place in range(size)
    ]
    return np.array(tables, np.uint32), of_zeros
