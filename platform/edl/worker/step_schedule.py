"""In which order the parts of the steps of a range happen: one after another, or those of neighbouring steps at once.

A step is prepared (its records fed, their rows pulled), gets its dense values, is computed and sent. Sending and
pulling wait for parameter servers, computing does not, so that the lane does these while the caller computes:

    caller  |          compute n            |            compute n+1          |
    lane    | values n | send n-1 prepare n+1 | values n+1 | send n  prepare n+2 | values n+2

For its dense values alone a step waits: whatever others push while the step before it is computed is in them. Values
that came as early as the rows would lack twice as many pushes of others, and that costs models their accuracy.

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

from edl.worker.serial_executor import SerialExecutor

PreparedT = TypeVar("PreparedT")
ReadyT = TypeVar("ReadyT")
ComputedT = TypeVar("ComputedT")


@dataclass(frozen=True, slots=True)
class StepStages(Generic[PreparedT, ReadyT, ComputedT]):
    """The parts of the steps of one range. Each is called once for each step, in the order of the steps.

    Attributes:
        prepare: gives what the next step needs, but for dense values; None after the last one.
        values: gives it the newest dense values; told of the step before it if that is not sent yet, but will be.
        compute: gives the outcome of a step; called on the caller's thread.
        send: puts a step in; False if the rest of the range is not wanted any more.
        end: tells the user's code that a step is over; on the caller's thread, before the next one is computed.
    """

    prepare: Callable[[], PreparedT | None]
    values: Callable[[PreparedT, ComputedT | None], ReadyT]
    compute: Callable[[ReadyT], ComputedT]
    send: Callable[[ReadyT, ComputedT], bool]
    end: Callable[[ReadyT, ComputedT], None]


StepSchedule: TypeAlias = Callable[[StepStages[Any, Any, Any]], bool]
"""Goes through all steps; False if one was not wanted. Nothing is under way when it returns or raises."""


def run_sequentially(steps: StepStages[PreparedT, ReadyT, ComputedT]) -> bool:
    """Each step as a whole before the next one begins: it is computed from values that nobody could have newer."""
    while (prepared := steps.prepare()) is not None:
        ready = steps.values(prepared, None)
        done = steps.compute(ready)
        if not steps.send(ready, done):
            return False
        steps.end(ready, done)
    return True


class OverlappedSchedule:
    """Sends one step and prepares another while the one between them is computed.

    A step that is computed while the one before it turns out not to be wanted is thrown away.

    Args:
        lane: sends and prepares.
    """

    def __init__(self, lane: SerialExecutor) -> None:
        self._executor = lane

    def __call__(self, steps: StepStages[PreparedT, ReadyT, ComputedT]) -> bool:
        """See :data:`StepSchedule`.

        Raises:
            Exception: what the steps raise; of two that fail at once, what the computed one does.
        """
        try:
            return self._run_stages(steps)
        finally:
            self._executor.drain()

    def _run_stages(self, steps: StepStages[PreparedT, ReadyT, ComputedT]) -> bool:
        prepared = self._executor.submit(steps.prepare)
        ready = self._executor.submit(partial(_pull_values_for, steps, prepared, None)).result()
        following = self._executor.submit(steps.prepare)
        sent: Future[bool] | None = None
        while ready is not None:
            done = steps.compute(ready)
            if sent is not None and not sent.result():
                return False
            supplied = self._executor.submit(partial(_pull_values_for, steps, following, done))
            sent = self._executor.submit(partial(steps.send, ready, done))
            following = self._executor.submit(partial(_prepare_unless_revoked, sent, steps.prepare))
            steps.end(ready, done)
            ready = supplied.result()
        return sent is None or sent.result()


def _pull_values_for(
    steps: StepStages[PreparedT, ReadyT, ComputedT], prepared: Future[PreparedT | None], before: ComputedT | None
) -> ReadyT | None:
    """On the lane, behind ``prepared``: what the step is computed from; None after the last one."""
    found = prepared.result()
    return None if found is None else steps.values(found, before)


def _prepare_unless_revoked(sent: Future[bool], prepare: Callable[[], PreparedT | None]) -> PreparedT | None:
    """On the lane, behind ``sent``: prepare a step only if it will be wanted."""
    return prepare() if sent.result() else None
