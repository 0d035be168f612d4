"""Workers of one machine import TensorFlow and make the model in turns, as many at a time as there are cores.

An import takes seconds of one core. If more workers than cores import at once, all of them are late, and with them the
first minibatch, or the word that the model's code has a mistake. In turns the same work is done in the same time, and
the first worker is through with it in the time of one import.

A turn is a lock on a file in the job's private folder: the kernel ends it with the process. Nobody waits for a turn
forever: a worker that was stopped in the middle of its import holds up nobody for long.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

SLOT_WAIT_SECONDS = 15.0
"""Seconds after which a worker begins without a turn: some imports on a slow machine."""
_SLOT_POLL_SECONDS = 0.02


class ImportSlot:
    """A worker's turn; made by :func:`acquire_import_slot`."""

    def __init__(self, descriptor: int | None) -> None:
        """Hold the lock of an open file; None for a worker that lost patience."""
        self._descriptor = descriptor

    @property
    def held(self) -> bool:
        """Whether others wait for this one."""
        return self._descriptor is not None

    def end(self) -> None:
        """The next worker may begin."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def acquire_import_slot(folder: Path, cores: int, patience: float = SLOT_WAIT_SECONDS) -> ImportSlot:
    """Wait until fewer than ``cores`` workers of this machine import, for ``patience`` seconds at most.

    Args:
        folder: private to the job, on this machine.
        cores: that workers share.
        patience: in seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        for number in range(cores):
            descriptor = os.open(folder / f"turn-{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # another worker has it
                os.close(descriptor)
            else:
                return ImportSlot(descriptor)
        if time.monotonic() >= deadline:
            return ImportSlot(None)
        time.sleep(_SLOT_POLL_SECONDS)
