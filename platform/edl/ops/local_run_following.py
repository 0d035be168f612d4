"""Follows a run from its files until its supervisor has ended, and stops it when the user wants that."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from signal import SIGINT, SIGPIPE, SIGTERM
from signal import Signals as Signal

from edl.api.errors import StorageError
from edl.api.events import JobEnded, JobEvent, WarningRaised
from edl.api.status import Status, Summary
from edl.core.saved_checkpoint import FINAL_SECONDS
from edl.jobfile import json_object
from edl.jobfile.event_json import event_from_json
from edl.jobfile.problems import SpecError
from edl.ops.local_run_resumption import PREDICT_FILE
from edl.ops.stop_signals import StopSignals
from edl.reporting.broken_pipe import PipeSafeRenderer
from edl.reporting.run_outcome import (
    INTERRUPTED_EXIT,
    OUTPUT_CLOSED_EXIT,
    SIGTERM_EXIT,
    RunFailure,
    RunOutcome,
    decide_outcome,
    explain_missing_end,
)
from edl.reporting.run_progress import RunProgress
from edl.storage.run_directory import JsonLinesTail, RunDirectory, append_json_line, read_json, write_json

POLL_SECONDS = 0.1
STOP_SECONDS = 20.0
"""What the supervisor gets: eleven for a final checkpoint, and about three to stop roles when one does not go."""
KILL_SECONDS = 2.0
"""What it gets when the user asked a second time."""

SUMMARY_FILE = "summary.json"

_STOPPING_NOTICE = (
    f"Stopping: a checkpoint is written first, {FINAL_SECONDS:g} s at most. Once more (Ctrl-C) ends at once without."
)
_LEAVING_NOTICE = "Stopping: every process is told to go. Once more (Ctrl-C) kills them at once."
_LAST_LINES = 12
_EXIT_CODES = {SIGINT: INTERRUPTED_EXIT, SIGPIPE: OUTPUT_CLOSED_EXIT, SIGTERM: SIGTERM_EXIT}


class LocalRunFollower:
    """One supervised run as ``edl run`` sees it."""

    def __init__(self, run: RunDirectory, face: PipeSafeRenderer, events: JsonLinesTail, began: float) -> None:
        """Follow ``run``, of which ``events`` has not been shown yet, and tell ``face``."""
        self._run, self._renderer, self._events = run, face, events
        self.progress = RunProgress(began)
        self._is_training = not (run.path / PREDICT_FILE).exists()
        self._stopped_by: int | None = None
        self._deadline: float | None = None

    def follow_until_end(self, supervisor: subprocess.Popen[bytes]) -> RunOutcome:
        """Show the run until its end."""
        with StopSignals() as signals, _supervisor_cleanup(supervisor):
            while True:
                exit_code = supervisor.poll()  # before the files: what was written before the end is seen below
                self._read()
                if exit_code is not None:
                    break
                self._renderer.refresh(self.progress, time.time())
                if self._renderer.broken and self._stopped_by is None:
                    self._stop_supervisor(supervisor, SIGPIPE)
                for wish in signals.wait(POLL_SECONDS):
                    self._stop_supervisor(supervisor, wish)
                if self._deadline is not None and time.monotonic() > self._deadline:
                    supervisor.kill()  # its roles go with it
            return self._decide_outcome(exit_code)

    def _read(self) -> None:
        for value in self._events.poll():
            event = _parse_event(value)
            self.progress = self.progress.after(event)
            self._renderer.show_event(event, self.progress)
        with suppress(StorageError, SpecError):  # not there yet, or of another version: the next one may do
            self.progress = self.progress.at(json_object.from_json(Status, read_json(self._run.status)))

    def _stop_supervisor(self, supervisor: subprocess.Popen[bytes], wish: Signal) -> None:
        number = SIGINT
        if self._stopped_by is None:
            self._stopped_by = _EXIT_CODES[wish]
            self._renderer.show_notice(_STOPPING_NOTICE if self._is_training else _LEAVING_NOTICE)
            self._deadline = time.monotonic() + STOP_SECONDS
        else:
            self._renderer.show_notice("Killing every process.")
            self._deadline = time.monotonic() + KILL_SECONDS
            number = SIGTERM  # two of one kind, soon after each other, would arrive as one
        with suppress(ProcessLookupError):
            supervisor.send_signal(number)

    def _decide_outcome(self, exit_code: int) -> RunOutcome:
        by_master = self.progress.ended
        ended = by_master or self._write_end(exit_code)
        self._renderer.refresh(self.progress, time.time())
        failure = _read_failure(self._run) if by_master else RunFailure(detail=_log_ends(self._run))
        return decide_outcome(ended, failure, self._stopped_by)

    def _write_end(self, exit_code: int) -> JobEnded:
        """End the run in the place of its master; every process of it is gone, so its files have no other writer."""
        now, (phase, reason) = time.time(), explain_missing_end(exit_code, self._stopped_by)
        summary = _read_summary(self._run) or self.progress.partial_summary(now, str(self._run.logs))
        ended = JobEnded(phase, reason, summary, time=now)
        self.progress = self.progress.after(ended)
        self._renderer.show_event(ended, self.progress)
        try:
            append_json_line(self._run.events, json_object.to_json(ended))
            write_json(self._run.path / SUMMARY_FILE, json_object.to_json(summary))
            if (status := self.progress.status) is not None:
                over = replace(status, phase=phase, reason=reason, updated=now, workers=(), ps=())
                self.progress = self.progress.at(over)
                write_json(self._run.status, json_object.to_json(over))
        except StorageError as error:
            self._renderer.show_notice(str(error))
        return ended


def _parse_event(value: dict[str, object]) -> JobEvent:
    try:
        return event_from_json(value)
    except SpecError as error:
        return WarningRaised(f"an event cannot be read: {error}", time=time.time())


def _read_summary(run: RunDirectory) -> Summary | None:
    """What a master that was told to go left as its summary; None when it could not."""
    try:
        return json_object.from_json(Summary, read_json(run.path / SUMMARY_FILE))
    except (StorageError, SpecError):
        return None


def _read_failure(run: RunDirectory) -> RunFailure:
    """What the master left about a failure."""
    kind = ""
    with suppress(StorageError):  # not every failure has a kind
        value = read_json(run.path / "failure.json")
        kind = str(value.get("kind", "")) if isinstance(value, dict) else ""
    try:
        detail = (run.path / "failure.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:  # nor a detail
        detail = ""
    return RunFailure(kind, detail)


def _log_ends(run: RunDirectory) -> str:
    """The ends of the logs that say why there was no master in the end."""
    told = []
    for path in (run.logs / "supervisor.log", run.logs / "master-0.log"):
        with suppress(OSError):  # it did not come so far as to have a log
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            told += [f"{path}:", *(f"  {line}" for line in lines[-_LAST_LINES:])]
    return "\n".join(told)


@contextmanager
def _supervisor_cleanup(supervisor: subprocess.Popen[bytes]) -> Iterator[None]:
    """Whatever happens in here, the supervisor and its roles are gone afterwards."""
    try:
        yield
    finally:
        if supervisor.poll() is None:
            supervisor.terminate()
            try:
                supervisor.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                supervisor.kill()
                supervisor.wait()
        if supervisor.stdin is not None:
            supervisor.stdin.close()
