"""Appending to one segment: a group is durable when ``append`` returns, or the file ends where it ended before."""

from __future__ import annotations

import os
import time
from pathlib import Path

from edl.storage.durable_files import remove_on_error, rename_durably, to_storage_error, translate_os_errors, write_all
from edl.storage.segment_format import SegmentId, encode_segment_header, mark_group_start


class SegmentWriter:
    """The open end of the journal: one file, appended to in groups that are durable when ``append`` returns."""

    def __init__(self, directory: Path, segment: SegmentId, opening: bytes, entries: bytes = b"") -> None:
        """Create the segment with its opening record and first entries, durable before it has its name.

        Args:
            directory: the journal's folder.
            segment: which segment to create.
            opening: the encoded record that holds the fence, and the snapshot where there is one.
            entries: encoded records that follow it at once.

        Raises:
            StorageError: it cannot be written; nothing of it is left.
        """
        self.segment = segment
        self.path = directory / segment.name
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
        self.length = len(first)
        """Bytes that are durable."""

    def append(self, group: bytes) -> float:
        """Write ``group`` (one or more records) and make it durable; returns the seconds that fdatasync took.

        Raises:
            StorageError: it cannot be written; the file ends where it ended before, and must not be appended to again.
        """
        try:
            write_all(self._descriptor, mark_group_start(group))
            began = time.perf_counter()
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._truncate_to_durable()
            raise to_storage_error(error, self.path, "write the journal") from error
        self.length += len(group)
        return time.perf_counter() - began

    def _truncate_to_durable(self) -> None:
        try:
            os.ftruncate(self._descriptor, self.length)
        except OSError:
            return  # the remains are a torn tail, which replay ignores; the error that led here is the one to report

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
