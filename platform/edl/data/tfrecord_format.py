"""TFRecord files: how a record lies in them.

A record stands between its length and a checksum, and the length has a checksum as well: ``uint64 length``, ``uint32
masked CRC32C of the length``, the bytes, ``uint32 masked CRC32C of the bytes``, all little-endian
(https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details).
"""

from __future__ import annotations

import struct
from array import array

import google_crc32c

from edl.data.block_file import FoundRecords, FramingError
from edl.data.reader import PackedRecords

_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_MOST_RECORD_BYTES = 1 << 31
_TRUNCATED = "the file ends within a record"
WRONG_CHECKSUM = "wrong checksum"
"""Why a record cannot be read."""


def masked_crc32c(content: bytes) -> int:
    """CRC32C, rotated and shifted so that a checksum of bytes with checksums does not become trivial."""
    crc: int = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame_record(record: bytes) -> bytes:
    """A record as it lies in a file."""
    length = len(record).to_bytes(8, "little")
    checksums = (_CHECKSUM.pack(masked_crc32c(part)) for part in (length, record))
    return length + next(checksums) + record + next(checksums)


class TFRecordFormat:
    """See ``block_file.RecordFormat``."""

    name = "tfrecord"

    def find_records(self, content: bytes, *, check: bool) -> FoundRecords:
        """The complete records; a record whose bytes have another checksum is damaged."""
        bounds, damaged = array("Q", [0]), dict[int, str]()
        at, size = 0, len(content)
        while size - at >= _HEADER.size:
            length, length_checksum = _HEADER.unpack_from(content, at)
            if masked_crc32c(content[at : at + 8]) != length_checksum:
                raise FramingError(at, "its length has a wrong checksum")
            if length > _MOST_RECORD_BYTES:
                raise FramingError(at, f"its length is {length} bytes, at most {_MOST_RECORD_BYTES} are allowed")
            begin = at + _HEADER.size
            end = begin + length
            if end + _CHECKSUM.size > size:
                break
            if check and masked_crc32c(content[begin:end]) != _CHECKSUM.unpack_from(content, end)[0]:
                damaged[len(bounds) - 1] = WRONG_CHECKSUM
            at = end + _CHECKSUM.size
            bounds.append(at)
        return FoundRecords(PackedRecords(content, bounds, _HEADER.size, _CHECKSUM.size), at, damaged)

    def complete(self, rest: bytes) -> bytes:
        """A file must end with a whole record."""
        raise FramingError(0, _TRUNCATED)
