"""Reads a journal: which bytes count, in which order, and which error to report if some are damaged.

Every segment begins with a record that has *counted lengths*: the exact length of each older segment that still counts
(``fence`` in the file). So the newest segment alone determines what is read. Segments that are not listed, and bytes
after a counted length, are ignored: a replaced incarnation wrote them, or a snapshot replaces them. Only the newest
segment may end in a torn record; a bad record anywhere else is damage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from edl.api.errors import StorageError
from edl.core.strict_json import decode_json_file
from edl.storage.durable_files import to_storage_error
from edl.storage.segment_chain import (
    GROUP_START_FLAG,
    HEADER_STRUCT,
    RECORD_STRUCT,
    BadHeaderError,
    BadRecordError,
    SegmentId,
    check_segment_header,
    find_group_start,
    find_record_end,
    list_segments,
)

_DAMAGED_HINT = (
    "The disk lost or changed data that was durable. `--resume RUN --from-checkpoint` of edl run or edl submit goes "
    "back to the newest checkpoint. Or restore a copy of this file."
)


class JournalDamagedError(StorageError):
    """Durable data of the journal is missing or changed."""


@dataclass(frozen=True)
class JournalEntries:
    """The entries of some segments in the order of their LSNs. Every iteration decodes them again, one at a time."""

    _segments: tuple[_SegmentData, ...]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for segment in self._segments:
            yield from segment.decode_entries()

    def __len__(self) -> int:
        return sum(segment.entry_count for segment in self._segments)


@dataclass(frozen=True)
class JournalContent:
    """The content of a journal. It holds the bytes of all segments: drop it when the entries have been applied."""

    snapshot: dict[str, Any] | None
    """State before the first entry; None if the journal was never compacted."""
    entries: JournalEntries
    incarnation: int
    """Highest incarnation that wrote here; 0 for an empty journal."""
    torn_bytes: int
    """Bytes that a crash left at the end of the newest segment: written and never acknowledged."""
    size_bytes: int = 0
    """Bytes of all entries."""
    counted_lengths: Mapping[str, int] = field(default_factory=dict)
    """Name and length in bytes of every segment that was read, oldest first."""


def read_journal(directory: Path) -> JournalContent:
    """Read the journal in ``directory``. Changes nothing, and may run while the journal is written.

    Raises:
        StorageError: a segment is missing, damaged or of another format version; the message has the file and the byte.
    """
    while True:
        segments = list_segments(directory)
        if not segments:
            return JournalContent(None, JournalEntries(()), 0, 0)
        try:
            return _read_segments(directory, segments[-1])
        except FileNotFoundError as error:
            # the same newest segment: no compaction ran, so the file is really missing
            if list_segments(directory)[-1:] == segments[-1:]:
                path = Path(error.filename)
                raise JournalDamagedError(
                    "this journal segment is missing", where=str(path), hint=_DAMAGED_HINT
                ) from error
            # A compaction removed segments while they were read: start again with its snapshot.


@dataclass(frozen=True)
class _SegmentData:
    """The bytes of one file, verified up to ``entries_end``. The entries do not include the opening record."""

    path: Path
    data: memoryview
    opening: dict[str, Any]
    entries_start: int
    entries_end: int
    entry_count: int

    def decode_entries(self) -> Iterator[dict[str, Any]]:
        offset = self.entries_start
        while offset < self.entries_end:
            # lengths were verified when the segment was loaded
            end = offset + RECORD_STRUCT.size + (RECORD_STRUCT.unpack_from(self.data, offset)[0] & ~GROUP_START_FLAG)
            yield _decode_record(self.data, offset, end, self.path)
            offset = end


def _read_segments(directory: Path, newest: SegmentId) -> JournalContent:
    # it lists the older segments, so it is read first
    last = _load_segment(directory, newest, None)
    counted_lengths = _read_counted_lengths(last)
    older = [_load_segment(directory, _segment_id(name, last), length) for name, length in counted_lengths.items()]
    chain = (*older, last)
    return JournalContent(
        snapshot=chain[0].opening.get("snapshot"),
        entries=JournalEntries(chain),
        incarnation=newest.incarnation,
        torn_bytes=len(last.data) - last.entries_end,
        size_bytes=sum(segment.entries_end - segment.entries_start for segment in chain),
        counted_lengths={segment.path.name: segment.entries_end for segment in chain},
    )


def _read_counted_lengths(last: _SegmentData) -> dict[str, int]:
    lengths = last.opening.get("fence")
    if not isinstance(lengths, dict) or not all(isinstance(length, int) for length in lengths.values()):
        raise _damaged_error(last.path, BadRecordError(HEADER_STRUCT.size, "the opening record has no fence"))
    return lengths


def _segment_id(name: str, last: _SegmentData) -> SegmentId:
    segment = SegmentId.parse(name)
    if segment is None:
        raise _damaged_error(
            last.path, BadRecordError(HEADER_STRUCT.size, f"the fence names {name!r}, which is not a segment")
        )
    return segment


def _load_segment(directory: Path, segment: SegmentId, counted_length: int | None) -> _SegmentData:
    """Read one file. All bytes below its counted length must be intact; without one, read up to the torn tail."""
    path = directory / segment.file_name
    data = _read_segment_bytes(path)
    view = memoryview(data)
    try:
        check_segment_header(view, segment, path)
    except BadHeaderError as bad:
        raise JournalDamagedError(bad.message, where=str(path), hint=_DAMAGED_HINT) from None
    limit = len(data) if counted_length is None else counted_length
    # more bytes were counted than there are now: they were durable and are lost
    if limit > len(data):
        raise _damaged_error(path, BadRecordError(len(data), f"the file ends; it was {limit} bytes long"))
    try:
        begin = find_record_end(view, HEADER_STRUCT.size, limit)
    except BadRecordError as bad:
        raise _damaged_error(path, bad) from None
    end, count, bad_record = _scan_intact_records(view, begin, limit)
    # a bad record is a torn tail only in the newest segment, and only if no durable group follows
    # it
    if bad_record is not None and (counted_length is not None or find_group_start(data, end) is not None):
        raise _damaged_error(path, bad_record)
    return _SegmentData(path, view, _decode_record(view, HEADER_STRUCT.size, begin, path), begin, end, count)


def _read_segment_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise to_storage_error(error, path, "read the journal") from error


def _scan_intact_records(view: memoryview, offset: int, limit: int) -> tuple[int, int, BadRecordError | None]:
    """Offset after the last intact record, number of records, and the bad record that ended the scan, if any."""
    count = 0
    try:
        while offset < limit:
            offset = find_record_end(view, offset, limit)
            count += 1
    except BadRecordError as bad:
        return offset, count, bad
    return offset, count, None


def _decode_record(view: memoryview, offset: int, end: int, path: Path) -> dict[str, Any]:
    try:
        value = decode_json_file(bytes(view[offset + RECORD_STRUCT.size : end]))
    except ValueError as error:
        raise _damaged_error(path, BadRecordError(offset, f"a record is not JSON ({error})")) from None
    if not isinstance(value, dict):
        raise _damaged_error(path, BadRecordError(offset, "a record is not a JSON object"))
    return cast("dict[str, Any]", value)


def _damaged_error(path: Path, bad: BadRecordError) -> JournalDamagedError:
    return JournalDamagedError(f"the journal is damaged: {bad}", where=str(path), hint=_DAMAGED_HINT)
