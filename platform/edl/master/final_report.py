"""The final report of a run: its last event, summary and failure."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from edl.api.errors import StorageError
from edl.api.events import JobEnded, RunStarted
from edl.api.status import Status, Summary
from edl.core.events import EndJob
from edl.jobfile.section_type import to_json
from edl.master.status_reporter import StatusReporter
from edl.storage.durable_files import translate_os_errors
from edl.storage.run_directory import RunDirectory, follow_json_lines, write_json

log = logging.getLogger(__name__)

_START_AND_END = (RunStarted.kind, JobEnded.kind)
SUMMARY_FILE, FAILURE_FILE, DETAIL_FILE = "summary.json", "failure.json", "failure.txt"


def write_end(run: RunDirectory, reporter: StatusReporter, ended: EndJob, status: Status, summary: Summary) -> None:
    """Write how the job ended.

    It is told once, though a master that is started again after the end reads that in its journal and comes here too.
    A file that cannot be written does not keep the others from being written: on a full disk, some are small enough.
    """
    reporter.write_status(status)
    if ended.phase == "Failed":
        _log_storage_errors(partial(_write_failure, run, ended))
    write_summary(run, summary)
    if not _is_end_written(run):
        reporter.emit_event(JobEnded(time=time.time(), phase=ended.phase, reason=ended.reason, summary=summary))


def _is_end_written(run: RunDirectory) -> bool:
    """Whether the final event of this start of the run has been written."""
    try:
        marks = [
            event["event"] for event in follow_json_lines(run.events).poll() if event.get("event") in _START_AND_END
        ]
    except StorageError as error:
        log.error("%s", error)
        return False
    return marks[-1:] == [JobEnded.kind]


def write_summary(run: RunDirectory, summary: Summary) -> None:
    """Write the run's summary."""
    _log_storage_errors(lambda: write_json(run.path / SUMMARY_FILE, to_json(summary)))


def _write_failure(run: RunDirectory, ended: EndJob) -> None:
    """Write the failure, once per run: an earlier master's report says more than the journal does."""
    path = run.path / FAILURE_FILE
    if path.exists():
        return
    with translate_os_errors(run.path / DETAIL_FILE, "write"):
        (run.path / DETAIL_FILE).write_text(ended.detail, encoding="utf-8")
    write_json(path, {"kind": ended.failure_kind, "reason": ended.reason, "detail": ended.detail})


def _log_storage_errors(write: Callable[[], None]) -> None:
    try:
        write()
    except StorageError as error:
        log.error("%s", error)
