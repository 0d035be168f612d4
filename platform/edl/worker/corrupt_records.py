"""Records that cannot be read: skipped and counted up to ``data.max_corrupt_records``, an error beyond."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from edl.data.reader import CorruptRange, CorruptRecordError, Reader, Record

if TYPE_CHECKING:
    from edl.data.shuffled_reader import ShuffledReader

_LOG = logging.getLogger(__name__)


class RecordWindow(NamedTuple):
    """The records of one step, less ``skipped`` corrupt ones; they are ``[start, …)`` of ``source``.

    ``named``: they are at positions ``[start, …)`` of a shuffled order, and this says which records positions are.
    """

    records: Sequence[Record]
    skipped: int = 0
    source: str = ""
    start: int = 0
    named: Callable[[int, int], str] | None = None

    def place(self, index: int | None = None) -> str:
        """Where the records are from, for people.

        Args:
            index: of one of them; None stands for all.
        """
        if index is not None and not self.skipped:  # else nobody knows which of them are gone
            at = self.start + index
            return f"record {at} of {self.source}" if self.named is None else self.named(at, at + 1)
        if self.named is not None:
            return self.named(self.start, self.start + len(self.records) + self.skipped)
        last = self.start + len(self.records) + self.skipped - 1
        return f"records {self.start} to {last} of {self.source}"


class CorruptRecordSkipper:
    """What this process skipped so far. A record that is read again, in the next epoch say, counts once here.

    The master adds up what all workers report; this limit ends a worker that alone finds too many.

    Args:
        limit: ``data.max_corrupt_records``.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen: set[tuple[str, int]] = set()
        self._told: set[tuple[str, range]] = set()

    def read(self, reader: Reader, source: str, start: int, end: int) -> RecordWindow:
        """Records ``[start, end)`` without the corrupt ones.

        Raises:
            CorruptRecordError: there are more corrupt records than allowed.
        """
        if not self._limit:
            return RecordWindow(reader.read(source, start, end), 0, source, start)
        skipped: list[CorruptRange] = []
        records = reader.read(source, start, end, partial(self._skip, skipped))
        return RecordWindow(records, sum(corrupt.records for corrupt in skipped), source, start)

    def read_shuffled(self, reader: ShuffledReader, epoch: int, start: int, end: int) -> RecordWindow:
        """The records at positions ``[start, end)`` of an epoch's shuffled order, without the corrupt ones.

        Raises:
            CorruptRecordError: there are more corrupt records than allowed.
        """
        skipped: list[CorruptRange] = []
        records = reader.read(epoch, start, end, partial(self._skip, skipped) if self._limit else None)
        return RecordWindow(records, len(skipped), "", start, partial(reader.name, epoch))

    def _skip(self, skipped: list[CorruptRange], corrupt: CorruptRange) -> None:
        skipped.append(corrupt)
        self._count(corrupt)

    def _count(self, corrupt: CorruptRange) -> None:
        new = {(corrupt.source, index) for index in range(corrupt.start, corrupt.end)} - self._seen
        if new:
            self._seen |= new
            # The records of a damaged chunk come one by one when they are shuffled: one line for all of them is enough.
            alone = corrupt.records == 1 < len(corrupt.damaged)
            place = (corrupt.source, corrupt.damaged)
            _LOG.log(
                logging.DEBUG if alone and place in self._told else logging.WARNING,
                "%s: records %d to %d are corrupt (%s): skipped, %d of %d allowed so far",
                corrupt.source,
                corrupt.damaged[0] if alone else corrupt.start,
                corrupt.damaged[-1] if alone else corrupt.end - 1,
                corrupt.reason,
                len(self._seen),
                self._limit,
            )
            self._told.add(place)
        if len(self._seen) > self._limit:
            chunk = {(corrupt.source, index) for index in corrupt.damaged}
            raise CorruptRecordError(corrupt, others=len(self._seen - chunk))
