"""A face whose reader may leave, as ``head`` does: from then on nothing is shown, and nothing fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self, TextIO

from edl.api.events import JobEvent
from edl.reporting.run_progress import RunInfo, RunOutcome, RunProgress
from edl.reporting.run_renderer import RunRenderer


class PipeSafeRenderer:
    """Shows what ``face`` shows as long as somebody reads it.

    Attributes:
        reader_left: whether the reader has left; whoever follows the run decides what that means.
    """

    def __init__(self, renderer: RunRenderer) -> None:
        self._renderer = renderer
        self.reader_left = False

    def __enter__(self) -> Self:
        self._call_renderer(self._renderer.__enter__)
        return self

    def __exit__(self, *given: object) -> None:
        self._call_renderer(lambda: self._renderer.__exit__(*given))

    def show_plan(self, run_info: RunInfo) -> None:
        """What will run."""
        self._call_renderer(lambda: self._renderer.show_plan(run_info))

    def show_event(self, event: JobEvent, progress: RunProgress) -> None:
        """An event, and the progress with it."""
        self._call_renderer(lambda: self._renderer.show_event(event, progress))

    def refresh(self, progress: RunProgress, now: float) -> None:
        """The progress at ``now``."""
        self._call_renderer(lambda: self._renderer.refresh(progress, now))

    def show_notice(self, text: str) -> None:
        """Something about the command itself."""
        self._call_renderer(lambda: self._renderer.show_notice(text))

    def show_outcome(self, run_info: RunInfo, outcome: RunOutcome) -> None:
        """The end; without a reader a line on standard error, when there is something to go on with."""
        self._call_renderer(lambda: self._renderer.show_outcome(run_info, outcome))
        if self.reader_left and outcome.phase != "Done":
            with _survive_broken_pipe(sys.stderr):
                told = ["Nobody reads the output any more: the job was stopped.", *run_info.next_steps(outcome)]
                print(" ".join(told), file=sys.stderr, flush=True)

    def _call_renderer(self, what: Callable[[], object]) -> None:
        if self.reader_left:
            return
        self.reader_left = True
        with _survive_broken_pipe(sys.stdout):
            what()
            self.reader_left = False


@contextmanager
def _survive_broken_pipe(stream: TextIO) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        with suppress(OSError):  # no file at all: nothing of it is written at the end
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())  # what is left in the buffer must not fail when Python ends
            os.close(nowhere)
