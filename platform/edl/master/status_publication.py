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
from edl.api.events import JobEvent
from edl.api.status import ENDED, Status, Summary
from edl.cluster.status_port import StatusPublisher
from edl.jobfile import section_type
from edl.jobfile.disruptions import DisruptionCounter
from edl.jobfile.document_tree import SpecError
from edl.jobfile.event_json import event_from_json
from edl.jobfile.published_status import (
    MAX_EVENTS,
    TIMELINE_KEY,
    JobFailure,
    PublishedStatus,
    TimelinePoint,
    extend_timeline,
)
from edl.master.final_report import FAILURE_FILE, SUMMARY_FILE
from edl.storage.run_directory import RunDirectory, follow_json_lines, read_json, write_json

log = logging.getLogger(__name__)

PERIOD_SECONDS = 1.0
KEEP_SECONDS = 10.0
"""How often the timeline is kept in the run directory, for the next master."""
_PENDING_STATES = ("pending", "asked")
"""States of a worker that has no place yet."""


class RunPublisher:
    """Safe to use from several threads.

    Args:
        board: where to.
        run: whose earlier events, summary and failure are shown.
    """

    def __init__(self, status_publisher: StatusPublisher, run: RunDirectory) -> None:
        self._status_publisher, self._run = status_publisher, run
        self._lock = threading.Lock()
        self._events: deque[JobEvent] = deque(maxlen=MAX_EVENTS)
        self._losses = DisruptionCounter()
        for event in _earlier_events(run):
            self.hear(event)
        self._timeline = _load_timeline(run.path / TIMELINE_KEY)

    def hear(self, event: JobEvent) -> None:
        """Show an event, from the next publication on."""
        with self._lock:
            self._events.append(event)
            self._losses.hear(event)

    def tell(self, status: Status) -> None:
        """Publish; to be called every ``PERIOD_SECONDS``. An end is told by ``publish_end``.

        With what belongs to it.
        """
        if status.phase not in ENDED:
            self._publish(self._build_publication(status))

    def keep(self) -> None:
        """Keep the timeline in the run directory; may take as long as the disk takes."""
        with self._lock:
            timeline = self._timeline
        try:
            write_json(self._run.path / TIMELINE_KEY, [section_type.to_json(moment) for moment in timeline])
        except StorageError as error:
            log.warning("%s", error)

    def publish_end(self, status: Status) -> None:
        """Publish for the last time, with what stands in the run directory now."""
        publication = self._build_publication(status)
        self.keep()
        summary, failure = _read_optional(self._run.path / SUMMARY_FILE), _read_optional(self._run.path / FAILURE_FILE)
        self._publish(
            replace(
                publication,
                summary=None if summary is None else section_type.from_json(Summary, summary, SUMMARY_FILE),
                failure=None if failure is None else section_type.from_json(JobFailure, failure, FAILURE_FILE),
            )
        )

    def _build_publication(self, status: Status) -> PublishedStatus:
        with self._lock:
            self._timeline = extend_timeline(self._timeline, timeline_point(status))
            return PublishedStatus(status, tuple(self._events), self._timeline, losses=self._losses.losses)

    def _publish(self, publication: PublishedStatus) -> None:
        self._status_publisher.publish(publication.to_configmap_data())


def timeline_point(status: Status) -> TimelinePoint:
    """A status as a point of a plot."""
    pending = sum(worker.state in _PENDING_STATES for worker in status.workers)
    return TimelinePoint(
        time=status.updated,
        workers=len(status.workers) - pending,
        pending=pending,
        samples_per_second=status.samples_per_second,
        records_done=status.records_done,
    )


def _earlier_events(run: RunDirectory) -> Iterator[JobEvent]:
    """What the masters before this one told, as far as it can be read."""
    try:
        for value in follow_json_lines(run.events).poll():
            yield event_from_json(value)
    except EdlError as error:  # of another version, or a disk that fails: those that follow are shown
        log.warning("events cannot be shown: %s", error)


def _load_timeline(path: Path) -> Sequence[TimelinePoint]:
    """The timeline as the master before this one left it."""
    try:
        return tuple(section_type.from_json(TimelinePoint, moment, str(path)) for moment in _read_optional(path) or ())  # type: ignore[attr-defined]
    except (SpecError, StorageError, TypeError) as error:
        log.warning("the timeline begins anew: %s", error)
        return ()


def _read_optional(path: Path) -> object:
    return read_json(path) if path.exists() else None
