"""Minibatches for a loader that works ahead of the training step: taken early, done later and in the same order.

A loader with processes asks for minibatches that are trained seconds later. So taking the next one says nothing about
the one before; what the loop gets from the loader does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

from edl.sharding.record_batch import RecordBatch
from edl.worker.lease_client import TRAINING_KIND, LeaseClient, LeasedTask, ProgressReporter
from edl.worker.record_stream import LoadedStep, RecordStream

Result = TypeVar("Result")

_PATIENCE_SECONDS = 0.05
"""How long a loader waits for a lease while it has other minibatches: a lease usually comes in a few milliseconds."""
_POLL_SECONDS = 0.2
"""Between two looks at whether this worker was told to leave."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """A step that was given to the loader."""

    task: LeasedTask
    step: int
    skipped: int
    has_records: bool


class BatchesAhead:
    """The minibatches of a worker, of which several are under way. Use it from one thread.

    Args:
        leases, stream, progress: the client's.
        make_batch: makes the records of a step; None if all are corrupt.
        raise_if_leaving: raises an error if this worker was told to leave.
        training: a context in which one minibatch is trained: a worker that leaves waits for its end.
        take_loss: the loss that the program has reported for the minibatch in progress.
        flush: sends everything that is done to the master, and waits for its answers.
    """

    def __init__(
        self,
        leases: LeaseClient,
        stream: RecordStream,
        progress: ProgressReporter,
        make_batch: Callable[[LeasedTask, LoadedStep], RecordBatch | None],
        raise_if_leaving: Callable[[], None],
        training: Callable[[], AbstractContextManager[None]],
        take_loss: Callable[[], float | None],
        flush: Callable[[], None],
    ) -> None:
        self._leases, self._stream, self._progress = leases, stream, progress
        self._make_batch, self._raise_if_leaving = make_batch, raise_if_leaving
        self._training, self._take_loss, self._flush = training, take_loss, flush
        self._task: LeasedTask | None = None
        self._steps: Iterator[LoadedStep] = iter(())
        self._taken: deque[_Taken] = deque()

    @property
    def oldest_lease(self) -> int:
        """The lease whose minibatch is in progress; 0 if there is none."""
        return self._taken[0].task.lease_id if self._taken else 0

    def take(self) -> RecordBatch | None:
        """The next minibatch; None if there are no more, or none comes before those under way are done.

        Raises:
            WorkerLeaving: the cluster takes this worker away.
            EdlError: records cannot be read, or the master is lost.
        """
        while self._task is not None or self._next_task():
            assert self._task is not None
            loaded = next(self._steps, None) if self._leases.is_held(self._task.lease_id) else None
            if loaded is None:
                self._end_task(self._task)
                continue
            batch = self._make_batch(self._task, loaded)
            self._taken.append(_Taken(self._task, loaded.step, loaded.skipped_records, batch is not None))
            if batch is not None:
                return batch
            self._finish_empty()
        return None

    def _next_task(self) -> bool:
        """Begin with the next lease; returns whether there is one."""
        while True:
            self._raise_if_leaving()
            task = self._leases.poll_task(_PATIENCE_SECONDS if self._taken else _POLL_SECONDS)
            if task is not None and task.kind == TRAINING_KIND and self._leases.is_held(task.lease_id):
                self._task, self._steps = task, self._stream.load_steps(task)
                return True
            if task is not None:
                # It was revoked before it was taken.
                if task.kind == TRAINING_KIND:
                    self._stream.drop_task(task)
                self._leases.release_slot(task)
            elif self._taken or self._leases.has_ended:
                return False

    def _end_task(self, task: LeasedTask) -> None:
        """All steps of a lease are under way: the next lease may come."""
        self._task = None
        is_held = self._leases.is_held(task.lease_id)
        self._leases.release_slot(task)
        if not is_held:
            self._leases.mark_lost([task.lease_id])

    def follow(self, results: Iterable[Result]) -> Iterator[Result]:
        """What a loader makes of the minibatches, in their order; each one is done when the next one is asked for.

        Raises:
            WorkerLeaving: the cluster takes this worker away.
        """
        for result in results:
            taken = self._taken[0]
            if not self._leases.is_held(taken.task.lease_id):
                # Another worker has its records.
                self._taken.popleft()
                self._finish_empty()
                continue
            self._raise_if_leaving()
            with self._training():
                yield result
                self._finish(self._taken.popleft(), self._take_loss())
                self._finish_empty()

    def follow_all(self, loader: Iterable[Result]) -> Iterator[Result]:
        """The same for a loader that can be iterated again, until there are no more records."""
        while not self._leases.has_ended:
            yield from self.follow(loader)
        self._raise_if_leaving()
        self._flush()

    def _finish_empty(self) -> None:
        """Minibatches without records never come out of the loader: they are done with the one before."""
        while self._taken and not self._taken[0].has_records:
            self._finish(self._taken.popleft(), None)

    def _finish(self, taken: _Taken, loss: float | None) -> None:
        lease = taken.task.lease_id
        self._progress.record_step(lease, taken.step + 1, loss=loss, skipped_records=taken.skipped)
        if taken.step + 1 == taken.task.step_count:
            self._progress.finish_task(lease)
