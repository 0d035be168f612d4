"""The face for programs: one JSON object a line on standard output, the summary last; all else on standard error."""

from __future__ import annotations

import json
import sys
from typing import Any, Self, TextIO

from edl.api.events import JobEvent
from edl.api.status import Status
from edl.jobfile.section_type import to_json
from edl.reporting.run_progress import RunInfo, RunOutcome, RunProgress
from edl.reporting.run_summary import failure_text

STATUS_SECONDS = 0.5
"""Between two status lines, unless the phase or the roles change."""


class JsonLinesRenderer:
    """Each event as ``edl.jobfile.event_json`` writes it, ``{"event": "status", …}`` now and then, and the summary."""

    def __init__(self, out: TextIO | None = None, errors: TextIO | None = None) -> None:
        self._out, self._errors = out or sys.stdout, errors or sys.stderr
        self._last_status: Status | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show_plan(self, run_info: RunInfo) -> None:
        """Nothing: the first event names the run."""

    def show_event(self, event: JobEvent, progress: RunProgress) -> None:
        """A line."""
        self._write_object(to_json(event))

    def refresh(self, progress: RunProgress, now: float) -> None:
        """A line when there is something new to say."""
        status = progress.status
        if status is not None and is_status_due(self._last_status, status):
            self._last_status = status
            self._write_object({"event": "status", **to_json(status)})

    def show_notice(self, text: str) -> None:
        """For people, who look at standard error."""
        print(text, file=self._errors, flush=True)

    def show_outcome(self, run_info: RunInfo, outcome: RunOutcome) -> None:
        """The summary; the user's traceback and the reason on standard error."""
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
    """Whether ``status`` says enough that ``last`` did not."""
    if last is None or last.phase != status.phase or (last.workers, last.ps) != (status.workers, status.ps):
        return True
    moved = (last.step, last.records_done, last.metrics) != (status.step, status.records_done, status.metrics)
    return moved and status.updated - last.updated >= STATUS_SECONDS
