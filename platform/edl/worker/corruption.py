"""Records that cannot be read: skipped and counted up to ``data.max_corrupt_records``, an error beyond."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from edl.data.reader import CorruptRange, CorruptRecordError, Reader, Record

_LOG = logging.getLogger(__name__)


class Window(NamedTuple):
    """The records of one step, less ``skipped`` corrupt ones; they are ``[start, …)`` of ``source``."""

    records: Sequence[Record]
    skipped: int = 0
    source: str = ""
    start: int = 0

    def place(self, index: int | None = None) -> str:
        """Where the records are from, for people.

        Args:
            index: of one of them; None stands for all.
        """
        if index is not None and not self.skipped:  # else nobody knows which of them are gone
            return f"record {self.start + index} of {self.source}"
        last = self.start + len(self.records) + self.skipped - 1
        return f"records {self.start} to {last} of {self.source}"


class CorruptRecords:
    """What this process skipped so far. A record that is read again, in the next epoch say, counts once here.

    The master adds up what all workers report; this limit ends a worker that alone finds too many.

    Args:
        limit: ``data.max_corrupt_records``.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen: set[tuple[str, int]] = set()

    def read(self, reader: Reader, source: str, start: int, end: int) -> Window:
        """Records ``[start, end)`` without the corrupt ones.

        Raises:
            CorruptRecordError: there are more corrupt records than allowed.
        """
        if not self._limit:
            return Window(reader.read(source, start, end), 0, source, start)
        skipped = 0

        def skip(corrupt: CorruptRange) -> None:
            nonlocal skipped
            skipped += corrupt.records
            self._count(corrupt)

        records = reader.read(source, start, end, skip)
        return Window(records, skipped, source, start)

    def _count(self, corrupt: CorruptRange) -> None:
        new = {(corrupt.source, index) for index in range(corrupt.start, corrupt.end)} - self._seen
        if new:
            self._seen |= new
            _LOG.warning(
                "%s: records %d to %d are corrupt (%s): skipped, %d of %d allowed so far",
                corrupt.source,
                corrupt.start,
                corrupt.end - 1,
                corrupt.reason,
                len(self._seen),
                self._limit,
            )
        if len(self._seen) > self._limit:
            chunk = {(corrupt.source, index) for index in corrupt.damaged}
            raise CorruptRecordError(corrupt, others=len(self._seen - chunk))
