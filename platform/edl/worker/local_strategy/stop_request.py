"""Ctrl-C and SIGTERM of strategy Local: training ends after the step at work, and after a checkpoint of it.

Python runs signal handlers in the main thread, which trains. While a checkpoint is of use, the first signal is only
noted, and a timer sees to it that nothing takes longer than ``FINAL_SECONDS``; the second one, and any signal at
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

_STOPPING = f"Stopping: a checkpoint is written first, {FINAL_SECONDS:g} s at most. A second Ctrl-C skips it."


class StoppedError(KeyboardInterrupt):
    """The user stops the run; no code of the user's catches it by accident.

    Attributes:
        exit_code: that shells expect after the signal.
        reason: for people.
    """

    def __init__(self, number: int, reason: str = STOPPED) -> None:
        super().__init__(reason)
        self.exit_code, self.reason = 128 + number, reason


class StopRequest:
    """Whether the user wants the run to end: answers SIGINT and SIGTERM until its exit. Main thread only.

    Attributes:
        wanted: the signal that came while ``deferred``; None if none did.
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
        """In here a first signal is noted in ``wanted``; whoever is in here looks at it between two steps."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
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
