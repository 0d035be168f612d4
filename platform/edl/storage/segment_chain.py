"""One incarnation's segments, as its writer sees them: begun, appended to, compacted, and given up when replaced."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from edl.api.errors import RefusedError, StorageError
from edl.storage.durable_files import sync_directory, sync_file, to_storage_error, translate_os_errors
from edl.storage.segment_format import SegmentId, encode_record, list_segments
from edl.storage.segment_writer import SegmentWriter

_CLOCK_TICK_NS = 100_000_000  # ns; coarser than the time stamps of any file system in use


class SegmentChain:
    """Where the journal's writer puts its groups. Used by one thread at a time."""

    def __init__(self, directory: Path, incarnation: int, fence: Mapping[str, int], holder: str) -> None:
        """Begin ``incarnation`` behind the segments and lengths in ``fence``, which is made durable first.

        A killed process leaves bytes that are in the system's memory only; once the fence counts them they must last.

        Raises:
            StorageError: the first segment cannot be written; the journal is as it was.
        """
        self._directory = directory
        self._directory_name = os.fspath(directory)
        for name in fence:
            with translate_os_errors(directory / name, "sync the journal"):
                sync_file(directory / name)
        opening = encode_record({"holder": holder, "fence": dict(fence)})
        self._writer = SegmentWriter(directory, SegmentId(incarnation, 1), opening)
        self._seen = 0  # ns: when the folder had last changed and held no newer incarnation; 0: look at it

    @property
    def incarnation(self) -> int:
        """Whose segments these are."""
        return self._writer.segment.incarnation

    def append(self, group: bytes) -> float:
        """Make ``group`` (whole records) durable; returns the seconds that fdatasync took.

        Raises:
            StorageError: it could not be written; the segment ends where it did before.
            RefusedError: a newer incarnation has read the journal, so ``group`` may never be read.
        """
        seconds = self._writer.append(group)
        self._check_not_replaced()
        return seconds

    def compact(self, opening: bytes) -> None:
        """Begin a segment with ``opening``, an encoded record that holds a snapshot; then remove all older ones.

        Raises:
            StorageError: something could not be written or removed; the old segments or the new one are the journal.
            RefusedError: a newer incarnation has read the journal; nothing was removed.
        """
        old = self._writer
        segment = SegmentId(self.incarnation, old.segment.number + 1)
        self._writer = SegmentWriter(self._directory, segment, opening)
        old.close()
        self._check_not_replaced()
        with translate_os_errors(self._directory, "remove compacted journal segments"):
            for found in list_segments(self._directory):
                if found < segment:
                    (self._directory / found.name).unlink(missing_ok=True)
            sync_directory(self._directory)

    def close(self) -> None:
        """Close the open segment. Closing twice does nothing."""
        self._writer.close()

    def _check_not_replaced(self) -> None:
        """Acknowledge nothing, and remove nothing, once a newer incarnation has read the journal."""
        try:  # once a group: pathlib and a context manager cost as much as the system call
            modified = os.stat(self._directory_name).st_mtime_ns
        except OSError as error:
            raise to_storage_error(error, self._directory, "look at the journal") from error
        if modified == self._seen:
            return
        segments = list_segments(self._directory)
        if self._writer.segment not in segments:
            raise StorageError("the journal was removed while it was written", where=str(self._writer.path))
        if segments[-1].incarnation > self.incarnation:
            raise RefusedError(
                f"incarnation {segments[-1].incarnation} has replaced this one ({self.incarnation})",
                where=str(self._directory),
                hint="Another master runs this job now; this one must end.",
            )
        # Within one tick of the file system's clock another file may still appear without a new time.
        self._seen = modified if time.time_ns() - modified > _CLOCK_TICK_NS else 0


def remove_unfinished_segments(directory: Path) -> None:
    """Remove segments that a crash left before they had their name.

    Raises:
        StorageError: one cannot be removed.
    """
    with translate_os_errors(directory, "remove an unfinished journal segment"):
        for path in directory.glob("*.tmp"):
            path.unlink()
