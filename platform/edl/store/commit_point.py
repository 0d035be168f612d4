"""How far the journal is durable, and the threads that wait until it has come further."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from edl.core.errors import EdlError, RetryableError


@dataclass(frozen=True)
class _Waiter:
    """A thread that waits for ``lsn``. A bare lock wakes just this thread, without a shared one to pass on."""

    lsn: int
    gate: threading.Lock


class CommitPoint:
    """An lsn that only grows, until it fails for good."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiters: list[_Waiter] = []
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
            waiter.gate.release()

    def fail(self, error: EdlError) -> None:
        """Nothing more will become durable: every thread that waits, now or later, gets ``error``."""
        with self._mutex:
            self._failure = error
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.gate.release()

    def wait(self, lsn: int, timeout: float | None) -> None:
        """Block until ``lsn`` is reached.

        Raises:
            EdlError: what ``fail`` was given.
            RetryableError: ``timeout`` seconds are over.
        """
        if lsn <= self._lsn:
            return
        waiter = self._register(lsn)
        if waiter is not None and not waiter.gate.acquire(timeout=-1 if timeout is None else timeout):
            raise RetryableError(f"the journal was not synced within {timeout} s")
        if lsn > self._lsn and self._failure is not None:
            raise self._failure

    def _register(self, lsn: int) -> _Waiter | None:
        with self._mutex:
            if lsn <= self._lsn or self._failure is not None:
                return None
            waiter = _Waiter(lsn, threading.Lock())
            waiter.gate.acquire()
            self._waiters.append(waiter)
        return waiter
