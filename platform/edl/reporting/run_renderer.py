"""The port through which ``edl run`` shows a run, and the choice of its implementation."""

from __future__ import annotations

import os
import sys
from typing import Protocol, Self

from edl.api.run_events import JobEvent
from edl.reporting.run_progress import RunInfo, RunOutcome, RunProgress


class RunRenderer(Protocol):
    """Shows a run. As a context manager it restores the terminal on exit, even after an exception."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(self, *_: object) -> None:
        """Restore the terminal."""

    def show_plan(self, run_info: RunInfo) -> None:
        """Show what the run is about to do; called once, before any event."""

    def show_event(self, event: JobEvent, progress: RunProgress) -> None:
        """Show an event; ``progress`` includes it."""

    def refresh(self, progress: RunProgress, now: float) -> None:
        """Show the progress at ``now`` (unix seconds). Called several times per second."""

    def show_notice(self, text: str) -> None:
        """Show a message about ``edl run`` itself."""

    def show_outcome(self, run_info: RunInfo, outcome: RunOutcome) -> None:
        """Show the outcome, after all processes of the job have ended."""


def choose_renderer(*, as_json: bool) -> RunRenderer:
    """The renderer that suits standard output."""
    if as_json:
        from edl.reporting.json_lines import JsonLinesRenderer

        return JsonLinesRenderer()
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        from edl.reporting.live_view import LiveRenderer  # imported here: rich takes 60 ms

        return LiveRenderer()
    from edl.reporting.plain_text import PlainTextRenderer

    return PlainTextRenderer()
