"""What a master leaves behind for people when the job is over, or when it has to go itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from edl.api.errors import StorageError
from edl.api.events import JobEnded, RunStarted
from edl.api.status import Status, Summary
from edl.core.events import EndJob
from edl.jobfile.json_object import to_json
from edl.master.status_reporter import Reporter
from edl.storage.durable_files import translated
from edl.storage.run_directory import RunDir, tail, write_json

log = logging.getLogger(__name__)

_MARKS = (RunStarted.kind, JobEnded.kind)
SUMMARY, FAILURE, DETAIL = "summary.json", "failure.json", "failure.txt"


def tell_end(run: RunDir, reporter: Reporter, ended: EndJob, status: Status, summary: Summary) -> None:
    """Write how the job ended. The last event comes last: who reads it finds all the rest in place.

    It is told once, though a master that is started again after the end reads that in its journal and comes here too.
    A file that cannot be written does not keep the others from being written: on a full disk, some are small enough.
    """
    reporter.write_status(status)
    if ended.phase == "Failed":
        _attempt(partial(_failure, run, ended))
    tell_so_far(run, summary)
    if not _told(run):
        reporter.put(JobEnded(time=time.time(), phase=ended.phase, reason=ended.reason, summary=summary))


def _told(run: RunDir) -> bool:
    """Whether the end of this start of the run is among its events."""
    try:
        marks = [event["event"] for event in tail(run.events).poll() if event.get("event") in _MARKS]
    except StorageError as error:
        log.error("%s", error)
        return False
    return marks[-1:] == [JobEnded.kind]


def tell_so_far(run: RunDir, summary: Summary) -> None:
    """Write what the run has come to, for whoever ends it."""
    _attempt(lambda: write_json(run.path / SUMMARY, to_json(summary)))


def _failure(run: RunDir, ended: EndJob) -> None:
    """A run fails once: what a master before this one wrote says more than the journal does."""
    path = run.path / FAILURE
    if path.exists():
        return
    with translated(run.path / DETAIL, "write"):
        (run.path / DETAIL).write_text(ended.detail, encoding="utf-8")
    write_json(path, {"kind": ended.kind, "reason": ended.reason, "detail": ended.detail})


def _attempt(write: Callable[[], None]) -> None:
    try:
        write()
    except StorageError as error:
        log.error("%s", error)
