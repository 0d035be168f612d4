"""Reports of strategy Local: events, status and summary, in the formats of a distributed job."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from typing import Any

from edl.api.run_events import JobEnded, JobEvent, RoleEnded, RoleStarted, WarningRaised
from edl.api.status import Status, Summary
from edl.jobfile.event_json import line
from edl.jobfile.section_type import to_json
from edl.reporting import event_text
from edl.reporting.event_text import describe_event, format_local_time
from edl.reporting.terminal_text import strip_control_characters
from edl.storage.durable_files import append_json_line, translate_os_errors, write_json
from edl.storage.run_directory import RunDirectory
from edl.storage.run_weights import describe_initial_weights
from edl.storage.training_history import TrainingHistory

STATUS_SECONDS = 0.5
"""Minimum seconds between two writes of ``status.json``, and between two lines in JSON mode."""
LINE_SECONDS = 2.0
"""Minimum seconds between two lines of text on standard output."""


class LocalReport:
    """Writes ``events.jsonl``, ``status.json``, ``summary.json``, and lines on standard output.

    Args:
        run: the run directory.
        status: the first status.
        as_json: print one JSON object a line instead of text.
    """

    def __init__(self, run: RunDirectory, status: Status, *, as_json: bool) -> None:
        self.status = status
        self._run = run
        self._as_json = as_json
        self._history = TrainingHistory(run)
        self._summary_file = run.summary
        self._began = time.time()
        self._shown = 0.0
        self._written = 0.0
        self._first: tuple[float, int] | None = None
        self._warnings: list[str] = []

    def started(self) -> None:
        """Report this process as the run's only worker."""
        # The summary of an earlier start is no longer valid.
        with translate_os_errors(self._summary_file, "remove"):
            self._summary_file.unlink(missing_ok=True)
        self.event(RoleStarted("worker", 0, os.getpid(), time=time.time()))

    def event(self, event: JobEvent) -> None:
        append_json_line(self._run.events, to_json(event))
        if self._as_json:
            self._print(line(event))
        elif not isinstance(event, JobEnded):
            self._print(f"{format_local_time(event.time)}  {describe_event(event)}")

    def warn(self, topic: str, text: str) -> None:
        """Report a warning, also in the summary."""
        self._warnings.append(text)
        self.event(WarningRaised(text, time=time.time()))

    def changed(self, *, now: bool = False, **fields: Any) -> None:
        """Update fields of the status; write and print it if enough time has passed, or ``now``."""
        clock = time.time()
        self.status = replace(self.status, updated=clock, **fields)
        if not now and clock - self._written < STATUS_SECONDS:
            return
        self._written = clock
        speed, left = self._speed(clock)
        self.status = replace(self.status, samples_per_second=speed, seconds_left=left)
        write_json(self._run.status, to_json(self.status))
        self._history.record_status(self.status)
        if now or clock - self._shown >= (STATUS_SECONDS if self._as_json else LINE_SECONDS):
            self._shown = clock
            self._show()

    def _speed(self, clock: float) -> tuple[float, float | None]:
        done = self.status.records_done
        if self._first is None:
            self._first = (clock, done)
        seconds = clock - self._first[0]
        speed = (done - self._first[1]) / seconds if seconds > 0 else 0.0
        left = (self.status.records_total - done) / speed if speed else None
        return speed, left

    def _show(self) -> None:
        status = self.status
        if self._as_json:
            self._print(json.dumps({"event": "status", **to_json(status)}))
            return
        loss = "" if status.loss is None else f", loss {status.loss:.4g}"
        epoch = f"epoch {status.epoch} of {status.epochs}, " if status.epoch else ""
        self._print(
            f"{format_local_time(status.updated)}  {status.phase.lower()}: {status.records_done:,} of"
            f" {status.records_total:,} records, {epoch}step {status.step:,}{loss}, {status.samples_per_second:,.0f}"
            " samples/s"
        )

    def ended(self, phase: str, reason: str, exit_code: int, **fields: Any) -> None:
        """Report the end: status, summary file and events, and at last the summary on standard output."""
        summary = self._summary(**fields)
        self.changed(phase=phase, reason=reason, now=True)
        write_json(self._summary_file, to_json(summary))
        end_cause = "Error" if phase == "Failed" else "Completed"
        self.event(RoleEnded("worker", 0, os.getpid(), end_cause, exit_code, time=time.time()))
        self.event(JobEnded(phase, reason, summary, time=time.time()))
        if self._as_json:
            end = {"phase": phase, "reason": reason, "exit_code": exit_code}
            head = {"event": "summary", "job": self.status.job, "run": self.status.run}
            self._print(json.dumps({**head, **end, **to_json(summary)}))
        else:
            self._print(
                "\n".join(
                    event_text.format_block(
                        event_text.summary_heading(phase, summary), event_text.summary_rows(summary)
                    )
                )
            )

    def say(self, *lines: str) -> None:
        """Print lines for users; prints nothing in JSON mode."""
        if not self._as_json:
            self._print("\n".join(lines))

    def _summary(self, **fields: Any) -> Summary:
        status, logs = self.status, self._run.logs
        return Summary(
            records_total=status.records_total,
            records_done=status.records_done,
            samples_per_second=status.samples_per_second,
            seconds=time.time() - self._began,
            metrics=status.metrics,
            logs=str(logs) if any(logs.glob("*.log")) else None,
            began_with=describe_initial_weights(self._run),
            updates_skipped=status.updates_skipped,
            records_not_trained=status.records_not_trained,
            warnings=tuple(self._warnings),
            **fields,
        )

    def _print(self, text: str) -> None:
        print(strip_control_characters(text), file=sys.stdout, flush=True)
