"""Publishes the status, events and files of a run to the status ConfigMap.

While the job runs, only data in memory is published: a hanging volume must not hide from users that
it hangs. Files are read only before the first and for the last publication. The final report of a
run (its last event, summary and failure) is written here too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from edl.api.errors import EdlError, StorageError
from edl.api.job_spec import JobSpec
from edl.api.run_events import JobEnded, JobEvent, RunStarted
from edl.api.status import ENDED, JobFailure, Status, Summary, TimelinePoint
from edl.cluster.status_port import StatusPublisher
from edl.core.events import EndJob
from edl.jobfile import section_type
from edl.jobfile.disruptions import DisruptionCounter
from edl.jobfile.document_tree import SpecError
from edl.jobfile.event_json import event_from_json
from edl.jobfile.published_status import MAX_EVENTS, TIMELINE_KEY, PublishedStatus, extend_timeline
from edl.jobfile.section_type import to_json
from edl.master import guarded_threads, status_reporter
from edl.master.shell import MasterShell
from edl.master.status_reporter import ProgressLogger, StatusReporter
from edl.storage import training_history
from edl.storage.durable_files import JsonLinesTail, read_json, translate_os_errors, write_json
from edl.storage.run_directory import RunDirectory
from edl.storage.run_weights import RunWeights

log = logging.getLogger(__name__)

_START_AND_END = (RunStarted.kind, JobEnded.kind)


def write_end(run: RunDirectory, reporter: StatusReporter, ended: EndJob, status: Status, summary: Summary) -> None:
    """Write how the job ended.

    The final event is written once, although a master that is restarted after the end of the job
    calls this too. A file that cannot be written does not stop the others: on a full disk, some are
    small enough.
    """
    reporter.write_status(status)
    if ended.phase == "Failed":
        _log_storage_errors(partial(_write_failure, run, ended))
    write_summary(run, summary)
    if not is_end_written(run):
        reporter.emit_event(JobEnded(time=time.time(), phase=ended.phase, reason=ended.reason, summary=summary))


def is_end_written(run: RunDirectory) -> bool:
    """Whether the final event of this start of the run has been written."""
    try:
        marks = [event["event"] for event in JsonLinesTail(run.events).poll() if event.get("event") in _START_AND_END]
    except StorageError as error:
        log.error("%s", error)
        return False
    # A resumed run starts and ends again, so the last of these events counts.
    return marks[-1:] == [JobEnded.kind]


def write_metrics(run: RunDirectory, weights: RunWeights, summary: Summary) -> None:
    """Write the result of a job that only evaluates."""
    result = {
        "metrics": dict(summary.metrics),
        "records": summary.records_done,
        "step": weights.step,
        "from": str(weights.path),
    }
    _log_storage_errors(lambda: write_json(run.metrics, result, fsync=True))


def write_summary(run: RunDirectory, summary: Summary) -> None:
    """Replace ``summary.json``; a storage error is logged and not raised."""
    _log_storage_errors(lambda: write_json(run.summary, to_json(summary)))


def _write_failure(run: RunDirectory, ended: EndJob) -> None:
    """Write the failure, once per run."""
    # The report of an earlier master has the details, such as a traceback, that the journal lacks.
    if run.failure.exists():
        return
    with translate_os_errors(run.failure_details, "write"):
        run.failure_details.write_text(ended.detail, encoding="utf-8")
    write_json(run.failure, {"kind": ended.failure_kind, "reason": ended.reason, "detail": ended.detail})


def _log_storage_errors(write: Callable[[], None]) -> None:
    try:
        write()
    except StorageError as error:
        log.error("%s", error)


log = logging.getLogger(__name__)

PERIOD_SECONDS = 1.0
"""Seconds between two publications."""
_LONGEST_LINE = 200
KEEP_SECONDS = 10.0
"""Seconds between two writes of the timeline to the run directory, where the next master finds it."""
_PENDING_STATES = ("pending", "asked")
"""States of a worker that is not scheduled yet."""


class RunPublisher:
    """Publishes a run. Thread-safe.

    Args:
        status_publisher: publishes the data of the ConfigMap.
        run: the run directory, with earlier events, the summary and the failure.
    """

    def __init__(self, status_publisher: StatusPublisher, run: RunDirectory) -> None:
        self._status_publisher, self._run = status_publisher, run
        self._lock = threading.Lock()
        self._events: deque[JobEvent] = deque(maxlen=MAX_EVENTS)
        self._losses = DisruptionCounter()
        for event in _earlier_events(run):
            self.add_event(event)
        self._timeline = _load_timeline(run.path / TIMELINE_KEY)

    def add_event(self, event: JobEvent) -> None:
        """Include an event in the next publication."""
        with self._lock:
            self._events.append(event)
            self._losses.count_event(event)

    def publish_status(self, status: Status) -> None:
        """Publish the current status; call every ``PERIOD_SECONDS``.

        The end of the job is published by ``publish_end``, with the files that belong to it.
        """
        if status.phase not in ENDED:
            self._publish(self._build_publication(status))

    def save_timeline(self) -> None:
        """Save the timeline in the run directory; blocks for as long as the disk does."""
        with self._lock:
            timeline = self._timeline
        try:
            write_json(self._run.path / TIMELINE_KEY, [section_type.to_json(moment) for moment in timeline])
        except StorageError as error:
            log.warning("%s", error)

    def publish_end(self, status: Status) -> None:
        """Publish for the last time, including the files that are in the run directory now."""
        publication = self._build_publication(status)
        self.save_timeline()
        run = self._run
        summary, failure = _read_optional(run.summary), _read_optional(run.failure)
        self._publish(
            replace(
                publication,
                summary=None if summary is None else section_type.from_json(Summary, summary, run.summary.name),
                failure=None if failure is None else section_type.from_json(JobFailure, failure, run.failure.name),
            )
        )

    def _build_publication(self, status: Status) -> PublishedStatus:
        with self._lock:
            self._timeline = extend_timeline(self._timeline, timeline_point(status))
            return PublishedStatus(status, tuple(self._events), self._timeline, losses=self._losses.report)

    def _publish(self, publication: PublishedStatus) -> None:
        self._status_publisher.publish(publication.to_configmap_data())


class PreparationReport:
    """Publishes the last line that ``master.prepare`` wrote, while there is no state of the job yet.

    Args:
        spec: of the job.
        run: the run directory, whose ``status.json`` it writes.
        status_publisher: publishes the data of the ConfigMap; None: files are enough.
    """

    def __init__(self, spec: JobSpec, run: RunDirectory, status_publisher: StatusPublisher | None) -> None:
        self._spec, self._run = spec, run
        self._publisher = None
        if status_publisher is not None and spec.master.prepare:
            self._publisher = RunPublisher(status_publisher, run)
        self._next = 0.0

    def report_line(self, line: str) -> None:
        """Publish a line, at most every ``PERIOD_SECONDS``, also if it is still the same."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PERIOD_SECONDS
        reason = f"master.prepare: {line[:_LONGEST_LINE]}" if line else "master.prepare runs"
        status = Status(self._spec.name, self._run.run_id, str(self._run.path), "Starting", time.time(), reason=reason)
        _log_storage_errors(partial(write_json, self._run.status, to_json(status)))
        if self._publisher is not None:
            self._publisher.publish_status(status)


def timeline_point(status: Status) -> TimelinePoint:
    """What the timeline keeps of a status."""
    pending = sum(worker.state in _PENDING_STATES for worker in status.workers)
    return TimelinePoint(
        time=status.updated,
        workers=len(status.workers) - pending,
        pending=pending,
        samples_per_second=status.samples_per_second,
        records_done=status.records_done,
    )


def _earlier_events(run: RunDirectory) -> Iterator[JobEvent]:
    """The events of earlier masters, as far as they can be read."""
    try:
        for value in JsonLinesTail(run.events).poll():
            yield event_from_json(value)
    except EdlError as error:
        # Another version wrote the file, or the disk fails. Later events are still published.
        log.warning("events cannot be shown: %s", error)


def _load_timeline(path: Path) -> Sequence[TimelinePoint]:
    """The timeline that the previous master saved."""
    try:
        return tuple(section_type.from_json(TimelinePoint, moment, str(path)) for moment in _read_optional(path) or ())  # type: ignore[attr-defined]
    except (SpecError, StorageError, TypeError) as error:
        log.warning("the timeline starts over: %s", error)
        return ()


def _read_optional(path: Path) -> object:
    return read_json(path) if path.exists() else None


# --------------------------------------------------------------------------------------------------
# Periodic reports. Each destination has a thread of its own, so that a hanging disk or server
# delays only its own reports.


class PeriodicReports:
    """Writes the status to the run directory, logs progress, and publishes the status.

    Args:
        shell: the shell, whose lock is held while the status is built.
        reporter: builds and writes the status.
        publisher: publishes the status; None: it is not published.
        run: the run directory.
    """

    def __init__(
        self, shell: MasterShell, reporter: StatusReporter, publisher: RunPublisher | None, run: RunDirectory
    ) -> None:
        self._run = run
        self._shell, self._reporter, self._publisher = shell, reporter, publisher
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._finish_line: str | None = None

    def start(self) -> None:
        self._start_loop("status", status_reporter.PERIOD_SECONDS, self._reporter.write_status)
        self._start_loop("progress", status_reporter.LOG_PERIOD_SECONDS, ProgressLogger().log_status)
        self._start_loop(
            "history",
            training_history.HISTORY_PERIOD_SECONDS,
            training_history.TrainingHistory(self._run).record_status,
        )
        if (publisher := self._publisher) is not None:
            self._start_loop("board", PERIOD_SECONDS, publisher.publish_status)
            self._start_loop("timeline", KEEP_SECONDS, lambda status: publisher.save_timeline())

    def close(self) -> None:
        """Stop reporting."""
        self._closing.set()
        for thread in self._threads:
            thread.join()

    def current_status(self) -> Status:
        """The current status of the job, which has not ended before ``master.finish`` has."""
        with self._shell.lock:
            status = self._reporter.build_status()
        line = self._finish_line
        if line is None:
            return status
        reason = f"master.finish: {line[:_LONGEST_LINE]}" if line else "master.finish runs"
        return replace(status, phase="Exporting", reason=reason)

    @contextmanager
    def reporting_finish(self) -> Iterator[Callable[[str], None]]:
        """Report, while ``master.finish`` runs, the last line that it wrote; returns what takes the line."""

        def take_line(line: str) -> None:
            self._finish_line = line

        take_line("")
        try:
            yield take_line
        finally:
            self._finish_line = None

    def _start_loop(self, name: str, period: float, report: Callable[[Status], None]) -> None:
        self._threads.append(
            guarded_threads.start_guarded_thread(name, partial(self._run_loop, period, report), self._shell.fail)
        )

    def _run_loop(self, period: float, report: Callable[[Status], None]) -> None:
        """Report periodically, while this master may decide."""
        # Otherwise another master may be active, and this status would be wrong.
        while not self._closing.wait(period):
            if self._shell.core_clock.may_decide():
                report(self.current_status())
