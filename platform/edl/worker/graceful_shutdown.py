"""Leaving when told to: within a second and what a push takes, whatever the other threads do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from edl.api.errors import EdlError
from edl.worker.shutdown_gate import ShutdownGate

_LOG = logging.getLogger(__name__)

PUSH_WAIT_SECONDS = 0.5
"""Seconds that a push on its way gets; a PS that holds pushes back for a cut may need longer, and then the master asks
the PS how far the lease got."""
LEAVE_WAIT_SECONDS = 0.35
"""Seconds that the master gets to take the leases back at once; else it learns from the end of the process."""


class GracefulShutdown:
    """How this process ends when it is told to go.

    Args:
        gate: closed first, so that nothing new begins.
        end: ends the process with an exit code.
    """

    def __init__(self, gate: ShutdownGate, end: Callable[[int], None]) -> None:
        self.gate = gate
        self._end = end
        self._return_leases: Callable[[float], None] | None = None
        self._gone = threading.Event()

    def prepare(self, goodbye: Callable[[float], None]) -> None:
        """From now on there is a master to say goodbye to; ``goodbye`` takes a deadline in seconds."""
        self._return_leases = goodbye

    def go(self) -> None:
        """Leave: called on the thread that noticed the signal."""
        if not self.gate.close(PUSH_WAIT_SECONDS):
            _LOG.info("told to go while a push is on its way: leaving it to the master to find out")
        if self._return_leases is not None:
            try:
                self._return_leases(LEAVE_WAIT_SECONDS)
            except EdlError as error:
                _LOG.info("left without a goodbye: %s", error)
        _LOG.info("gone")
        self._end(0)
        self._gone.set()

    def wait(self) -> int:
        """For the main thread, once it noticed that it was told to go: returns the exit code."""
        self._gone.wait()
        return 0
