"""Commands on their way out: each is carried out after what it rests on is on disk, in the order of the decisions.

A parameter server that was told of a cut, a pod that was started, a line that people have read: none of it may belong
to a past that the next master does not find in the journal.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from edl.core.events import CoreCommand


class CommandOutbox:
    """A queue between deciding and doing.

    Args:
        durable: waits until the journal is on disk up to a number.
        do: carries a command out; must not wait for anybody.
    """

    def __init__(self, durable: Callable[[int], None], do: Callable[[CoreCommand], None]) -> None:
        self._durable, self._do = durable, do
        self._queue: queue.SimpleQueue[tuple[int, CoreCommand | threading.Event] | None] = queue.SimpleQueue()

    def put(self, lsn: int, command: CoreCommand) -> None:
        """Queue a command that rests on everything up to ``lsn``."""
        self._queue.put((lsn, command))

    def settle(self, seconds: float) -> bool:
        """Wait until what is queued now is carried out; whether it is."""
        done = threading.Event()
        self._queue.put((0, done))
        return done.wait(seconds)

    def close(self) -> None:
        """End ``run`` after what is queued."""
        self._queue.put(None)

    def run(self) -> None:
        """Carry out until closed.

        Raises:
            EdlError: the journal cannot be written: nothing more leaves.
        """
        while (item := self._queue.get()) is not None:
            lsn, command = item
            if lsn:
                self._durable(lsn)
            if isinstance(command, threading.Event):
                command.set()
            else:
                self._do(command)
