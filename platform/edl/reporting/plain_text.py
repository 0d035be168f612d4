"""The face for files and pipes: a line for each event, and now and then one that says how far the job is."""

from __future__ import annotations

import sys
from typing import Self, TextIO

from edl.api.events import Event
from edl.api.status import Status
from edl.reporting.event_text import clock, headline, sentence, served
from edl.reporting.run_info import Undertaking
from edl.reporting.run_outcome import Outcome
from edl.reporting.run_progress import Progress
from edl.reporting.run_summary import closing, complaint
from edl.reporting.terminal_text import one_line

STATUS_SECONDS = 5.0
"""Between two status lines, unless much was done."""
MUCH = 0.1
"""Share of all records that is worth a line."""


class Lines:
    """Plain text: nothing is ever rewritten."""

    def __init__(self, out: TextIO | None = None, errors: TextIO | None = None) -> None:
        self._out, self._errors = out or sys.stdout, errors or sys.stderr
        self._last: Status | None = None
        self._served = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def planned(self, plan: Undertaking) -> None:
        """The plan."""
        for line in plan.lines():
            self._print(one_line(line))

    def happened(self, event: Event, progress: Progress) -> None:
        """A line with the time."""
        self._print(f"{clock(event.time)}  {sentence(event)}")

    def refresh(self, progress: Progress, now: float) -> None:
        """A line when there is something new to say."""
        status = progress.status
        if status is not None and is_due(self._last, status):
            self._last = status
            self._print(f"{clock(status.updated)}  {headline(status)}")
            if not self._served and (told := served(status.parameters)):
                self._served = told
                self._print(f"{clock(status.updated)}  {told}")

    def notice(self, text: str) -> None:
        """A line."""
        self._print(text)

    def ended(self, plan: Undertaking, outcome: Outcome) -> None:
        """What was wrong, then the summary."""
        if outcome.phase == "Failed":
            print(complaint(outcome), file=self._errors, flush=True)
        self._print("\n".join(closing(plan, outcome)))

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)


def is_due(last: Status | None, status: Status) -> bool:
    """Whether ``status`` says enough that ``last`` did not."""
    if last is None or last.phase != status.phase:
        return True
    done = status.records_done - last.records_done
    if status.records_total and done / status.records_total >= MUCH and status.updated - last.updated >= 1.0:
        return True
    return status.updated - last.updated >= STATUS_SECONDS and status != last
