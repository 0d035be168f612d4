"""The leases of this worker: what it works on, and the one that it holds ahead.

The next task is asked for while the current one is worked on, so that its records are read in time. One thread asks,
so the master is never asked twice at once.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
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
    def from_message(cls, task: pb.Task, position_describer: PositionDescriber | None = None) -> LeasedTask:
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
            named=position_describer if task.window else None,
        )

    def told(self) -> Any:
        """What the master says of the task beside its range.

        Raises:
            RefusedError: it is not JSON.
        """
        try:
            return decode_json(self.payload, nonfinite_as_none=True)
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
        on_granted: Callable[[LeasedTask], None],
        known_leases: Callable[[], Iterable[int]],
        *,
        wait_seconds: float = 5.0,
        position_describer: PositionDescriber | None = None,
    ) -> None:
        self._session = session
        self._held = on_granted
        self._known_leases = known_leases
        self._wait_seconds = wait_seconds
        self._position_describer = position_describer
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
        item = self._task_queue.get()
        if isinstance(item, EdlError):
            raise item
        if item is not None:
            self._queued_tasks.popleft()
        return item

    def release(self, task: LeasedTask) -> None:
        """A taken task is finished or dropped: there is room for the next question."""
        self._lost.discard(task.lease)
        if task.kind != PLACEMENT_CHECK_KIND:
            self._room.release()

    def lose(self, lease_ids: Iterable[int]) -> None:
        """These leases are not this worker's any more."""
        self._lost.update(lease_ids)

    def alive(self, lease_id: int) -> bool:
        """Whether a lease is still this worker's, as far as it knows."""
        return lease_id not in self._lost

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()
        self._room.release()
        self._task_queue.put(None)


# --------------------------------------------------------------------------------------------------
# What is to be said of one lease, until it is said.


@dataclass(slots=True)
class ProgressBuffer:
    """What is known of one lease; sums are of the steps since the last message."""

    expires_seconds: float
    through: int = 0
    told: int = 0
    loss_sum: float = 0.0
    loss_steps: int = 0
    skipped: int = 0

    def message(self, lease: int) -> pb.LeaseProgress:
        """What is known, as the master is told it."""
        return pb.LeaseProgress(
            lease=lease,
            through=self.through,
            loss_sum=self.loss_sum,
            loss_steps=self.loss_steps,
            skipped_records=self.skipped,
        )

    def take(self, lease: int) -> pb.LeaseProgress:
        """The message, and begin the next sums: the session asks until the master has it."""
        message = self.message(lease)
        self.loss_sum, self.loss_steps, self.skipped, self.told = 0.0, 0, 0, self.through
        return message


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The end of a task: how far it got, and its result."""

    last: pb.LeaseProgress
    result: bytes


# --------------------------------------------------------------------------------------------------
# What this worker tells the master about its leases: batched progress, heartbeats, reports.
#
# Steps wait for nothing here; everything is sent by one thread, in order.


REPORT_INTERVAL_SECONDS = 0.1
"""Seconds between two messages at least: a report costs the master an fsync."""
_MAX_WAIT_SECONDS = 60.0
"""Seconds: nothing is due while no lease is held."""


class ProgressReporter:
    """Collects steps and results, and sends them.

    Args:
        session: the master.
        lost: is told of leases that are not this worker's any more.
        interval: seconds between two messages at least.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        session: MasterSession,
        on_lost: Callable[[Iterable[int]], None],
        *,
        interval: float = REPORT_INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._lost = on_lost
        self._interval = interval
        self._clock = clock
        self._changed = threading.Condition()
        self._send_lock = threading.Lock()
        self._held: dict[int, ProgressBuffer] = {}
        self._report_queue: deque[TaskReport] = deque()
        self._last_sent_at = clock()
        self._stopped = False
        self._failure: EdlError | None = None

    def hold(self, task: LeasedTask) -> None:
        """A lease was granted: keep it alive."""
        with self._changed:
            self._held[task.lease] = ProgressBuffer(task.expires_seconds)
            self._changed.notify_all()

    def stepped(self, lease_id: int, applied_steps: int, *, loss: float | None, skipped_records: int = 0) -> None:
        """Steps ``0 .. through - 1`` of a lease are in, on all PS.

        Args:
            lease: which one.
            through: steps that are in.
            loss: of the newest step; None if it applied nothing.
            skipped: corrupt records of the newest step that were left out.
        """
        with self._changed:
            buffer = self._held.get(lease_id)
            if buffer is None:
                return
            if (
                buffer.through == buffer.told
            ):  # else there is news already, and the sending thread waits for its time only
                self._changed.notify_all()
            buffer.through = applied_steps
            buffer.skipped += skipped_records
            if loss is not None:
                buffer.loss_sum += loss
                buffer.loss_steps += 1

    def finish(self, lease_id: int, result: bytes = b"") -> None:
        """A task is done: report it, after everything that was said before."""
        with self._changed:
            buffer = self._held.pop(lease_id, None)
            if buffer is not None:
                self._report_queue.append(TaskReport(buffer.message(lease_id), result))
            self._changed.notify_all()

    def drop(self, lease_id: int) -> None:
        """Say no more about a lease."""
        with self._changed:
            self._held.pop(lease_id, None)

    def leases(self) -> list[pb.LeaseProgress]:
        """Everything that is in and not reported yet, for ``Leave``."""
        with self._changed:
            held = [held.message(lease) for lease, held in self._held.items()]
            return held + [report.last for report in self._report_queue]

    def known(self) -> list[int]:
        """The leases that the master may believe to be this worker's."""
        with self._changed:
            return [*self._held, *(report.last.lease for report in self._report_queue)]

    def count_pending_reports(self) -> int:
        """Reports that the master has not answered yet."""
        with self._changed:
            return len(self._report_queue)

    def send(self) -> None:
        """Tell everything now: progress of the held leases first, then reports, in order."""
        with self._send_lock:
            self._send_progress()
            while self._report_queue:
                self._send_report(self._report_queue[0])
                with self._changed:
                    self._report_queue.popleft()
                    self._changed.notify_all()

    def _send_progress(self) -> None:
        with self._changed:
            sent = [held.take(lease) for lease, held in self._held.items()]
        if not sent:
            return
        reply = self._session.progress(sent)
        self._told()
        self._drop_lost(reply.lost)

    def _send_report(self, report: TaskReport) -> None:
        reply = self._session.report(report.last, report.result)
        self._told()
        if not reply.accepted:
            _LOG.info("lease %d: the report was not taken: %s", report.last.lease, reply.reason)

    def _told(self) -> None:
        with self._changed:
            self._last_sent_at = self._clock()

    def _drop_lost(self, lost: Iterable[int]) -> None:
        lease_ids = list(lost)
        if not lease_ids:
            return
        _LOG.info("leases lost: %s", ", ".join(map(str, lease_ids)))
        for lease_id in lease_ids:
            self.drop(lease_id)
        self._lost(lease_ids)

    def run(self) -> None:
        """Send what is new at most every ``interval``, and a heartbeat when nothing is; until ``stop``."""
        try:
            while self._wait_until_due():
                self.send()
        except EdlError as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _wait_until_due(self) -> bool:
        with self._changed:
            while not self._stopped:
                since = self._clock() - self._last_sent_at
                due = self._interval if self._news() else self._heartbeat_seconds()
                if since >= due:
                    return True
                self._changed.wait(min(due - since, _MAX_WAIT_SECONDS))
            return False

    def _news(self) -> bool:
        return bool(self._report_queue) or any(held.through > held.told for held in self._held.values())

    def _heartbeat_seconds(self) -> float:
        return min((held.expires_seconds / 4 for held in self._held.values()), default=float("inf"))

    def flush(self, timeout: float) -> None:
        """Wait until the master has answered every report.

        Raises:
            EdlError: the sending thread failed, or it takes longer than ``timeout`` seconds.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._report_queue or self._failure is not None, timeout)
            if self._failure is not None:
                raise self._failure

    def stop(self) -> None:
        """End ``run``; nothing more is sent."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
