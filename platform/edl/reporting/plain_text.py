"""The renderer for files and pipes: a line for each event, and repeatedly one about the progress."""

from __future__ import annotations

import re
import sys
from typing import Self, TextIO

from edl.api.run_events import JobEvent, RequeuedRecordsLeased
from edl.api.status import STALLED, Status
from edl.reporting.event_text import (
    describe_event,
    describe_leased_again,
    describe_served_tables,
    format_local_time,
    status_headline,
)
from edl.reporting.run_progress import RunInfo, RunOutcome, RunProgress, failure_text, summary_lines
from edl.reporting.terminal_text import to_single_line

STATUS_SECONDS = 5.0
"""Time between two status lines, unless much was done."""
STALLED_SECONDS = 60.0
"""Time between two status lines of a job that is stalled or has no worker, while its reason stays the same."""
_QUIET_SECONDS = 1.0
"""Time after which ranges that are leased again are no part of the same line."""
PROGRESS_SHARE = 0.1
"""Share of all records after which a line is printed in any case."""


class PlainTextRenderer:
    """Prints plain lines, and never rewrites one."""

    def __init__(self, out: TextIO | None = None, errors: TextIO | None = None) -> None:
        self._out, self._errors = out or sys.stdout, errors or sys.stderr
        self._last_status: Status | None = None
        self._served_text = ""
        self._leased_again: list[RequeuedRecordsLeased] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._print_leased_again()

    def show_plan(self, run_info: RunInfo) -> None:
        """Print the plan."""
        for line in run_info.plan_lines():
            self._print_line(to_single_line(line))

    def show_event(self, event: JobEvent, progress: RunProgress) -> None:
        """Print the event with its time; ranges that are leased again one after the other make one line."""
        if isinstance(event, RequeuedRecordsLeased):
            self._leased_again.append(event)
            return
        self._print_leased_again()
        self._print_line(f"{format_local_time(event.time)}  {describe_event(event)}")

    def refresh(self, progress: RunProgress, now: float) -> None:
        """Print the status if it has changed enough."""
        status = progress.status
        if self._leased_again and (status is None or status.updated - self._leased_again[-1].time >= _QUIET_SECONDS):
            self._print_leased_again()
        if status is not None and is_status_due(self._last_status, status):
            self._last_status = status
            self._print_leased_again()
            reason = f"; {to_single_line(status.reason)}" if status.phase == STALLED and status.reason else ""
            self._print_line(f"{format_local_time(status.updated)}  {status_headline(status)}{reason}")
            if not self._served_text and (tables_text := describe_served_tables(status.parameters)):
                self._served_text = tables_text
                self._print_line(f"{format_local_time(status.updated)}  {tables_text}")

    def show_notice(self, text: str) -> None:
        """Print a line."""
        self._print_leased_again()
        self._print_line(text)

    def show_outcome(self, run_info: RunInfo, outcome: RunOutcome) -> None:
        """Print the failure, then the summary."""
        self._print_leased_again()
        if outcome.phase == "Failed":
            print(failure_text(outcome), file=self._errors, flush=True)
        self._print_line("\n".join(summary_lines(run_info, outcome)))

    def _print_leased_again(self) -> None:
        events, self._leased_again = self._leased_again, []
        if events:
            self._print_line(f"{format_local_time(events[-1].time)}  {describe_leased_again(events)}")

    def _print_line(self, text: str) -> None:
        print(text, file=self._out, flush=True)


def is_status_due(last: Status | None, status: Status) -> bool:
    """Whether ``status`` differs enough from ``last`` to be printed."""
    if last is None or last.phase != status.phase:
        return True
    done = status.records_done - last.records_done
    if status.records_total and done / status.records_total >= PROGRESS_SHARE and status.updated - last.updated >= 1.0:
        return True
    seconds = (
        STALLED_SECONDS if done == 0 and _waiting_reason(status) == _waiting_reason(last) != "" else STATUS_SECONDS
    )
    return status.updated - last.updated >= seconds and status != last


def _waiting_reason(status: Status) -> str:
    """Why nothing is trained; empty if something is."""
    if status.phase == STALLED:
        # The reason may count seconds of silence, which would make each status a new one.
        return re.sub(r"\d+ s\b", "", status.reason) or STALLED
    return status.world.reason if status.world is not None and not status.world.running else ""
