"""Tells people that a command waits for the first answer of a server: that must not look like a command that hangs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edl.reporting.terminal_text import raw_stream, strip_control_characters

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

    def __init__(self, later: CallLater = call_later) -> None:
        self._schedule, self._lock = later, threading.Lock()
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
