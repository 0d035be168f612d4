"""Evaluates a copy of a rank's variables on a thread of its own, while the rank takes part in the others' steps.

The loop of the rank copies the variables between two steps, and goes on without records of its own: a step is as slow
as its slowest rank, so this rank must not compute a gradient beside the evaluation.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from edl.core.evaluation_copies import CopyAction, CopyReport, OwnCopy
from edl.worker.graceful_shutdown import LeavingError
from edl.worker.lease_client import LeasedTask

_LOG = logging.getLogger(__name__)

STOP_SECONDS = 10.0
"""Seconds for which the end of the process waits for the minibatch at work."""

Values = TypeVar("Values")


class CopyEvaluation(Generic[Values]):
    """The copy of this rank, and the thread that evaluates it.

    Args:
        every: ``train.evaluation_steps``.
        copy: copies the variables; called between two steps.
        run_task: runs a task with the copy that :meth:`find_copy` returns; returns the exit code if the worker must
            end.
    """

    def __init__(self, every: int, copy: Callable[[], Values], run_task: Callable[[LeasedTask], int | None]) -> None:
        self._own = OwnCopy(every)
        self._copy = copy
        self._run_task = run_task
        self._lock = threading.Lock()
        self._values: Values | None = None
        self._tasks: queue.SimpleQueue[LeasedTask | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._exit_code: int | None = None
        self._failure: BaseException | None = None

    # ------------------------------------------------------------------ the loop of the rank

    @property
    def has_copy(self) -> bool:
        """Whether this rank has a copy: then it adds no records to the steps of the others."""
        return self._own.step > 0

    def follow(self, copy_at: int, evaluated_step: int, step: int) -> bool:
        """Copy or drop the variables after a step, as the view says; returns whether the master should hear of it.

        Args:
            copy_at, evaluated_step: of the view.
            step: the newest step in the variables.
        """
        action = self._own.decide(copy_at, evaluated_step, step)
        if action is CopyAction.TAKE:
            values = self._copy()
            with self._lock:
                self._own.take(step)
                self._values = values
            return True
        if action is CopyAction.DROP:
            self.drop()
        return False

    def drop(self) -> None:
        """Drop the copy: its evaluation is over, or this rank has left the world."""
        with self._lock:
            self._own.drop()
            self._values = None

    def submit(self, task: LeasedTask) -> None:
        """Let the thread run a task."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="evaluation", daemon=True)
            self._thread.start()
        self._tasks.put(task)

    def check(self) -> int | None:
        """The exit code if a task has ended this worker.

        Raises:
            BaseException: what a task has raised.
        """
        if self._failure is not None:
            raise self._failure
        return self._exit_code

    def stop(self) -> None:
        """End the thread after the minibatch at work: TensorFlow must not run while the process ends."""
        self.drop()
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join(STOP_SECONDS)

    # ------------------------------------------------------------------ other threads

    @property
    def report(self) -> CopyReport:
        """What the master is told."""
        with self._lock:
            return self._own.report

    def find_copy(self, step: int) -> Values | None:
        """The variables of this step; None: this rank has no copy of it any more."""
        with self._lock:
            return self._values if self._own.step == step else None

    def _run(self) -> None:
        try:
            while self._exit_code is None and (task := self._tasks.get()) is not None:
                self._exit_code = self._run_task(task)
        except LeavingError:
            _LOG.info("received SIGTERM: this worker ends its evaluation")
        except BaseException as error:  # noqa: BLE001  raised again by the loop of the rank
            self._failure = error
