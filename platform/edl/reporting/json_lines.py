"""The renderer for programs: JSON lines on standard output, the summary last; errors on standard error."""

from __future__ import annotations

import json
import sys
from typing import Any, Self, TextIO

from edl.api.run_events import JobEvent
from edl.api.status import Status
from edl.jobfile.section_type import to_json
from edl.reporting.run_progress import RunInfo, RunOutcome, RunProgress, failure_text

STATUS_SECONDS = 0.5
"""Time between two status lines, unless phase or roles change."""


class JsonLinesRenderer:
    """Prints each event as ``edl.jobfile.event_json`` does, ``{"event": "status", …}`` repeatedly, and the summary."""

    def __init__(self, out: TextIO | None = None, errors: TextIO | None = None) -> None:
        self._out, self._errors = out or sys.stdout, errors or sys.stderr
        self._last_status: Status | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show_plan(self, run_info: RunInfo) -> None:
        """Print nothing: the first event names the run."""

    def show_event(self, event: JobEvent, progress: RunProgress) -> None:
        """Print the event."""
        self._write_object(to_json(event))

    def refresh(self, progress: RunProgress, now: float) -> None:
        """Print the status if it has changed enough."""
        status = progress.status
        if status is not None and is_status_due(self._last_status, status):
            self._last_status = status
            self._write_object({"event": "status", **to_json(status)})

    def show_notice(self, text: str) -> None:
        """Print to standard error, because it is for people."""
        print(text, file=self._errors, flush=True)

    def show_outcome(self, run_info: RunInfo, outcome: RunOutcome) -> None:
        """Print the summary; a failure with its details goes to standard error."""
        if outcome.phase == "Failed":
            self.show_notice(failure_text(outcome))
        end = {"phase": outcome.phase, "reason": outcome.reason, "exit_code": outcome.exit_code}
        self._write_object(
            {"event": "summary", "job": run_info.job, "run": run_info.run_id, **end, **to_json(outcome.summary)}
        )

    def _write_object(self, value: dict[str, Any]) -> None:
        self._out.write(json.dumps(value, allow_nan=False) + "\n")
        self._out.flush()


def is_status_due(last: Status | None, status: Status) -> bool:
    """Whether ``status`` differs enough from ``last`` to be printed."""
    if last is None or last.phase != status.phase or (last.workers, last.ps) != (status.workers, status.ps):
        return True
    moved = (last.step, last.records_done, last.metrics) != (status.step, status.records_done, status.metrics)
    return moved and status.updated - last.updated >= STATUS_SECONDS
