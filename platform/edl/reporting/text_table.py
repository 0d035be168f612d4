"""Tables for people and for pipes: aligned columns, no frames."""

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
    """Each row as one line; columns as wide as their widest cell, those in ``right`` aligned to the right."""
    if not rows:
        return []
    rows = [[to_single_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "   ".join(_pad_cell(row, at, widths[at], at in right) for at in range(len(widths))).rstrip() for row in rows
    ]


def wrap_text(text: str, width: int, *, first_indent: str = "", next_indent: str = "") -> list[str]:
    """Wrap a text at ``width`` characters, between words only: a longer path stays whole, so it can be copied.

    Args:
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
    """A text beside what it is, as lines."""
    head = f"  {label:<{_LABEL_WIDTH}}"
    return wrap_text(text, width, first_indent=head, next_indent=" " * len(head))


def _pad_cell(row: Sequence[str], at: int, width: int, right: bool) -> str:
    return row[at].rjust(width) if right else row[at].ljust(width)


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

    def show_text(self, text: str, *, permanent: bool = True) -> None:
        """The newest word; nothing if it is that of before. What does not last is for a terminal only."""
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
# Tells people that a command waits for the first answer of a server: that must not look like a command that hangs.


NOTICE_SECONDS = 2.0
"""A silence that is worth a word."""

CallLater = Callable[[float, Callable[[], None]], Callable[[], object]]
"""Calls something after so many seconds, unless what it returns is called before."""


def call_later(seconds: float, call: Callable[[], None]) -> Callable[[], object]:
    """In a thread of its own, which holds up no exit."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer.cancel


class SlowResponseNotice:
    """For one command: says once, on standard error, whom it waits for; silent for good after the first answer.

    Safe to use from several threads, which ask for different things at once.
    """

    def __init__(self, schedule: CallLater = call_later) -> None:
        self._schedule, self._lock = schedule, threading.Lock()
        self._shown = self._answered = False

    @contextmanager
    def __call__(self, host: str) -> Iterator[None]:
        """While a request is on its way to ``host``."""
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
