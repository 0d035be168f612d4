"""In which order the parts of the steps of a range happen: one after another, or those of neighbouring steps at once.

A step is prepared (its records fed, their rows pulled), computed and sent. Sending and pulling wait for parameter
servers, computing does not, so that the lane does the first two while the caller computes:

    caller  | compute n          | compute n+1        | compute n+2
    lane    | send n-1 prepare n+1 | send n  prepare n+2 | send n+1 prepare n+3

The lane's order is the whole protocol: a step is sent after the one before it was answered, and prepared after the one
before the last was. So there is one push on its way at most, and a step uses values that lack one push of this worker
at most, the newest. docs/design/0008-modes.md has what follows from it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from edl.worker.lane import Lane

Ready = TypeVar("Ready")
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class Steps(Generic[Ready, Done]):
    """The parts of the steps of one range. Each is called once for each step, in the order of the steps.

    Attributes:
        prepare: gives what the next step needs; None after the last one.
        compute: gives the outcome of a step; called on the caller's thread.
        send: puts a step in; False if the rest of the range is not wanted any more.
        end: tells the user's code that a step is over; on the caller's thread, before the next one is computed.
    """

    prepare: Callable[[], Ready | None]
    compute: Callable[[Ready], Done]
    send: Callable[[Ready, Done], bool]
    end: Callable[[Ready, Done], None]


Schedule: TypeAlias = Callable[[Steps[Any, Any]], bool]
"""Goes through all steps; False if one was not wanted. Nothing is under way when it returns or raises."""


def in_turn(steps: Steps[Ready, Done]) -> bool:
    """Each step as a whole before the next one begins: it is computed from values that nobody could have newer."""
    while (ready := steps.prepare()) is not None:
        done = steps.compute(ready)
        if not steps.send(ready, done):
            return False
        steps.end(ready, done)
    return True


class Overlapped:
    """Sends one step and prepares another while the one between them is computed.

    A step that is computed while the one before it turns out not to be wanted is thrown away.

    Args:
        lane: sends and prepares.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def __call__(self, steps: Steps[Ready, Done]) -> bool:
        """See :data:`Schedule`.

        Raises:
            Exception: what the steps raise; of two that fail at once, what the computed one does.
        """
        try:
            return self._go(steps)
        finally:
            self._lane.drain()

    def _go(self, steps: Steps[Ready, Done]) -> bool:
        ready = self._lane.submit(steps.prepare).result()
        following = self._lane.submit(steps.prepare)
        sent: Future[bool] | None = None
        while ready is not None:
            done = steps.compute(ready)
            if sent is not None and not sent.result():
                return False
            sent = self._lane.submit(partial(steps.send, ready, done))
            after = self._lane.submit(partial(_unless_refused, sent, steps.prepare))
            steps.end(ready, done)
            ready, following = following.result(), after
        return sent is None or sent.result()


def _unless_refused(sent: Future[bool], prepare: Callable[[], Ready | None]) -> Ready | None:
    """On the lane, behind ``sent``: prepare a step only if it will be wanted."""
    return prepare() if sent.result() else None
