"""The face for a terminal: a view that is redrawn in place."""

from __future__ import annotations

import sys
from typing import Self

from rich.console import Console
from rich.live import Live

from edl.api.events import JobEvent
from edl.reporting.live_screen import render_screen
from edl.reporting.rich_console import make_console
from edl.reporting.run_info import RunInfo
from edl.reporting.run_outcome import RunOutcome
from edl.reporting.run_progress import RunProgress
from edl.reporting.run_summary import failure_text, summary_lines
from edl.reporting.text_table import wrap_text

REDRAW_SECONDS = 0.25


class LiveRenderer:
    """Redraws at most a few times a second, and leaves its last picture on the screen."""

    def __init__(self, on: Console | None = None) -> None:
        self._console = on or make_console()
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._plan: RunInfo | None = None
        self._notice = ""
        self._last_drawn = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def planned(self, plan: RunInfo) -> None:
        """The plan stays above the view."""
        self._plan = plan
        for line in plan.lines():
            for part in wrap_text(line, self._console.width, then="    "):
                self._console.print(part, markup=False, soft_wrap=True)
        self._live.start()

    def show_event(self, event: JobEvent, progress: RunProgress) -> None:
        """Part of the next picture."""
        self._last_drawn = 0.0

    def refresh(self, progress: RunProgress, now: float) -> None:
        """A new picture when it is time for one."""
        if now - self._last_drawn >= REDRAW_SECONDS:
            self._last_drawn = now
            picture = render_screen(progress, self._console.width, self._console.height, now, self._notice)
            self._live.update(picture, refresh=True)

    def show_notice(self, text: str) -> None:
        """Shown in the view from now on."""
        self._notice, self._last_drawn = text, 0.0

    def ended(self, plan: RunInfo, outcome: RunOutcome) -> None:
        """What was wrong, then the summary, below the last picture."""
        if outcome.phase == "Failed":
            print(failure_text(outcome), file=sys.stderr, flush=True)
        for line in summary_lines(plan, outcome):
            self._console.print(line, markup=False, soft_wrap=True)
