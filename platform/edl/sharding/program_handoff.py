"""Two threads that take turns: the loop of the rank, and the program, which computes and applies.

The loop (``edl.worker.allreduce.step_loop``) decides when a step is computed, applied or given up. The program's
functions run on the program's own thread, while that waits here: frameworks keep settings by thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from edl.api.errors import EdlError

Result = TypeVar("Result")


class WorldChangedError(EdlError):
    """A step did not happen, because a worker was lost: the program must not apply it. Its records come again."""


class StepsClosedError(Exception):
    """The program takes no more steps."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a program adds to a step.

    Attributes:
        arrays: in the order of the program's arrays; None: nothing.
        weight: of these arrays in the mean of all workers.
        loss: the loss of the records, for status and plots; 0 if the program says none.
    """

    arrays: tuple[Any, ...] | None
    weight: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[], Any]
    result: Future[Any]


@dataclass(frozen=True, slots=True)
class _Sums:
    total_weight: float


@dataclass(frozen=True, slots=True)
class _Abandoned:
    reason: str


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None


class ProgramHandoff:
    """The messages between the two threads. Create it on the program's thread."""

    def __init__(self) -> None:
        self._program = threading.current_thread()
        self._to_program: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._to_loop: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._has_open_step = False
        """Whether the program has a step that is neither applied nor given up; only the loop's thread uses it."""
        self._end: _End | None = None

    # ------------------------------------------------------------------ the loop's thread

    def call(self, function: Callable[[], Result]) -> Result:
        """Run a function on the program's thread, which must be waiting here, and return its result.

        Raises:
            StepsClosedError: the program takes no more steps.
        """
        # This thread would wait for itself: only it runs what is in the queue.
        if threading.current_thread() is self._program:
            return function()
        result: Future[Result] = Future()
        self._to_program.put(_Call(function, result))
        return result.result()

    def compute(self, step: Any) -> Contribution:
        """Give the program a step, and wait for what it adds.

        Raises:
            StepsClosedError: the program takes no more steps.
        """
        self._has_open_step = True
        self._to_program.put(step)
        contribution = self._receive()
        assert isinstance(contribution, Contribution)
        return contribution

    @property
    def has_open_step(self) -> bool:
        """Whether the program waits for the sums of a step."""
        return self._has_open_step

    def apply(self, total_weight: float) -> None:
        """Let the program apply the sums, and wait until it has.

        Raises:
            StepsClosedError: the program takes no more steps.
        """
        self._to_program.put(_Sums(total_weight))
        self._receive()
        self._has_open_step = False

    def abandon(self, reason: str) -> None:
        """The step that the program waits for does not happen; nothing if it waits for none."""
        if self._has_open_step:
            self._has_open_step = False
            self._to_program.put(_Abandoned(reason))

    def end(self, error: BaseException | None) -> None:
        """No step follows."""
        self._to_program.put(_End(error))

    def _receive(self) -> Any:
        received = self._to_loop.get()
        if isinstance(received, StepsClosedError):
            # For whoever asks next.
            self._to_loop.put(received)
            raise received
        return received

    # ------------------------------------------------------------------ the program's thread

    def next_step(self) -> Any:
        """Wait for the next step; None if there is none.

        Raises:
            BaseException: what has ended the loop.
        """
        if self._end is None:
            received = self._serve()
            if not isinstance(received, _End):
                return received
        assert self._end is not None
        if self._end.error is not None:
            raise self._end.error
        return None

    def add(self, contribution: Contribution) -> float:
        """Add to the open step and wait for the sums; returns the sum of the weights.

        Raises:
            WorldChangedError: the step did not happen.
        """
        self._to_loop.put(contribution)
        received = self._serve()
        if isinstance(received, _Sums):
            return received.total_weight
        if isinstance(received, _Abandoned):
            raise WorldChangedError(received.reason)
        # The loop has failed; the error is raised where the program asks for the next step.
        raise WorldChangedError("the loop of this worker has ended")

    def applied(self) -> None:
        """The program has applied the sums."""
        self._to_loop.put(None)

    def close(self) -> None:
        """Take no more steps: whatever the loop waits for, it gets an error."""
        self._to_loop.put(StepsClosedError())
        # The loop may wait for a call that it has put before it finds this error: answer all until it ends.
        while self._end is None:
            received = self._to_program.get()
            if isinstance(received, _Call):
                received.result.set_exception(StepsClosedError())
            elif isinstance(received, _End):
                self._end = received

    def _serve(self) -> Any:
        """Run functions for the loop until something else comes."""
        while isinstance(received := self._to_program.get(), _Call):
            try:
                result = received.function()
            except BaseException as error:  # noqa: BLE001  the loop raises it, and it comes back with the end
                received.result.set_exception(error)
            else:
                received.result.set_result(result)
        if isinstance(received, _End):
            self._end = received
        return received
