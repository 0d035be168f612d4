"""Signals as values: the loop that follows a job waits for them and is never cut short by them."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from types import FrameType

SignalHandler = Callable[[int, FrameType | None], object] | int | None


class StopSignals:
    """SIGINT and SIGTERM are collected, SIGCHLD ends a wait; everything is as before on exit. Main thread only."""

    def __enter__(self) -> StopSignals:
        self._received: list[signal.Signals] = []
        self._wake, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        self._previous_wakeup = signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        self._previous_handlers: dict[signal.Signals, SignalHandler] = {
            number: signal.signal(number, self._record_signal)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        os.close(self._wake)
        os.close(self._wake_writer)

    def wait(self, seconds: float) -> list[signal.Signals]:
        """The wishes to stop that came; returns early on one, and when a child has ended."""
        if not self._received and select.select([self._wake], [], [], seconds)[0]:
            os.read(self._wake, 4096)
        received, self._received = self._received, []
        return received

    def _record_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number != signal.SIGCHLD:
            self._received.append(signal.Signals(number))
