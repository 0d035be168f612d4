"""Graceful shutdown within a second plus the time of a push, whatever the other threads do."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeAlias

from edl.api.errors import EdlError

# --------------------------------------------------------------------------------------------------
# Critical sections that SIGTERM must not interrupt: a push in flight, a result being written.
# Everything else (importing TensorFlow, tracing, waiting for work) may be abandoned at any time,
# because a worker holds nothing that cannot be lost. So shutdown waits only for this gate.


class LeavingError(Exception):
    """The worker was asked to stop, so nothing new may begin. It is no failure, hence not an EdlError."""


class ShutdownGate:
    """Admits one critical section at a time, and none after ``close``."""

    def __init__(self) -> None:
        self._section_lock = threading.Lock()
        self._closed = threading.Event()

    @property
    def closed(self) -> bool:
        """Whether the worker was asked to stop."""
        return self._closed.is_set()

    @contextmanager
    def critical_section(self) -> Iterator[None]:
        """A section that shutdown does not interrupt.

        Raises:
            LeavingError: the gate is closed.
        """
        with self._section_lock:
            if self._closed.is_set():
                raise LeavingError
            yield

    def close(self, wait_seconds: float) -> bool:
        """Admit no new section and wait for the current one; False if it still runs after ``wait_seconds``."""
        self._closed.set()
        if not self._section_lock.acquire(timeout=wait_seconds):
            return False
        self._section_lock.release()
        return True


_LOG = logging.getLogger(__name__)

PUSH_WAIT_SECONDS = 0.5
"""Seconds that a push in flight gets.

A PS that pauses pushes for a cut may need longer; then the master asks the PS for the lease's
progress.
"""
LEAVE_WAIT_SECONDS = 0.35
"""Seconds for returning the leases to the master.

If the master does not answer in time, the leases return when it learns of the end of the process.
"""


LeaseReturn: TypeAlias = "Future[Callable[[float], None]]"


class GracefulShutdown:
    """Shuts this process down after SIGTERM.

    Args:
        gate: the gate, which is closed first so that nothing new begins.
        lease_return: once this worker can have leases: a function that returns them to the master within some seconds.
        end_process: ends the process with an exit code.
    """

    def __init__(self, gate: ShutdownGate, lease_return: LeaseReturn, end_process: Callable[[int], None]) -> None:
        self.gate = gate
        self.lease_return = lease_return
        self._end_process = end_process
        self._finished = threading.Event()

    def shut_down(self) -> None:
        """Shut down; called on the thread that received the signal."""
        if not self.gate.close(PUSH_WAIT_SECONDS):
            _LOG.info("SIGTERM during a push: the master will ask the parameter servers whether it was applied")
        if self.lease_return.done():
            try:
                self.lease_return.result()(LEAVE_WAIT_SECONDS)
            except EdlError as error:
                _LOG.info("the leases were not returned: %s", error)
        _LOG.info("exiting")
        self._end_process(0)
        self._finished.set()

    def wait_for_exit(self) -> int:
        """Block the main thread after it noticed the shutdown; returns the exit code."""
        self._finished.wait()
        return 0


# --------------------------------------------------------------------------------------------------
# Receiving SIGTERM promptly even while the main thread is inside TensorFlow. Python runs signal
# handlers between bytecodes of the main thread, which an import or a step of TensorFlow can keep in
# C++ for seconds. So the interpreter's C-level handler writes to a pipe, and a thread reads it.


def on_sigterm(callback: Callable[[], None]) -> None:
    """Call ``callback`` once, on its own thread, when SIGTERM arrives.

    A terminal's Ctrl-C reaches every process of the job; the supervisor decides what it means.
    Call from the main thread.
    """
    read_socket, write_socket = socket.socketpair()
    write_socket.setblocking(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A handler must be set, or the signal would end the process; the work is done by the thread below.
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    signal.set_wakeup_fd(write_socket.fileno(), warn_on_full_buffer=False)

    def wait() -> None:
        with read_socket, write_socket:
            while read_socket.recv(1)[0] != signal.SIGTERM:
                pass
            callback()

    threading.Thread(target=wait, name="sigterm", daemon=True).start()


def end_process(code: int) -> None:
    """End this process immediately, whatever its threads do.

    Only this function does so, after SIGTERM and when the work is done. In the first case the main thread may
    be in C++ for seconds and cannot be interrupted; in the second case the shutdown of TensorFlow would take
    as long. Nothing is lost: a worker holds no state, and the handlers of logging do not buffer.
    """
    os._exit(code)
