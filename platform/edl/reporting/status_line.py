"""One line about something that takes a while: rewritten in place on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import shutil
import sys
from typing import Self, TextIO

from edl.reporting.terminal_text import raw_stream, strip_control_characters


class StatusLine:
    """Says where something is; on a terminal nothing of it stays.

    Args:
        out: standard error by default, so that standard output holds results only.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = raw_stream(out or sys.stderr)
        self._is_terminal = self._out.isatty()
        self._last_text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal and self._last_text:
            self._write("\r\x1b[K")

    def say(self, text: str, *, lasting: bool = True) -> None:
        """The newest word; nothing if it is that of before. What does not last is for a terminal only."""
        line = " ".join(strip_control_characters(text).split())
        if line == self._last_text or not (lasting or self._is_terminal):
            return
        self._last_text = line
        if self._is_terminal:
            self._write("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1])
        else:
            self._write(line + "\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
