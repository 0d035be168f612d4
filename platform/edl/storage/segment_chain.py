"""Segments of the journal: their format, and writing those of one incarnation."""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edl.api.errors import RefusedError, StorageError
from edl.storage.durable_files import (
    remove_on_error,
    rename_durably,
    sync_directory,
    sync_file,
    to_storage_error,
    translate_os_errors,
    write_all,
)

# --------------------------------------------------------------------------------------------------
# The format of segments (docs/design/0003), little-endian::
#
#     header  magic "EDLJRNL\n" | uint32 format version | uint32 incarnation | uint32 number | uint32 crc32 of these
#     record  uint32 length, bit 31 = first of a group | uint32 crc32 of the payload | payload: a compact JSON object


SEGMENT_MAGIC = b"EDLJRNL\n"
JOURNAL_FORMAT_VERSION = 1
SEGMENT_SUFFIX = ".edlj"
MAX_RECORD_BYTES = 256 << 20
"""Maximum bytes of a payload. A larger length is damage, and is detected before anything is allocated."""

GROUP_START_FLAG = 1 << 31
"""Flag in a record's length: everything before this record was durable before it was written."""

HEADER_STRUCT = struct.Struct("<8sIIII")
RECORD_STRUCT = struct.Struct("<II")
_MIN_PAYLOAD_BYTES = len("{}")  # so that a run of zeros, which a crash may leave, is not read as empty records
_encode_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


@dataclass(frozen=True, order=True)
class SegmentId:
    """Identifies a segment. ``number`` counts from 1 in each incarnation; the order is that of writing."""

    incarnation: int
    number: int

    @property
    def file_name(self) -> str:
        """The file's name, ``<incarnation>-<number>.edlj``."""
        return f"{self.incarnation:06d}-{self.number:06d}{SEGMENT_SUFFIX}"

    @classmethod
    def parse(cls, name: str) -> SegmentId | None:
        """The id in a file's name; None if the file is not a segment."""
        incarnation, dash, number = name.removesuffix(SEGMENT_SUFFIX).partition("-")
        # isdecimal() accepts no sign and no space, unlike int()
        if not (name.endswith(SEGMENT_SUFFIX) and dash and incarnation.isdecimal() and number.isdecimal()):
            return None
        return cls(int(incarnation), int(number))


def list_segments(directory: Path) -> list[SegmentId]:
    """The segments in ``directory``, oldest first; empty if it does not exist."""
    with translate_os_errors(directory, "read the journal"):
        try:
            names = os.listdir(directory)
        except FileNotFoundError:
            return []
    return sorted(segment for name in names if (segment := SegmentId.parse(name)) is not None)


class BadRecordError(Exception):
    """There is no intact record at ``offset``; ``reason`` says why."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"{reason} at byte {offset}")
        self.offset = offset
        self.reason = reason


def encode_record(entry: Mapping[str, Any]) -> bytes:
    """Encode one record: header and payload.

    Raises:
        TypeError, ValueError: ``entry`` is not JSON (NaN and infinities are not), or exceeds MAX_RECORD_BYTES.
    """
    payload = _encode_json(entry).encode()
    if len(payload) > MAX_RECORD_BYTES:
        raise ValueError(f"a journal record of {len(payload)} bytes; the limit is {MAX_RECORD_BYTES}")
    return RECORD_STRUCT.pack(len(payload), zlib.crc32(payload)) + payload


def mark_group_start(record: bytes) -> bytes:
    """The record, marked as the first of a group."""
    return record[:3] + bytes([record[3] | GROUP_START_FLAG >> 24]) + record[4:]


def encode_segment_header(segment: SegmentId) -> bytes:
    """The header of a segment's file."""
    fields = HEADER_STRUCT.pack(SEGMENT_MAGIC, JOURNAL_FORMAT_VERSION, segment.incarnation, segment.number, 0)[:-4]
    return fields + struct.pack("<I", zlib.crc32(fields))


class BadHeaderError(StorageError):
    """The header of a segment is damaged."""


def check_segment_header(data: memoryview, segment: SegmentId, path: Path) -> None:
    """Verify the header of a segment.

    Raises:
        BadHeaderError: it is damaged.
        StorageError: it has another format version (the message has both), or the file was renamed.
    """
    if len(data) < HEADER_STRUCT.size or bytes(data[: len(SEGMENT_MAGIC)]) != SEGMENT_MAGIC:
        raise BadHeaderError("is not a journal segment: its first bytes are damaged", where=str(path))
    _, version, incarnation, number, checksum = HEADER_STRUCT.unpack_from(data)
    if zlib.crc32(data[: HEADER_STRUCT.size - 4]) != checksum:
        raise BadHeaderError("the header of this journal segment is damaged", where=str(path))
    if version != JOURNAL_FORMAT_VERSION:
        raise StorageError(
            f"this journal has format version {version}; this EDL reads version {JOURNAL_FORMAT_VERSION}",
            where=str(path),
            hint="Resume the run with the EDL version that wrote it.",
        )
    if SegmentId(incarnation, number) != segment:
        raise StorageError(
            f"holds segment {SegmentId(incarnation, number).file_name}: the file was renamed", where=str(path)
        )


def find_record_end(data: memoryview, offset: int, limit: int) -> int:
    """The offset after the intact record at ``offset``, which must end at or before ``limit``.

    Raises:
        BadRecordError: the record is truncated, or its length or checksum is wrong.
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
    """The offset of an intact record after ``offset`` that is the first of a group; None if there is none.

    A group is written only when everything before it is durable. So if there is one, the bytes at ``offset`` are
    damaged, and not the torn tail of a crash.
    """
    view = memoryview(data)
    # every payload begins with a brace, so only bytes before a brace can be a record's header
    brace = data.find(b"{", offset + RECORD_STRUCT.size + 1)
    while brace >= 0:
        start = brace - RECORD_STRUCT.size
        if data[start + 3] & GROUP_START_FLAG >> 24:
            try:
                find_record_end(view, start, len(data))
            except BadRecordError:
                pass  # not the start of a record; try the next brace
            else:
                return start
        brace = data.find(b"{", brace + 1)
    return None


class SegmentWriter:
    """Writes one segment, in groups of records that are durable when ``append`` returns."""

    def __init__(self, directory: Path, segment: SegmentId, opening: bytes, entries: bytes = b"") -> None:
        """Create the segment with its opening record and first entries, which are durable before it has its name.

        Args:
            directory: the journal's folder.
            segment: the segment to create.
            opening: the encoded opening record, with the counted lengths and perhaps a snapshot.
            entries: encoded records that follow it.

        Raises:
            StorageError: it cannot be written; no partial file is left.
        """
        self.segment = segment
        self.path = directory / segment.file_name
        first = encode_segment_header(segment) + mark_group_start(opening) + entries
        temporary = self.path.with_suffix(".tmp")
        with translate_os_errors(self.path, "begin a journal segment"), remove_on_error(temporary):
            self._descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                write_all(self._descriptor, first)
                os.fsync(self._descriptor)
                rename_durably(temporary, self.path)
            except BaseException:
                os.close(self._descriptor)
                raise
        self.durable_bytes = len(first)
        """Bytes that are durable."""

    def append(self, group: bytes) -> float:
        """Write ``group`` (one or more records) and make it durable; return the seconds that fdatasync took.

        Raises:
            StorageError: it cannot be written. The group is removed from the file, and ``append`` must not be called
                again: after a failed fdatasync it is unknown which pages are on the disk.
        """
        try:
            write_all(self._descriptor, mark_group_start(group))
            began = time.perf_counter()
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._truncate_to_durable()
            raise to_storage_error(error, self.path, "write the journal") from error
        self.durable_bytes += len(group)
        return time.perf_counter() - began

    def _truncate_to_durable(self) -> None:
        try:
            os.ftruncate(self._descriptor, self.durable_bytes)
        except OSError:
            return  # what remains is a torn tail, which replay ignores; the caller reports the first error

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_CLOCK_TICK_NS = 100_000_000  # coarser than the timestamps of any file system in use


class SegmentChain:
    """Writes the segments of one incarnation. Only one thread may use it at a time."""

    def __init__(self, directory: Path, incarnation: int, counted_lengths: Mapping[str, int], holder: str) -> None:
        """Begin ``incarnation`` after the segments in ``counted_lengths``, which are first made durable so far.

        A killed process leaves bytes in the page cache only. Once they are counted, they must not get lost.

        Raises:
            StorageError: the first segment cannot be written; the journal is unchanged.
        """
        self._directory = directory
        self._directory_name = os.fspath(directory)
        for name in counted_lengths:
            with translate_os_errors(directory / name, "sync the journal"):
                sync_file(directory / name)
        opening = encode_record({"holder": holder, "fence": dict(counted_lengths)})
        self._writer = SegmentWriter(directory, SegmentId(incarnation, 1), opening)
        # time (ns) of the folder's last change for which it was checked that no newer incarnation
        # exists; 0: check it
        self._checked_mtime_ns = 0

    @property
    def incarnation(self) -> int:
        """The incarnation that writes these segments."""
        return self._writer.segment.incarnation

    def append(self, group: bytes) -> float:
        """Make ``group`` (whole records) durable; return the seconds that fdatasync took.

        Raises:
            StorageError: it could not be written, and was removed from the segment.
            RefusedError: a newer incarnation has opened the journal, so ``group`` may never be read.
        """
        seconds = self._writer.append(group)
        self._check_not_replaced()
        return seconds

    def compact(self, opening: bytes) -> None:
        """Begin a segment with ``opening``, an encoded record with a snapshot, then remove all older segments.

        Raises:
            StorageError: something could not be written or removed. The journal is the old segments or the new one.
            RefusedError: a newer incarnation has opened the journal; nothing was removed.
        """
        old = self._writer
        segment = SegmentId(self.incarnation, old.segment.number + 1)
        self._writer = SegmentWriter(self._directory, segment, opening)
        old.close()
        # a newer incarnation may count the old segments: then they must stay
        self._check_not_replaced()
        with translate_os_errors(self._directory, "remove compacted journal segments"):
            for old_segment in list_segments(self._directory):
                if old_segment < segment:
                    (self._directory / old_segment.file_name).unlink(missing_ok=True)
            sync_directory(self._directory)

    def close(self) -> None:
        """Close the open segment. Closing twice does nothing."""
        self._writer.close()

    def _check_not_replaced(self) -> None:
        """Raise if a newer incarnation has opened the journal: then nothing may be acknowledged or removed."""
        try:  # runs once per group, where pathlib and a context manager would cost as much as the system call
            modified = os.stat(self._directory_name).st_mtime_ns
        except OSError as error:
            raise to_storage_error(error, self._directory, "check the journal") from error
        if modified == self._checked_mtime_ns:
            return
        segments = list_segments(self._directory)
        if self._writer.segment not in segments:
            raise StorageError("the journal was removed while it was in use", where=str(self._writer.path))
        if segments[-1].incarnation > self.incarnation:
            raise RefusedError(
                f"incarnation {segments[-1].incarnation} has replaced this one ({self.incarnation})",
                where=str(self._directory),
                hint="Another master runs this job now; this one must exit.",
            )
        # Within one clock tick of the file system, a file may still be created without a new
        # modification time.
        self._checked_mtime_ns = modified if time.time_ns() - modified > _CLOCK_TICK_NS else 0


def remove_unfinished_segments(directory: Path) -> None:
    """Remove segments that a crash left before they had their names.

    Raises:
        StorageError: a file cannot be removed.
    """
    with translate_os_errors(directory, "remove an unfinished journal segment"):
        for path in directory.glob("*.tmp"):
            path.unlink()
