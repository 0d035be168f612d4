"""The supervisor's event loop: sockets, signals and timers in one thread, without polling.

One thread because children are tied to the thread that forked them (``edl.cluster.local.parent_death``).
"""

from __future__ import annotations

import heapq
import itertools
import selectors
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

ReadyCallback = Callable[[int], None]
"""Called with the selector's event mask."""


class EventLoop:
    """Calls back what is due. Must live in the main thread, where signals arrive."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._signals: dict[int, Callable[[], None]] = {}
        self._previous_handlers: dict[int, Any] = {}
        self._pending_signals: set[int] = set()
        self._wakeup, self._wakeup_writer = socket.socketpair()
        for end in (self._wakeup, self._wakeup_writer):
            end.setblocking(False)
        self._previous_wakeup = signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)
        self.watch(self._wakeup, selectors.EVENT_READ, lambda _: self._drain())

    def watch(self, file: socket.socket | int, events: int, ready: ReadyCallback) -> None:
        """Call ``ready`` whenever the file is ready; again with other ``events`` to change them."""
        if file in self._selector.get_map():
            self._selector.modify(file, events, ready)
        else:
            self._selector.register(file, events, ready)

    def unwatch(self, file: socket.socket | int) -> None:
        """Watch a file no more."""
        self._selector.unregister(file)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call once, ``seconds`` from now."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), call))

    def on_signal(self, signum: int, call: Callable[[], None]) -> None:
        """Call from the loop, not from the signal handler, when the signal arrives."""
        self._signals[signum] = call
        self._previous_handlers[signum] = signal.signal(signum, self._record_signal)

    def turn(self) -> None:
        """Wait until something is due and do it."""
        timeout = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
        for key, mask in self._selector.select(timeout):
            # An earlier callback of this turn may have closed the file.
            if self._selector.get_map().get(key.fd) is key:
                key.data(mask)
        while self._pending_signals:
            self._signals[self._pending_signals.pop()]()
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def close(self) -> None:
        """Give signals back to whoever had them."""
        for signum, handler in self._previous_handlers.items():
            signal.signal(signum, handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        self._selector.close()
        self._wakeup.close()
        self._wakeup_writer.close()

    def _record_signal(self, signum: int, frame: FrameType | None) -> None:
        # What arrived is noted here and not read from the wakeup socket: a child that gets a signal between fork and
        # exec writes to that socket too, and must not be mistaken for the supervisor.
        self._pending_signals.add(signum)

    def _drain(self) -> None:
        while True:
            try:
                if not self._wakeup.recv(4096):
                    return
            except BlockingIOError:
                return
