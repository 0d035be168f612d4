"""The face for a terminal: a view that is redrawn in place."""

from __future__ import annotations

import sys
from typing import Self

from rich.console import Console
from rich.live import Live

from edl.api.events import Event
from edl.reporting.live_screen import screen
from edl.reporting.rich_console import console
from edl.reporting.run_info import Undertaking
from edl.reporting.run_outcome import Outcome
from edl.reporting.run_progress import Progress
from edl.reporting.run_summary import closing, complaint
from edl.reporting.text_table import wrapped

REDRAW_SECONDS = 0.25


class LiveView:
    """Redraws at most a few times a second, and leaves its last picture on the screen."""

    def __init__(self, on: Console | None = None) -> None:
        self._console = on or console()
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._plan: Undertaking | None = None
        self._notice = ""
        self._drawn = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def planned(self, plan: Undertaking) -> None:
        """The plan stays above the view."""
        self._plan = plan
        for line in plan.lines():
            for part in wrapped(line, self._console.width, then="    "):
                self._console.print(part, markup=False, soft_wrap=True)
        self._live.start()

    def happened(self, event: Event, progress: Progress) -> None:
        """Part of the next picture."""
        self._drawn = 0.0

    def refresh(self, progress: Progress, now: float) -> None:
        """A new picture when it is time for one."""
        if now - self._drawn >= REDRAW_SECONDS:
            self._drawn = now
            picture = screen(progress, self._console.width, self._console.height, now, self._notice)
            self._live.update(picture, refresh=True)

    def notice(self, text: str) -> None:
        """Shown in the view from now on."""
        self._notice, self._drawn = text, 0.0

    def ended(self, plan: Undertaking, outcome: Outcome) -> None:
        """What was wrong, then the summary, below the last picture."""
        if outcome.phase == "Failed":
            print(complaint(outcome), file=sys.stderr, flush=True)
        for line in closing(plan, outcome):
            self._console.print(line, markup=False, soft_wrap=True)
