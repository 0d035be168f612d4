"""Text tables for people and pipes: aligned columns without frames."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from textwrap import TextWrapper
from typing import Self, TextIO

from edl.reporting.terminal_text import raw_stream, strip_control_characters, to_single_line

_LABEL_WIDTH = 10


def align_columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Each row as one line. Columns are as wide as their widest cell; those in ``right`` are right-aligned."""
    if not rows:
        return []
    rows = [[to_single_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "   ".join(_pad_cell(row, at, widths[at], at in right) for at in range(len(widths))).rstrip() for row in rows
    ]


def wrap_text(text: str, width: int, *, first_indent: str = "", next_indent: str = "") -> list[str]:
    """Wrap a text at ``width`` characters, between words only, so that a long path can be copied.

    Args:
        text: the text.
        width: maximum characters of a line.
        first_indent: prefix of the first line.
        next_indent: prefix of the other lines.
    """
    lines = TextWrapper(
        width,
        initial_indent=first_indent,
        subsequent_indent=next_indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return lines.wrap(text)


def wrap_labelled(label: str, text: str, width: int) -> list[str]:
    """A text beside a label, wrapped into lines."""
    head = f"  {label:<{_LABEL_WIDTH}}"
    return wrap_text(text, width, first_indent=head, next_indent=" " * len(head))


def _pad_cell(row: Sequence[str], column: int, width: int, right: bool) -> str:
    return row[column].rjust(width) if right else row[column].ljust(width)


class StatusLine:
    """Shows the current state in one line. On a terminal it is rewritten, and removed at the end.

    Args:
        out: by default standard error, so that standard output has results only.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = raw_stream(out or sys.stderr)
        self._is_terminal = self._out.isatty()
        self._last_text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Remove the line, so that other text begins where it stood."""
        if self._is_terminal and self._last_text:
            self._write("\r\x1b[K")  # return to the start of the line and clear it
        self._last_text = ""

    def show_text(self, text: str, *, permanent: bool = True) -> None:
        """Show a text, unless it is shown already. A text that is not permanent is shown on terminals only."""
        line = " ".join(strip_control_characters(text).split())
        if line == self._last_text or not (permanent or self._is_terminal):
            return
        self._last_text = line
        if self._is_terminal:
            self._write("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1])
        else:
            self._write(line + "\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


# --------------------------------------------------------------------------------------------------
# Tells the user that a command waits for the first response of a server, so that it does not seem to hang.


NOTICE_SECONDS = 2.0
"""Time without a response after which the user is told."""

CallLater = Callable[[float, Callable[[], None]], Callable[[], object]]
"""Calls a function after some seconds; calling the result cancels it."""


def call_later(seconds: float, call: Callable[[], None]) -> Callable[[], object]:
    """Call on a daemon thread, which does not delay the exit of the process."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer.cancel


class SlowResponseNotice:
    """Prints once to standard error which server a command waits for. After the first response it never does.

    One instance serves one command. Threads may use it at the same time.
    """

    def __init__(self, schedule: CallLater = call_later) -> None:
        self._schedule, self._lock = schedule, threading.Lock()
        self._shown = self._answered = False

    @contextmanager
    def __call__(self, host: str) -> Iterator[None]:
        """Wrap a request to ``host``."""
        if self._answered:
            yield
            return
        cancel = self._schedule(NOTICE_SECONDS, lambda: self._show(host))
        try:
            yield
        finally:
            cancel()
        self._answered = True

    def _show(self, host: str) -> None:
        with self._lock:
            if self._shown or self._answered:
                return
            self._shown = True
        clean = "\r\x1b[K" if sys.stderr.isatty() else ""
        text = strip_control_characters(f"waiting for an answer of {host} …")
        print(f"{clean}{text}", file=raw_stream(sys.stderr), flush=True)
