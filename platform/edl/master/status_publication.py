"""What a master hangs on its board: pages made of its status, of its events and of the files of the run.

While the job runs nothing is read or written for them but memory: a volume that hangs must not hide from people that it
does. Files are read before the first page and for the last.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from edl.api.errors import EdlError, StorageError
from edl.api.events import Event
from edl.api.status import ENDED, Status, Summary
from edl.cluster.status_port import Board
from edl.jobfile import json_object
from edl.jobfile.disruptions import LossCounter
from edl.jobfile.event_json import from_json
from edl.jobfile.problems import SpecError
from edl.jobfile.published_status import EVENTS_KEPT, TIMELINE, Failure, Moment, Publication, extended
from edl.master.final_report import FAILURE, SUMMARY
from edl.storage.run_directory import RunDir, read_json, tail, write_json

log = logging.getLogger(__name__)

PERIOD_SECONDS = 1.0
KEEP_SECONDS = 10.0
"""How often the timeline is kept in the run directory, for the next master."""
_WAITING = ("pending", "asked")
"""States of a worker that has no place yet."""


class Publisher:
    """Safe to use from several threads.

    Args:
        board: where to.
        run: whose earlier events, summary and failure are shown.
    """

    def __init__(self, board: Board, run: RunDir) -> None:
        self._board, self._run = board, run
        self._lock = threading.Lock()
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._losses = LossCounter()
        for event in _told(run):
            self.hear(event)
        self._timeline = _kept(run.path / TIMELINE)

    def hear(self, event: Event) -> None:
        """Show an event, from the next publication on."""
        with self._lock:
            self._events.append(event)
            self._losses.hear(event)

    def tell(self, status: Status) -> None:
        """Publish; to be called every ``PERIOD_SECONDS``. An end is told by ``tell_end``, with what belongs to it."""
        if status.phase not in ENDED:
            self._publish(self._with(status))

    def keep(self) -> None:
        """Keep the timeline in the run directory; may take as long as the disk takes."""
        with self._lock:
            timeline = self._timeline
        try:
            write_json(self._run.path / TIMELINE, [moment.to_json() for moment in timeline])
        except StorageError as error:
            log.warning("%s", error)

    def tell_end(self, status: Status) -> None:
        """Publish for the last time, with what stands in the run directory now."""
        told = self._with(status)
        self.keep()
        summary, failure = _optional(self._run.path / SUMMARY), _optional(self._run.path / FAILURE)
        self._publish(
            replace(
                told,
                summary=None if summary is None else json_object.from_json(Summary, summary, SUMMARY),
                failure=None if failure is None else Failure.from_json(failure, FAILURE),
            )
        )

    def _with(self, status: Status) -> Publication:
        with self._lock:
            self._timeline = extended(self._timeline, moment_of(status))
            return Publication(status, tuple(self._events), self._timeline, losses=self._losses.losses)

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


def _told(run: RunDir) -> Iterator[Event]:
    """What the masters before this one told, as far as it can be read."""
    try:
        for value in tail(run.events).poll():
            yield from_json(value)
    except EdlError as error:  # of another version, or a disk that fails: those that follow are shown
        log.warning("events cannot be shown: %s", error)


def _kept(path: Path) -> Sequence[Moment]:
    """The timeline as the master before this one left it."""
    try:
        return tuple(Moment.from_json(moment, str(path)) for moment in _optional(path) or ())  # type: ignore[attr-defined]
    except (SpecError, StorageError, TypeError) as error:
        log.warning("the timeline begins anew: %s", error)
        return ()


def _optional(path: Path) -> object:
    return read_json(path) if path.exists() else None
