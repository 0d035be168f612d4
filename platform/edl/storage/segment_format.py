"""The journal's files, byte by byte (docs/design/0003): names, headers, and records.

Layout, little-endian::

    header  magic "EDLJRNL\\n" | uint32 format version | uint32 incarnation | uint32 number | uint32 crc32 of these
    record  uint32 length, bit 31 = begins a group | uint32 crc32 of the payload | payload: a compact JSON object
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edl.api.errors import StorageError
from edl.storage.durable_files import translate_os_errors

SEGMENT_MAGIC = b"EDLJRNL\n"
JOURNAL_FORMAT_VERSION = 1
SEGMENT_SUFFIX = ".edlj"
MAX_RECORD_BYTES = 256 << 20
"""Bytes of the largest payload; a longer length is damage, and is found before anything is allocated."""

GROUP_START_FLAG = 1 << 31
"""Flag in a record's length: everything in front of this record was durable before it was written."""

HEADER_STRUCT = struct.Struct("<8sIIII")
RECORD_STRUCT = struct.Struct("<II")
_MIN_PAYLOAD_BYTES = len("{}")  # also keeps a run of zeros, as a crash may leave it, from passing for empty records
_encode_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


@dataclass(frozen=True, order=True)
class SegmentId:
    """Which segment: ``number`` counts from 1 within an incarnation; the order is that of writing."""

    incarnation: int
    number: int

    @property
    def name(self) -> str:
        """The file's name, ``<incarnation>-<number>.edlj``."""
        return f"{self.incarnation:06d}-{self.number:06d}{SEGMENT_SUFFIX}"

    @classmethod
    def parse(cls, name: str) -> SegmentId | None:
        """The id that a file's name tells, or None for a file that is no segment."""
        incarnation, dash, number = name.removesuffix(SEGMENT_SUFFIX).partition("-")
        if not (name.endswith(SEGMENT_SUFFIX) and dash and incarnation.isdecimal() and number.isdecimal()):
            return None
        return cls(int(incarnation), int(number))


def list_segments(directory: Path) -> list[SegmentId]:
    """The segments in ``directory``, oldest first; none when it does not exist."""
    with translate_os_errors(directory, "read the journal"):
        try:
            names = os.listdir(directory)
        except FileNotFoundError:
            return []
    return sorted(found for name in names if (found := SegmentId.parse(name)) is not None)


class BadRecordError(Exception):
    """No intact record stands at ``offset``; ``reason`` says what is there instead."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"{reason} at byte {offset}")
        self.offset = offset
        self.reason = reason


def encode_record(entry: Mapping[str, Any]) -> bytes:
    """One record: header and payload.

    Raises:
        TypeError, ValueError: ``entry`` is not JSON (NaN and infinities are not), or is larger than MAX_RECORD.
    """
    payload = _encode_json(entry).encode()
    if len(payload) > MAX_RECORD_BYTES:
        raise ValueError(f"a journal record of {len(payload)} bytes; the limit is {MAX_RECORD_BYTES}")
    return RECORD_STRUCT.pack(len(payload), zlib.crc32(payload)) + payload


def mark_group_start(record: bytes) -> bytes:
    """The same record, marked as the first of a group."""
    return record[:3] + bytes([record[3] | GROUP_START_FLAG >> 24]) + record[4:]


def encode_segment_header(segment: SegmentId) -> bytes:
    """The first bytes of the file."""
    fields = HEADER_STRUCT.pack(SEGMENT_MAGIC, JOURNAL_FORMAT_VERSION, segment.incarnation, segment.number, 0)[:-4]
    return fields + struct.pack("<I", zlib.crc32(fields))


def check_segment_header(data: memoryview, segment: SegmentId, path: Path) -> None:
    """Make sure that ``data`` begins as ``segment`` must.

    Raises:
        StorageError: damaged, of another format version (both are named), or a file under a wrong name.
    """
    if len(data) < HEADER_STRUCT.size or bytes(data[: len(SEGMENT_MAGIC)]) != SEGMENT_MAGIC:
        raise StorageError("is not a journal segment: its first bytes are damaged", where=str(path))
    _, version, incarnation, number, checksum = HEADER_STRUCT.unpack_from(data)
    if zlib.crc32(data[: HEADER_STRUCT.size - 4]) != checksum:
        raise StorageError("the header of this journal segment is damaged", where=str(path))
    if version != JOURNAL_FORMAT_VERSION:
        raise StorageError(
            f"this journal has format version {version}; this EDL reads version {JOURNAL_FORMAT_VERSION}",
            where=str(path),
            hint="Resume the run with the EDL version that wrote it.",
        )
    if SegmentId(incarnation, number) != segment:
        raise StorageError(
            f"holds segment {SegmentId(incarnation, number).name}: the file was renamed", where=str(path)
        )


def find_record_end(data: memoryview, offset: int, limit: int) -> int:
    """The offset behind the intact record at ``offset``, which must end at or before ``limit``.

    Raises:
        BadRecordError: the record is cut off, or its length or checksum is wrong.
    """
    if offset + RECORD_STRUCT.size > limit:
        raise BadRecordError(offset, "a record header is cut off")
    length, checksum = RECORD_STRUCT.unpack_from(data, offset)
    length &= ~GROUP_START_FLAG
    if not _MIN_PAYLOAD_BYTES <= length <= MAX_RECORD_BYTES:
        raise BadRecordError(offset, f"a record claims {length} bytes")
    end: int = offset + RECORD_STRUCT.size + length
    if end > limit:
        raise BadRecordError(offset, "a record is cut off")
    if zlib.crc32(data[offset + RECORD_STRUCT.size : end]) != checksum:
        raise BadRecordError(offset, "a record's checksum is wrong")
    return end


def find_group_start(data: bytes, offset: int) -> int | None:
    """The offset of an intact record behind ``offset`` that begins a group, or None.

    There is one only when what stands at ``offset`` was once durable: then it is damage, not the tail of a crash.
    """
    view = memoryview(data)
    brace = data.find(b"{", offset + RECORD_STRUCT.size + 1)
    while brace >= 0:
        start = brace - RECORD_STRUCT.size
        if data[start + 3] & GROUP_START_FLAG >> 24:
            try:
                find_record_end(view, start, len(data))
            except BadRecordError:
                pass  # not the start of a record; look on
            else:
                return start
        brace = data.find(b"{", brace + 1)
    return None
