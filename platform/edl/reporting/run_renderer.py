"""What ``edl run`` shows: one port, and a face for a terminal, for a file or pipe, and for programs."""

from __future__ import annotations

import os
import sys
from typing import Protocol, Self

from edl.api.events import JobEvent
from edl.reporting.run_progress import RunInfo, RunOutcome, RunProgress


class RunRenderer(Protocol):
    """Shows a run. A context manager: what it changed about the terminal is undone on exit, however that comes."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(self, *_: object) -> None:
        """Leave the terminal as it was found."""

    def show_plan(self, run_info: RunInfo) -> None:
        """What will run."""

    def show_event(self, event: JobEvent, progress: RunProgress) -> None:
        """An event, and the progress with it."""

    def refresh(self, progress: RunProgress, now: float) -> None:
        """The progress at ``now`` (unix seconds); called several times a second."""

    def show_notice(self, text: str) -> None:
        """Something about ``edl run`` itself."""

    def show_outcome(self, run_info: RunInfo, outcome: RunOutcome) -> None:
        """The end, after everything of the job is gone."""


def choose_renderer(*, as_json: bool) -> RunRenderer:
    """The face for where standard output goes."""
    if as_json:
        from edl.reporting.json_lines import JsonLinesRenderer

        return JsonLinesRenderer()
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        from edl.reporting.live_view import LiveRenderer  # rich, 60 ms

        return LiveRenderer()
    from edl.reporting.plain_text import PlainTextRenderer

    return PlainTextRenderer()
