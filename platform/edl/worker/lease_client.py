"""The leases of this worker: the current one and one prefetched.

The next task is requested during the current one, so that its records are read in time. One thread sends
the requests, so there is never more than one at a time.
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
from edl.core.strict_json import decode_json, escape_surrogates
from edl.transport import edl_pb2 as pb
from edl.worker.master_session import MasterSession

_LOG = logging.getLogger(__name__)

# Also bridges a restart of the master: the worker goes on with the second lease meanwhile.
LEASES_AHEAD = 1
"""Leases held in addition to the current one."""
TRAINING_KIND = "training"
"""The kind of task that pushes gradients."""
PositionDescriber: TypeAlias = Callable[[int, int, int], str]
"""Describes the records at positions ``[start, end)`` of an epoch for users: (epoch, start, end)."""
PLACEMENT_CHECK_KIND = "placement"
"""Kind of the pseudo-task that ``schedule_placement_check`` inserts; it has no lease."""


@dataclass(frozen=True, slots=True)
class LeasedTask:
    """A task leased to this worker: records ``[start, end)`` of a source; see ``Task`` in edl.proto.

    With a ``shuffle_window``, they are positions ``[start, end)`` of the shuffled order with the fingerprint
    ``order_fingerprint``; ``position_describer`` names the records at given positions. With
    ``one_by_one``, a minibatch is read and fed only after the previous one is applied, so that a crash
    identifies its minibatch. With ``of_copy``, this worker's copy of the variables of ``step`` is evaluated.
    ``file_digests`` are those of the files whose records were counted (``edl.data.file_digests``).
    """

    lease_id: int
    kind: str
    source: str = ""
    start: int = 0
    end: int = 0
    minibatch_size: int = 1
    epoch: int = 0
    pin: int = 0
    step: int = 0
    expires_seconds: float = 60.0
    payload: bytes = b""
    shuffle_window: int = 0
    order_fingerprint: str = ""
    one_by_one: bool = False
    of_copy: bool = False
    file_digests: str = ""
    position_describer: PositionDescriber | None = field(default=None, compare=False)

    @classmethod
    def from_message(cls, task: pb.Task, position_describer: PositionDescriber | None = None) -> LeasedTask:
        """The task in a lease reply."""
        return cls(
            lease_id=task.lease,
            kind=task.kind,
            source=task.source,
            start=task.start,
            end=task.end,
            # ``step_count`` divides by it.
            minibatch_size=max(1, task.minibatch),
            epoch=task.epoch,
            pin=task.pin,
            step=task.step,
            expires_seconds=task.expires_seconds,
            payload=task.payload,
            shuffle_window=task.window,
            order_fingerprint=task.order,
            one_by_one=task.one_by_one,
            of_copy=task.of_copy,
            file_digests=task.digests,
            position_describer=position_describer if task.window else None,
        )

    def decode_payload(self) -> Any:
        """Decode the task's payload.

        Raises:
            RefusedError: the payload is not JSON.
        """
        try:
            return decode_json(self.payload, nonfinite_as_none=True)
        except ValueError as error:
            raise RefusedError(f"the payload of the task '{self.kind}' is not JSON: {error}") from error

    @property
    def step_count(self) -> int:
        """The number of minibatches in the range."""
        return -(-(self.end - self.start) // self.minibatch_size)

    def step_range(self, step: int) -> tuple[int, int]:
        """The records, or positions, ``[start, end)`` of one step."""
        first = self.start + step * self.minibatch_size
        return first, min(self.end, first + self.minibatch_size)

    def is_remainder(self, step: int) -> bool:
        """Whether a step has fewer records than a minibatch."""
        start, end = self.step_range(step)
        return end - start < self.minibatch_size

    def describe_records(self, step: int) -> tuple[str | None, str]:
        """The source of a step's records, None if there are several, and a description of them for users."""
        start, end = self.step_range(step)
        if self.position_describer is None:
            return self.source, f"records {start} to {end - 1}"
        return None, self.position_describer(self.epoch, start, end)


class LeaseClient:
    """Requests tasks, one ahead, and tracks which leases were lost.

    Args:
        session: the session with the master.
        on_granted: called with every task when it is leased, on the requesting thread; it may start to read
            the task's records.
        known_leases: returns the open leases, including those whose report is in progress.
        leases_ahead: leases held in addition to the current one.
        wait_seconds: maximum seconds for which the master may hold a request when there is no work.
        position_describer: names the records at positions of a shuffled epoch.
    """

    def __init__(
        self,
        session: MasterSession,
        on_granted: Callable[[LeasedTask], None],
        known_leases: Callable[[], Iterable[int]],
        *,
        leases_ahead: int = LEASES_AHEAD,
        wait_seconds: float = 5.0,
        position_describer: PositionDescriber | None = None,
    ) -> None:
        self._session = session
        self._on_granted = on_granted
        self._known_leases = known_leases
        self._wait_seconds = wait_seconds
        self._position_describer = position_describer
        self._free_slots = threading.Semaphore(1 + leases_ahead)
        self._task_queue: queue.SimpleQueue[LeasedTask | EdlError | None] = queue.SimpleQueue()
        # The tasks in the queue, which cannot be looked at itself.
        self._queued_tasks: deque[LeasedTask] = deque()
        self._lost_leases: set[int] = set()
        self.has_ended = False
        """Whether ``poll_task`` has found that there is no more work."""
        self._stopped = threading.Event()

    def run(self) -> None:
        """Request tasks until there is no more work, the master is lost, or ``stop``.

        Errors are raised by ``next_task``.
        """
        try:
            while not self._stopped.is_set():
                self._free_slots.acquire()
                if not self._stopped.is_set() and not self._request_lease():
                    return
        except EdlError as error:
            self.set_error(error)

    def _request_lease(self) -> bool:
        """Send one request; False after Stop."""
        reply = self._session.request_lease(self._wait_seconds, self._known_leases)
        answer = reply.WhichOneof("answer")
        if answer == "task":
            task = LeasedTask.from_message(reply.task, self._position_describer)
            self._lost_leases.discard(task.lease_id)
            # First: when another thread takes the task, its records must be on the way and its
            # lease must be named in heartbeats.
            self._on_granted(task)
            self._enqueue_task(task)
            return True
        self._free_slots.release()
        if answer == "stop":
            _LOG.info("no more work: %s", reply.stop.reason)
            self._task_queue.put(None)
        return bool(answer != "stop")

    def set_error(self, error: EdlError) -> None:
        """Make ``next_task`` raise this error."""
        self._task_queue.put(error)

    def schedule_placement_check(self) -> None:
        """Insert a placement check between two tasks, or while there are none."""
        self._enqueue_task(LeasedTask(0, PLACEMENT_CHECK_KIND))

    def _enqueue_task(self, task: LeasedTask) -> None:
        # In this order: ``next_task`` removes the task here after it has taken it from the queue.
        self._queued_tasks.append(task)
        self._task_queue.put(task)

    def next_training_lease(self) -> int:
        """The lease that ``next_task`` would return now, if it is a training lease; 0: none."""
        # Another thread may take the task between a check of the length and the access.
        try:
            task = self._queued_tasks[0]
        except IndexError:
            return 0
        # Each push names the next lease, so that a round of synchronous mode waits only for workers
        # that have another push to send.
        return task.lease_id if task.kind == TRAINING_KIND and self.is_held(task.lease_id) else 0

    def next_task(self) -> LeasedTask | None:
        """Wait for the next task, in the order of leasing; None if there is no more work.

        Raises:
            EdlError: the master is lost, or refused a request.
        """
        item = self._task_queue.get()
        if isinstance(item, EdlError):
            raise item
        if item is not None:
            self._queued_tasks.popleft()
        return item

    def poll_task(self, seconds: float) -> LeasedTask | None:
        """The next task, in the order of leasing; None if none comes within ``seconds``, or there is no more work.

        Raises:
            EdlError: the master is lost, or refused a request.
        """
        if self.has_ended:
            return None
        try:
            item = self._task_queue.get(timeout=seconds) if seconds > 0 else self._task_queue.get_nowait()
        except queue.Empty:
            return None
        if isinstance(item, EdlError):
            raise item
        if item is None:
            self.has_ended = True
            return None
        self._queued_tasks.popleft()
        return item

    def release_slot(self, task: LeasedTask) -> None:
        """A taken task is finished or dropped: another one may be requested."""
        self._lost_leases.discard(task.lease_id)
        if task.kind != PLACEMENT_CHECK_KIND:
            self._free_slots.release()

    def mark_lost(self, lease_ids: Iterable[int]) -> None:
        """Mark leases as no longer owned by this worker."""
        self._lost_leases.update(lease_ids)

    def is_held(self, lease_id: int) -> bool:
        """Whether this worker owns the lease, as far as it knows."""
        return lease_id not in self._lost_leases

    def stop(self) -> None:
        """Stop requesting tasks."""
        self._stopped.set()
        # Wakes the requesting thread.
        self._free_slots.release()
        self._task_queue.put(None)


# --------------------------------------------------------------------------------------------------
# Progress of a lease until it is reported.


@dataclass(slots=True)
class ProgressBuffer:
    """Unreported progress of one lease; sums cover the steps since the last message.

    Attributes:
        awaits_ledger: whether all its records are applied, and it ends when another worker's report enters them.
    """

    expires_seconds: float
    applied_steps: int = 0
    sent_steps: int = 0
    loss_sum: float = 0.0
    loss_steps: int = 0
    skipped_records: int = 0
    skipped_updates: int = 0
    awaits_ledger: bool = False

    def to_message(self, lease: int) -> pb.LeaseProgress:
        return pb.LeaseProgress(
            lease=lease,
            through=self.applied_steps,
            loss_sum=self.loss_sum,
            loss_steps=self.loss_steps,
            skipped_records=self.skipped_records,
            skipped_updates=self.skipped_updates,
        )

    def take_message(self, lease: int) -> pb.LeaseProgress:
        """Return the message and start new sums: the session retries until the master has received it."""
        message = self.to_message(lease)
        self.loss_sum, self.loss_steps, self.sent_steps = 0.0, 0, self.applied_steps
        self.skipped_records = self.skipped_updates = 0
        return message


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The end of a task: its progress and result."""

    last_progress: pb.LeaseProgress
    result: bytes


# --------------------------------------------------------------------------------------------------
# Reports to the master: batched progress, heartbeats and task results. Training never waits for
# them; one thread sends everything in order.


REPORT_INTERVAL_SECONDS = 0.1
"""Minimum interval between two messages in seconds: each report costs the master an fsync."""
FINAL_REPORT_SECONDS = 30.0
"""Seconds that the last reports may take before a worker exits."""
_MAX_WAIT_SECONDS = 60.0
"""Maximum seconds of one wait of the sending thread; without a lease, nothing is due."""


class ProgressReporter:
    """Collects progress and results, and sends them.

    Args:
        session: the session with the master.
        on_lost: called with leases that this worker no longer holds.
        interval: minimum seconds between two messages.
        clock: returns monotonic seconds.
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
        self._on_lost = on_lost
        self._interval = interval
        self._clock = clock
        self._changed = threading.Condition()
        self._send_lock = threading.Lock()
        self._buffers: dict[int, ProgressBuffer] = {}
        self._report_queue: deque[TaskReport] = deque()
        # The newest ones are enough: who asks has just reported.
        self._rejected: deque[int] = deque(maxlen=64)
        self._warnings: list[pb.WorkerWarning] = []
        self._has_stopped_training = False
        self._last_sent_at = clock()
        self._stopped = False
        self._failure: EdlError | None = None

    def track_lease(self, task: LeasedTask) -> None:
        """Start reporting for a new lease, which keeps it alive."""
        with self._changed:
            self._buffers[task.lease_id] = ProgressBuffer(task.expires_seconds)
            self._changed.notify_all()

    def record_step(
        self,
        lease_id: int,
        applied_steps: int,
        *,
        loss: float | None,
        skipped_records: int = 0,
        is_skipped: bool = False,
    ) -> None:
        """Record that all steps of a lease below ``applied_steps`` are applied on all PS.

        Args:
            lease_id: number of the lease.
            applied_steps: number of applied steps.
            loss: loss of the newest step; None if it applied nothing.
            skipped_records: corrupt records of the newest step that were skipped.
            is_skipped: whether the newest step changed nothing, because its loss or gradient is not finite.

        Raises:
            EdlError: the sending thread failed, so the master would never hear of the step.
        """
        with self._changed:
            self._raise_failure()
            buffer = self._buffers.get(lease_id)
            if buffer is None:
                return
            # Otherwise there is unreported progress already, and the sending thread only waits for
            # its interval.
            if buffer.applied_steps == buffer.sent_steps:
                self._changed.notify_all()
            buffer.applied_steps = applied_steps
            buffer.skipped_records += skipped_records
            buffer.skipped_updates += is_skipped
            if loss is not None:
                buffer.loss_sum += loss
                buffer.loss_steps += 1

    def add_warning(self, topic: str, text: str) -> None:
        """Report a warning for the user, before the progress and the reports that follow."""
        with self._changed:
            self._warnings.append(pb.WorkerWarning(topic=escape_surrogates(topic), text=escape_surrogates(text)))
            self._changed.notify_all()

    def report_stop(self) -> None:
        """Report that a callback has ended training, after the progress that is recorded so far."""
        with self._changed:
            self._has_stopped_training = True
            self._changed.notify_all()

    def finish_task(self, lease_id: int, result: bytes = b"") -> None:
        """Report a finished task, after everything recorded before.

        Raises:
            EdlError: the sending thread failed, so the master would never hear of it.
        """
        with self._changed:
            self._raise_failure()
            buffer = self._buffers.pop(lease_id, None)
            if buffer is not None:
                self._report_queue.append(TaskReport(buffer.to_message(lease_id), result))
            self._changed.notify_all()

    def await_ledger(self, lease_id: int) -> None:
        """All records of a lease are applied. The master ends it, so the loss of it says nothing new."""
        with self._changed:
            buffer = self._buffers.get(lease_id)
            if buffer is not None:
                buffer.awaits_ledger = True

    def drop_lease(self, lease_id: int) -> None:
        """Stop reporting for a lease."""
        with self._changed:
            self._buffers.pop(lease_id, None)

    def unreported_progress(self) -> list[pb.LeaseProgress]:
        """All applied and unreported steps, for ``Leave``."""
        with self._changed:
            # Some of it may have reached the master. It counts steps by their number, so nothing
            # counts twice.
            in_progress = [buffer.to_message(lease) for lease, buffer in self._buffers.items()]
            return in_progress + [report.last_progress for report in self._report_queue]

    def known_leases(self) -> list[int]:
        """The leases that the master may attribute to this worker."""
        with self._changed:
            # A finished task counts until its report is answered. Otherwise the master would take
            # its lease for one that was granted in a lost answer, and grant it again.
            return [*self._buffers, *(report.last_progress.lease for report in self._report_queue)]

    def send_all(self) -> None:
        """Send everything now: warnings and progress of the held leases first, then reports, in order."""
        # A report stays queued until it is answered, so that ``known_leases`` names its lease.
        # Prediction sends from its own thread too. The messages of both keep their order.
        with self._send_lock:
            self._send_warnings()
            self._send_progress()
            self._send_stop()
            while self._report_queue:
                self._send_report(self._report_queue[0])
                with self._changed:
                    self._report_queue.popleft()
                    self._changed.notify_all()

    def _send_warnings(self) -> None:
        with self._changed:
            warnings, self._warnings = self._warnings, []
        if warnings:
            self._session.report_warnings(warnings)
            self._note_sent()

    def _send_progress(self) -> None:
        with self._changed:
            sent = [buffer.take_message(lease) for lease, buffer in self._buffers.items()]
        if not sent:
            return
        reply = self._session.report_progress(sent)
        self._note_sent()
        self._drop_lost(reply.lost)

    def _send_stop(self) -> None:
        with self._changed:
            stopped, self._has_stopped_training = self._has_stopped_training, False
        if stopped:
            self._session.report_stop()
            self._note_sent()

    def _send_report(self, report: TaskReport) -> None:
        reply = self._session.report_result(report.last_progress, report.result)
        self._note_sent()
        # The master has taken the lease back and leases its records again, so nothing is left to do
        # here.
        if not reply.accepted:
            self._rejected.append(report.last_progress.lease)
            _LOG.info("lease %d: the report was rejected: %s", report.last_progress.lease, reply.reason)

    def _note_sent(self) -> None:
        with self._changed:
            self._last_sent_at = self._clock()

    def _drop_lost(self, lost: Iterable[int]) -> None:
        with self._changed:
            removed = [(lease_id, self._buffers.pop(lease_id, None)) for lease_id in lost]
        # One without a buffer was finished or given up while the request was on its way.
        lease_ids = [lease_id for lease_id, buffer in removed if buffer is not None and not buffer.awaits_ledger]
        if not lease_ids:
            return
        _LOG.info("leases lost: %s", ", ".join(map(str, lease_ids)))
        self._on_lost(lease_ids)

    def run(self) -> None:
        """Send progress at most every ``interval``, and heartbeats in between, until ``stop``."""
        try:
            while self._wait_until_due():
                self.send_all()
        except EdlError as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _wait_until_due(self) -> bool:
        with self._changed:
            while not self._stopped:
                since = self._clock() - self._last_sent_at
                due = self._interval if self._has_unsent() else self._heartbeat_seconds()
                if since >= due:
                    return True
                self._changed.wait(min(due - since, _MAX_WAIT_SECONDS))
            return False

    def _has_unsent(self) -> bool:
        if self._report_queue or self._warnings or self._has_stopped_training:
            return True
        return any(buffer.applied_steps > buffer.sent_steps for buffer in self._buffers.values())

    def _heartbeat_seconds(self) -> float:
        # Four heartbeats within the time after which the master revokes the lease.
        # A worker without a lease need not send anything.
        return min((buffer.expires_seconds / 4 for buffer in self._buffers.values()), default=float("inf"))

    def flush(self, timeout: float) -> None:
        """Wait until the master has answered every report.

        Raises:
            EdlError: the sending thread failed, or it takes longer than ``timeout`` seconds.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._report_queue or self._failure is not None, timeout)
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def is_accepted(self, lease_id: int, timeout: float) -> bool:
        """Wait until the master has answered every report; whether it entered that of this lease, one of the newest.

        Raises:
            EdlError: the sending thread failed.
        """
        self.flush(timeout)
        with self._changed:
            return lease_id not in self._rejected and all(
                report.last_progress.lease != lease_id for report in self._report_queue
            )

    def stop(self) -> None:
        """End ``run``; nothing more is sent."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
