"""Ctrl-C and SIGTERM of strategy Local: training stops after the current step, and after a checkpoint of it.

Python runs signal handlers in the main thread, which trains. During training, the first signal is only noted. A timer
ends the process if the step and the checkpoint take longer than ``FINAL_SECONDS``. A second signal, or a signal at
another time, ends the process at once.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

from edl.core.cuts import FINAL_SECONDS, STOPPED

_STOPPING = f"Stopping: writing a checkpoint first, for at most {FINAL_SECONDS:g} s. Press Ctrl-C again to skip it."


class StoppedError(KeyboardInterrupt):
    """The user stops the run.

    A ``KeyboardInterrupt``, so that ``except Exception`` in the user's code does not catch it.

    Attributes:
        exit_code: 128 plus the signal's number, as shells expect.
        reason: the reason for the job's status and summary.
    """

    def __init__(self, number: int, reason: str = STOPPED) -> None:
        super().__init__(reason)
        self.exit_code, self.reason = 128 + number, reason


class StopRequest:
    """Handles SIGINT and SIGTERM inside its ``with`` block. Use it in the main thread.

    Attributes:
        wanted: the signal that arrived inside :meth:`deferred`, or None.
    """

    def __init__(self) -> None:
        self.wanted: int | None = None
        self._deferred = False

    def __enter__(self) -> Self:
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._before = {number: signal.signal(number, self._signalled) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Only note the first signal in ``wanted`` inside this block; its code checks ``wanted`` between two steps."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
            # A signal after the last check is only noted: the timer must not interrupt what follows.
            if self.wanted is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        del frame
        if not self._deferred or self.wanted is not None:
            raise StoppedError(number)
        self.wanted = number
        signal.signal(signal.SIGALRM, self._late)
        signal.setitimer(signal.ITIMER_REAL, FINAL_SECONDS)
        print(_STOPPING, file=sys.stderr, flush=True)

    def _late(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        assert self.wanted is not None
        raise StoppedError(self.wanted, f"{STOPPED}; no checkpoint was written within {FINAL_SECONDS:g} s")
