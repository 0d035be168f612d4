"""What must not be cut in two when this worker is told to go: a push on its way, a result being written.

Everything else (importing TensorFlow, tracing, waiting for work) may be abandoned at any moment, because a worker
holds nothing that cannot be lost. So whoever ends the worker only waits for this gate.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class LeavingError(Exception):
    """The worker was told to go: nothing new begins. Not a failure, hence no EdlError."""


class ShutdownGate:
    """Admits one critical section at a time, and none after ``close``."""

    def __init__(self) -> None:
        self._section_lock = threading.Lock()
        self._closed = threading.Event()

    @property
    def closed(self) -> bool:
        """Whether the worker was told to go."""
        return self._closed.is_set()

    @contextmanager
    def critical_section(self) -> Iterator[None]:
        """A section that is not abandoned half-way.

        Raises:
            LeavingError: the gate is closed.
        """
        with self._section_lock:
            if self._closed.is_set():
                raise LeavingError
            yield

    def close(self, wait_seconds: float) -> bool:
        """Let nothing new begin, and wait for what runs; False if it still runs after ``wait_seconds``."""
        self._closed.set()
        if not self._section_lock.acquire(timeout=wait_seconds):
            return False
        self._section_lock.release()
        return True
