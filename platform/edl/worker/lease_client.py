"""The leases of this worker: what it works on, and the one that it holds ahead.

The next task is asked for while the current one is worked on, so that its records are read in time. One thread asks,
so the master is never asked twice at once.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from edl.api.errors import EdlError, RefusedError
from edl.core.strict_json import decode_json
from edl.transport import edl_pb2 as pb
from edl.worker.master_session import MasterSession

_LOG = logging.getLogger(__name__)

LEASES_AHEAD = 1
"""Leases held besides the current one."""
TRAINING_KIND = "training"
"""Kind of a task that pushes."""
PositionDescriber: TypeAlias = Callable[[int, int, int], str]
"""Names the records at positions ``[start, end)`` of an epoch for people: (epoch, start, end)."""
PLACEMENT_CHECK_KIND = "placement"
"""Kind of what ``take`` gives, besides tasks, after ``schedule_placement_check``; it has no lease."""


@dataclass(frozen=True, slots=True)
class LeasedTask:
    """A task in the hands of this worker: records ``[start, end)`` of a source; see ``Task`` in edl.proto.

    With a ``shuffle_window``: positions ``[start, end)`` of the shuffled order that has the fingerprint ``order``;
    ``named`` says which records they are, by epoch, start and end. ``one_by_one``: a minibatch is read and fed after
    the one before it is in, so that an end of this worker names the one that was at work.
    """

    lease: int
    kind: str
    source: str = ""
    start: int = 0
    end: int = 0
    minibatch: int = 1
    epoch: int = 0
    pin: int = 0
    step: int = 0
    expires_seconds: float = 60.0
    payload: bytes = b""
    shuffle_window: int = 0
    order: str = ""
    one_by_one: bool = False
    named: PositionDescriber | None = field(default=None, compare=False)

    @classmethod
    def from_message(cls, task: pb.Task, named: PositionDescriber | None = None) -> LeasedTask:
        """The task of a lease reply."""
        return cls(
            lease=task.lease,
            kind=task.kind,
            source=task.source,
            start=task.start,
            end=task.end,
            minibatch=max(1, task.minibatch),
            epoch=task.epoch,
            pin=task.pin,
            step=task.step,
            expires_seconds=task.expires_seconds,
            payload=task.payload,
            shuffle_window=task.window,
            order=task.order,
            one_by_one=task.one_by_one,
            named=named if task.window else None,
        )

    def told(self) -> Any:
        """What the master says of the task beside its range.

        Raises:
            RefusedError: it is not JSON.
        """
        try:
            return decode_json(self.payload, not_finite=True)
        except ValueError as error:
            raise RefusedError(f"what the master says of the task '{self.kind}' is not JSON: {error}") from error

    @property
    def steps(self) -> int:
        """Minibatches in the range."""
        return -(-(self.end - self.start) // self.minibatch)

    def window(self, step: int) -> tuple[int, int]:
        """The records, or positions, ``[start, end)`` of one step."""
        first = self.start + step * self.minibatch
        return first, min(self.end, first + self.minibatch)

    def records(self, step: int) -> tuple[str | None, str]:
        """For people: the source of the records of one step, None if they are of several, and which they are."""
        start, end = self.window(step)
        if self.named is None:
            return self.source, f"records {start} to {end - 1}"
        return None, self.named(self.epoch, start, end)


class LeaseClient:
    """Asks for tasks, one ahead, and knows which of them were lost.

    Args:
        session: the master.
        held: is told of every task the moment it is leased, on the asking thread; may start to read its records.
        known: the leases that are not over, those whose report is under way included.
        wait_seconds: how long the master may keep a question waiting when there is no work.
        named: says which records the positions of a shuffled epoch are.
    """

    def __init__(
        self,
        session: MasterSession,
        held: Callable[[LeasedTask], None],
        known: Callable[[], Iterable[int]],
        *,
        wait_seconds: float = 5.0,
        named: PositionDescriber | None = None,
    ) -> None:
        self._session = session
        self._held = held
        self._known_leases = known
        self._wait_seconds = wait_seconds
        self._position_describer = named
        self._room = threading.Semaphore(1 + LEASES_AHEAD)
        self._task_queue: queue.SimpleQueue[LeasedTask | EdlError | None] = queue.SimpleQueue()
        self._queued_tasks: deque[LeasedTask] = deque()
        self._lost: set[int] = set()
        self._stopped = threading.Event()

    def run(self) -> None:
        """Ask until there is no more work, the master is lost, or ``stop``; what went wrong comes out of ``take``."""
        try:
            while not self._stopped.is_set():
                self._room.acquire()
                if not self._stopped.is_set() and not self._ask():
                    return
        except EdlError as error:
            self.fail(error)

    def _ask(self) -> bool:
        """Ask once; False after Stop."""
        reply = self._session.lease(self._wait_seconds, self._known_leases)
        answer = reply.WhichOneof("answer")
        if answer == "task":
            task = LeasedTask.from_message(reply.task, self._position_describer)
            self._held(task)
            self._enqueue_task(task)
            return True
        self._room.release()
        if answer == "stop":
            _LOG.info("no more work: %s", reply.stop.reason)
            self._task_queue.put(None)
        return bool(answer != "stop")

    def fail(self, error: EdlError) -> None:
        """There will be no task: ``take`` raises this."""
        self._task_queue.put(error)

    def schedule_placement_check(self) -> None:
        """Give whoever takes tasks something to do between two of them, or while there are none: see PLACEMENT."""
        self._enqueue_task(LeasedTask(0, PLACEMENT_CHECK_KIND))

    def _enqueue_task(self, task: LeasedTask) -> None:
        self._queued_tasks.append(task)
        self._task_queue.put(task)

    def next_training_lease(self) -> int:
        """The lease that ``take`` would give now, if it is one to train on; 0: none."""
        try:
            task = self._queued_tasks[0]
        except IndexError:
            return 0
        return task.lease if task.kind == TRAINING_KIND and self.alive(task.lease) else 0

    def take(self) -> LeasedTask | None:
        """The next task, in the order of leasing; blocks. None: no more will come.

        Raises:
            EdlError: the master is lost, or refused.
        """
        got = self._task_queue.get()
        if isinstance(got, EdlError):
            raise got
        if got is not None:
            self._queued_tasks.popleft()
        return got

    def release(self, task: LeasedTask) -> None:
        """A taken task is finished or dropped: there is room for the next question."""
        self._lost.discard(task.lease)
        if task.kind != PLACEMENT_CHECK_KIND:
            self._room.release()

    def lose(self, numbers: Iterable[int]) -> None:
        """These leases are not this worker's any more."""
        self._lost.update(numbers)

    def alive(self, lease: int) -> bool:
        """Whether a lease is still this worker's, as far as it knows."""
        return lease not in self._lost

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()
        self._room.release()
        self._task_queue.put(None)
