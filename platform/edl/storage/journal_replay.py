"""Reading a journal: which bytes count, in which order, and what to say when some are damaged.

Every segment opens with a record that carries a *fence*: the exact length of each older segment that still counts. So
the newest segment alone decides what is read. A segment that the fence does not name, and bytes behind a fenced length,
were written by an incarnation that had been replaced, or are replaced by a snapshot: they never happened. Only the
newest segment may end in a torn record; a bad record anywhere else is damage.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from edl.api.errors import StorageError
from edl.storage.durable_files import storage_error
from edl.storage.segment_format import (
    GROUP,
    HEADER,
    RECORD,
    BadRecord,
    SegmentId,
    check_header,
    group_after,
    record_end,
    segments_in,
)

_DAMAGED = (
    "The disk lost or changed data that was safe. `--resume RUN --from-checkpoint` of edl run or edl submit goes back "
    "to the newest checkpoint; or bring back a copy of this file."
)


class JournalDamagedError(StorageError):
    """What was safe in the journal is not there any more, or not as it was."""


@dataclass(frozen=True)
class Entries:
    """The entries of some segments in the order of their lsn; decoded anew, one at a time, by every iteration."""

    _segments: tuple[_Segment, ...]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for segment in self._segments:
            yield from segment.entries()

    def __len__(self) -> int:
        return sum(segment.count for segment in self._segments)


@dataclass(frozen=True)
class Replay:
    """What a journal says. Holds the bytes of the segments: drop it when its entries have been applied."""

    snapshot: dict[str, Any] | None
    """The state that the entries start from; None when nothing was compacted yet."""
    entries: Entries
    incarnation: int
    """The highest that ever wrote here; 0 for an empty journal."""
    torn_bytes: int
    """Bytes at the end of the newest segment that a crash left behind: written, never acknowledged."""
    size_bytes: int = 0
    """Bytes of all entries."""
    fence: Mapping[str, int] = field(default_factory=dict)
    """Name and length in bytes of every segment that was read, oldest first."""


def replay(directory: Path) -> Replay:
    """Read the journal in ``directory``; changes nothing, and may run while the journal is written.

    Raises:
        StorageError: a segment is missing, of another format version, or damaged; names the file and the byte.
    """
    while True:
        segments = segments_in(directory)
        if not segments:
            return Replay(None, Entries(()), 0, 0)
        try:
            return _read(directory, segments[-1])
        except FileNotFoundError as error:
            if segments_in(directory)[-1:] == segments[-1:]:
                path = Path(error.filename)
                raise JournalDamagedError("this journal segment is missing", where=str(path), hint=_DAMAGED) from error
            # A compaction replaced what was being read: begin again with its snapshot.


@dataclass(frozen=True)
class _Segment:
    """One file's bytes, checked up to ``end``. The opening record is not among the entries."""

    path: Path
    data: memoryview
    opening: dict[str, Any]
    begin: int
    end: int
    count: int

    def entries(self) -> Iterator[dict[str, Any]]:
        offset = self.begin
        while offset < self.end:
            end = offset + RECORD.size + (RECORD.unpack_from(self.data, offset)[0] & ~GROUP)
            yield _decode(self.data, offset, end, self.path)
            offset = end


def _read(directory: Path, newest: SegmentId) -> Replay:
    last = _load(directory, newest, None)
    fence = _fence(last)
    older = [_load(directory, _segment_named(name, last), length) for name, length in fence.items()]
    chain = (*older, last)
    return Replay(
        snapshot=chain[0].opening.get("snapshot"),
        entries=Entries(chain),
        incarnation=newest.incarnation,
        torn_bytes=len(last.data) - last.end,
        size_bytes=sum(segment.end - segment.begin for segment in chain),
        fence={segment.path.name: segment.end for segment in chain},
    )


def _fence(last: _Segment) -> dict[str, int]:
    fence = last.opening.get("fence")
    if not isinstance(fence, dict) or not all(isinstance(length, int) for length in fence.values()):
        raise _damaged(last.path, BadRecord(HEADER.size, "the opening record has no fence"))
    return fence


def _segment_named(name: str, last: _Segment) -> SegmentId:
    segment = SegmentId.parse(name)
    if segment is None:
        raise _damaged(last.path, BadRecord(HEADER.size, f"the fence names {name!r}, which is no segment"))
    return segment


def _load(directory: Path, segment: SegmentId, fenced: int | None) -> _Segment:
    """Read one file: up to its fenced length, where all must be intact, or, without one, up to the torn tail."""
    path = directory / segment.name
    data = _bytes_of(path)
    view = memoryview(data)
    check_header(view, segment, path)
    limit = len(data) if fenced is None else fenced
    if limit > len(data):
        raise _damaged(path, BadRecord(len(data), f"the file ends; it was {limit} bytes long"))
    try:
        begin = record_end(view, HEADER.size, limit)
    except BadRecord as bad:
        raise _damaged(path, bad) from None
    end, count, bad_record = _intact(view, begin, limit)
    if bad_record is not None and (fenced is not None or group_after(data, end) is not None):
        raise _damaged(path, bad_record)
    return _Segment(path, view, _decode(view, HEADER.size, begin, path), begin, end, count)


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise storage_error(error, path, "read the journal") from error


def _intact(view: memoryview, offset: int, limit: int) -> tuple[int, int, BadRecord | None]:
    """Where the intact records from ``offset`` on end, how many they are, and what stands there if not ``limit``."""
    count = 0
    try:
        while offset < limit:
            offset = record_end(view, offset, limit)
            count += 1
    except BadRecord as bad:
        return offset, count, bad
    return offset, count, None


def _decode(view: memoryview, offset: int, end: int, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(bytes(view[offset + RECORD.size : end]))
    except ValueError as error:
        raise _damaged(path, BadRecord(offset, f"a record is not JSON ({error})")) from None
    if not isinstance(value, dict):
        raise _damaged(path, BadRecord(offset, "a record is not a JSON object"))
    return cast("dict[str, Any]", value)


def _damaged(path: Path, bad: BadRecord) -> JournalDamagedError:
    return JournalDamagedError(f"the journal is damaged: {bad}", where=str(path), hint=_DAMAGED)
