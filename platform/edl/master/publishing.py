"""What a master hangs on its board: pages made of its status and of the files of the run."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from edl.core.board import Board
from edl.core.errors import EdlError, StorageError
from edl.master.ending import FAILURE, SUMMARY
from edl.spec.event import Event, from_json
from edl.spec.problem import SpecError
from edl.spec.publication import EVENTS_KEPT, TIMELINE, Failure, Moment, Publication, extended
from edl.spec.status import Status, Summary
from edl.store.rundir import RunDir, read_json, tail, write_json

log = logging.getLogger(__name__)

PERIOD_SECONDS = 1.0
KEEP_SECONDS = 10.0
"""How often the timeline is kept in the run directory, for the next master."""
_WAITING = ("pending", "asked")
"""States of a worker that has no place yet."""


class Publisher:
    """Used by one thread at a time.

    Args:
        board: where to.
        run: whose events, summary and failure are shown.
    """

    def __init__(self, board: Board, run: RunDir) -> None:
        self._board, self._run = board, run
        self._tail = tail(run.events)
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._timeline = _kept(run.path / TIMELINE)
        self._published = self._written = float("-inf")

    def tell(self, status: Status) -> None:
        """Publish, unless that was done less than a second ago."""
        if status.updated - self._published >= PERIOD_SECONDS:
            self._add(status)
            self._publish(Publication(status, tuple(self._events), self._timeline))

    def tell_end(self, status: Status) -> None:
        """Publish for the last time, with what stands in the run directory now."""
        self._add(status)
        self._keep(status.updated)
        summary, failure = _optional(self._run.path / SUMMARY), _optional(self._run.path / FAILURE)
        self._publish(
            Publication(
                status,
                tuple(self._events),
                self._timeline,
                None if summary is None else Summary.from_json(summary, SUMMARY),
                None if failure is None else Failure.from_json(failure, FAILURE),
            )
        )

    def _add(self, status: Status) -> None:
        self._published = status.updated
        self._timeline = extended(self._timeline, moment_of(status))
        try:
            for value in self._tail.poll():
                self._events.append(from_json(value))
        except EdlError as error:  # of another version, or a disk that fails: those that follow are shown
            log.warning("events cannot be shown: %s", error)
        if status.updated - self._written >= KEEP_SECONDS:
            self._keep(status.updated)

    def _keep(self, now: float) -> None:
        self._written = now
        try:
            write_json(self._run.path / TIMELINE, [moment.to_json() for moment in self._timeline])
        except StorageError as error:
            log.warning("%s", error)

    def _publish(self, publication: Publication) -> None:
        self._board.publish(publication.to_pages())


def moment_of(status: Status) -> Moment:
    """A status as a point of a plot."""
    pending = sum(worker.state in _WAITING for worker in status.workers)
    return Moment(
        time=status.updated,
        workers=len(status.workers) - pending,
        pending=pending,
        samples_per_second=status.samples_per_second,
        records_done=status.records_done,
    )


def _kept(path: Path) -> Sequence[Moment]:
    """The timeline as the master before this one left it."""
    try:
        return tuple(Moment.from_json(moment, str(path)) for moment in _optional(path) or ())  # type: ignore[attr-defined]
    except (SpecError, StorageError, TypeError) as error:
        log.warning("the timeline begins anew: %s", error)
        return ()


def _optional(path: Path) -> object:
    return read_json(path) if path.exists() else None
