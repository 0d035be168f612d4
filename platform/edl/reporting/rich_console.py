"""A rich console that prints control sequences of rich only, and sanitizes all text."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from edl.reporting.terminal_text import raw_stream, strip_control_characters


class _PrintableConsole(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments with sanitized text. Control segments are from rich itself."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(strip_control_characters(segment.text), segment.style)


def make_console(stream: TextIO | None = None, *, width: int | None = None) -> Console:
    """A console for ``stream``, by default standard output, without highlighting."""
    return _PrintableConsole(file=raw_stream(stream or sys.stdout), highlight=False, width=width)
