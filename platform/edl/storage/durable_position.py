"""How far the journal is durable, and the threads that wait until it has come further."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from edl.api.errors import EdlError, RetryableError


@dataclass(frozen=True)
class _LsnWaiter:
    """Somebody who waits for ``lsn``; ``release`` is called once, when it is reached or never will be."""

    lsn: int
    release: Callable[[], object]


class DurablePosition:
    """An lsn that only grows, until it fails for good."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiters: list[_LsnWaiter] = []
        self._lsn = 0
        self._failure: EdlError | None = None

    @property
    def failure(self) -> EdlError | None:
        """Why it will never move again; None while all is well."""
        return self._failure

    def advance(self, count: int) -> None:
        """``count`` more entries are durable: let their threads go."""
        with self._mutex:
            self._lsn += count
            done = [waiter for waiter in self._waiters if waiter.lsn <= self._lsn]
            self._waiters = [waiter for waiter in self._waiters if waiter.lsn > self._lsn]
        for waiter in done:
            waiter.release()

    def fail(self, error: EdlError) -> None:
        """Nothing more will become durable: every thread that waits, now or later, gets ``error``."""
        with self._mutex:
            self._failure = error
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.release()

    def wait(self, lsn: int, timeout: float | None) -> None:
        """Block until ``lsn`` is reached.

        Raises:
            EdlError: what ``fail`` was given.
            RetryableError: ``timeout`` seconds are over.
        """
        if lsn <= self._lsn:
            return
        gate = threading.Lock()  # a bare lock wakes just this thread, without a shared one to pass on
        gate.acquire()
        if self.call_when(lsn, gate.release) and not gate.acquire(timeout=-1 if timeout is None else timeout):
            raise RetryableError(f"the journal was not synced within {timeout} s")
        if lsn > self._lsn and self._failure is not None:
            raise self._failure

    def call_when(self, lsn: int, release: Callable[[], object]) -> bool:
        """Call ``release`` once, on the writer's thread, when ``lsn`` is reached or never will be; it must not block.

        Returns:
            Whether it will be called: not if ``lsn`` is reached already, or never will be.
        """
        with self._mutex:
            if lsn <= self._lsn or self._failure is not None:
                return False
            self._waiters.append(_LsnWaiter(lsn, release))
        return True
