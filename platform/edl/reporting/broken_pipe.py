"""A renderer whose reader may leave, as ``head`` does: from then on it shows nothing, and nothing fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self, TextIO

from edl.api.run_events import JobEvent
from edl.reporting.run_progress import RunInfo, RunOutcome, RunProgress
from edl.reporting.run_renderer import RunRenderer


class PipeSafeRenderer:
    """Passes everything to another renderer until the reader of the output has left.

    Attributes:
        reader_left: whether the reader has left. The caller decides what that means for the run.
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
        self._call_renderer(lambda: self._renderer.show_plan(run_info))

    def show_event(self, event: JobEvent, progress: RunProgress) -> None:
        self._call_renderer(lambda: self._renderer.show_event(event, progress))

    def refresh(self, progress: RunProgress, now: float) -> None:
        """Show the progress at the time ``now``."""
        self._call_renderer(lambda: self._renderer.refresh(progress, now))

    def show_notice(self, text: str) -> None:
        """Show a message about the command itself."""
        self._call_renderer(lambda: self._renderer.show_notice(text))

    def show_outcome(self, run_info: RunInfo, outcome: RunOutcome) -> None:
        """Show the outcome. Without a reader, print the next steps of an unfinished run to standard error."""
        self._call_renderer(lambda: self._renderer.show_outcome(run_info, outcome))
        if self.reader_left and outcome.phase != "Done":
            with _survive_broken_pipe(sys.stderr):
                lines = ["The output was closed, so the job was stopped.", *run_info.next_steps(outcome)]
                print(" ".join(lines), file=sys.stderr, flush=True)

    def _call_renderer(self, what: Callable[[], object]) -> None:
        if self.reader_left:
            return
        # set before the call and reset after it: an exception of any kind leaves it set
        self.reader_left = True
        with _survive_broken_pipe(sys.stdout):
            what()
            self.reader_left = False


@contextmanager
def _survive_broken_pipe(stream: TextIO) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        with suppress(OSError):  # the stream has no file descriptor
            nowhere = os.open(os.devnull, os.O_WRONLY)
            # Python flushes the stream at exit, which must not fail again
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
