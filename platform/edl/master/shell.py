"""The shell around the core: feeds events in and executes the commands.

One lock serializes events. Decisions are journaled in order, and neither an answer nor a command
leaves before its journal entries are on disk (``CommandOutbox``). Anything that may block (a PS, the
cluster, a disk) runs on its own thread and returns its result as an event.

After an internal failure, memory and journal may differ. So the first failure ends this master, and
the next one starts from the journal.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from edl.api.errors import EdlError, RefusedError, RetryableError
from edl.core.events import (
    Acknowledged,
    CoreCommand,
    CoreEvent,
    DeletePod,
    EmitEvent,
    EndJob,
    LeaseReply,
    LeaseRequested,
    MayEnd,
    ModelDeclared,
    NotifyWorkers,
    ProgressReported,
    PsHeartbeat,
    PsLeaving,
    PsRegistered,
    RecordEntry,
    RequestAnswer,
    StartPod,
    StopWork,
    TaskReported,
    Tick,
    WaitForWork,
    WorkerFailed,
    WorkerLeft,
    WorldReported,
    WorldView,
    WorldViewed,
)
from edl.core.job import JobStateMachine
from edl.core.leader_election import MasterFence
from edl.master import guarded_threads
from edl.storage.journal import Journal

# --------------------------------------------------------------------------------------------------
# Outgoing commands: each is executed after its journal entries are on disk, in the order of the
# decisions. A cut request, a pod start or a published event must never depend on a decision that
# the next master does not find in the journal.


class CommandOutbox:
    """A queue between the decision and the execution of commands.

    Args:
        wait_durable: waits until the journal is on disk up to a sequence number.
        execute: executes a command; must not block.
    """

    def __init__(self, wait_durable: Callable[[int], None], execute: Callable[[CoreCommand], None]) -> None:
        self._wait_durable, self._execute = wait_durable, execute
        self._queue: queue.SimpleQueue[tuple[int, CoreCommand | threading.Event] | None] = queue.SimpleQueue()

    def put(self, lsn: int, command: CoreCommand) -> None:
        """Queue a command that depends on the journal up to ``lsn``."""
        self._queue.put((lsn, command))

    def wait_until_empty(self, seconds: float) -> bool:
        """Wait until the queued commands are executed; returns whether they are."""
        # An item of the queue itself, so it is reached after everything that was queued before.
        done = threading.Event()
        self._queue.put((0, done))
        return done.wait(seconds)

    def close(self) -> None:
        """Make ``run`` return after the queued commands."""
        self._queue.put(None)

    def run(self) -> None:
        """Execute commands until closed.

        Raises:
            EdlError: the journal cannot be written. No further command is executed.
        """
        while (item := self._queue.get()) is not None:
            lsn, command = item
            if lsn:
                self._wait_durable(lsn)
            if isinstance(command, threading.Event):
                command.set()
            else:
                self._execute(command)


# --------------------------------------------------------------------------------------------------
# The core's clock stops while this master may not decide. Otherwise a master that regains its lease
# after minutes would first revoke the leases of all workers, whose messages it had refused in the
# meantime.


class FencedClock:
    """A monotonic clock, in seconds, that excludes the time without the right to decide.

    Args:
        clock: returns monotonic seconds.
        fence: the right to decide; None if there can be no other master.
    """

    def __init__(self, clock: Callable[[], float], fence: MasterFence | None) -> None:
        self._clock, self._fence = clock, fence
        self._frozen_seconds = 0.0
        self._frozen_since: float | None = None
        self._lock = threading.Lock()

    def now(self) -> float:
        """The core's time."""
        with self._lock:
            return (self._clock() if self._frozen_since is None else self._frozen_since) - self._frozen_seconds

    def may_decide(self) -> bool:
        """Whether this master may decide now."""
        holds = self._fence is None or self._fence.holds()
        with self._lock:
            if not holds and self._frozen_since is None:
                self._frozen_since = self._clock()
            elif holds and self._frozen_since is not None:
                self._frozen_seconds += self._clock() - self._frozen_since
                self._frozen_since = None
        return holds

    def is_fence_lost(self) -> bool:
        """Whether another master has taken over for good."""
        return self._fence is not None and self._fence.lost()


log = logging.getLogger(__name__)

COMPACT_BYTES = 64 << 20
"""Size of the journal, in bytes, above which it is compacted."""
_ANSWER_TYPES = (LeaseReply, WaitForWork, StopWork, Acknowledged, MayEnd, WorldView)
_ROUTINE_EVENTS = (LeaseRequested, ProgressReported, TaskReported, PsHeartbeat, WorldReported, WorldViewed, Tick)
"""Frequent events that move no deadline by more than a tick.

Waking the clock thread for each would cost as much as handling them.
"""
_EVENTS_WITHOUT_WORK = (LeaseRequested, ProgressReported)
"""Events that cannot produce work for a waiting worker."""
_REQUEST_EVENTS = (
    LeaseRequested,
    ProgressReported,
    TaskReported,
    WorkerLeft,
    WorkerFailed,
    ModelDeclared,
    PsRegistered,
    PsLeaving,
    WorldReported,
    WorldViewed,
)
"""Events whose sender waits for an answer.

While this master may not decide, they are refused temporarily, so that the sender can find another
master. All other events are facts, and they wait.
"""
_FROZEN_POLL_SECONDS = 0.2
"""Seconds between two checks while this master may not decide."""
_LATE_SECONDS = 0.25
"""A tick that is late by more than this many seconds means that this process was blocked."""


class MasterEndsError(RetryableError):
    """This master is shutting down; its successor will answer."""


class MasterFrozenError(RetryableError):
    """This master does not know whether it still leads. It will find out soon, or another one answers."""


class CommandExecutor(Protocol):
    """Executes one kind of command; must not block."""

    def execute(self, command: CoreCommand) -> None:
        """Start executing; the result comes back as an event."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """A request that waits for a newer view of the world."""

    loop: asyncio.AbstractEventLoop
    changed: asyncio.Future[None]


class MasterShell:
    """The job's state, and everything that may change it.

    Args:
        state: the state, replayed from the journal.
        journal: the open journal of this incarnation.
        pods: executes StartPod and DeletePod.
        ps_client: executes the commands for parameter servers.
        emit_event: writes an event for users.
        fence: the right to decide; None if there can be no other master.
        clock: returns monotonic seconds.

    Attributes:
        core_clock: the core's clock.
        lock: held while the state is read or changed.
        job_end: how the job ended, once that is on disk.
        failure: the first error for which this master cannot continue.
    """

    def __init__(
        self,
        state: JobStateMachine,
        journal: Journal,
        *,
        pods: CommandExecutor,
        ps_client: CommandExecutor,
        emit_event: Callable[[EmitEvent], None],
        fence: MasterFence | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = state
        self.journal = journal
        self.clock = clock
        self.core_clock = FencedClock(clock, fence)
        self.job_end: EndJob | None = None
        self.failure: Exception | None = None
        self._pods, self._ps_client, self._emit_event = pods, ps_client, emit_event
        self.lock = threading.RLock()
        self._state_changed = threading.Condition(self.lock)
        self._deadline_changed = threading.Condition(self.lock)
        self._generation = 0
        self._stopping = False
        self._speaking_workers: Counter[str] = Counter()
        self._lsn = 0
        self._world_waiters: set[_Waiter] = set()
        self._outbox = CommandOutbox(journal.wait_until_durable, self._execute_command)
        guarded_threads.start_guarded_thread("outbox", self._outbox.run, self.fail)

    # ------------------------------------------------------------------ events

    def handle(self, event: CoreEvent) -> RequestAnswer | None:
        """Decide and execute; returns the answer once everything decided so far is on disk.

        Raises:
            MasterEndsError: the journal cannot be written, a newer master has opened it, or deciding failed.
            MasterFrozenError: this master may not decide now. Raised for requests; facts wait instead.
        """
        if isinstance(event, _REQUEST_EVENTS):
            self._check_fence()
        else:
            self.wait_for_fence()
        return self._decide_and_wait(lambda: self.state.handle(event, self.core_clock.now()), event)

    async def handle_async(
        self, event: LeaseRequested | ProgressReported | TaskReported | WorldReported | WorldViewed
    ) -> RequestAnswer:
        """``handle`` for requests on an event loop, which serves others while the disk works.

        Raises the same.
        """
        self._check_fence()
        with self.mark_speaking(event.worker):
            answer, lsn = self._decide_now(lambda: self.state.handle(event, self.core_clock.now()), event)
            assert answer is not None, event
            loop = asyncio.get_running_loop()
            synced: asyncio.Future[None] = loop.create_future()
            # The event loop serves hundreds of workers and must not block on a disk: the journal
            # calls back instead.
            if lsn and self.journal.call_when_durable(lsn, lambda: loop.call_soon_threadsafe(_set_future, synced)):
                await synced
            self._wait_durable(lsn)
        return answer

    async def view_world(self, event: WorldReported, known_version: int, seconds: float) -> WorldView:
        """Handle a report, and answer with the worker's view of the world; raises as ``handle`` does.

        Args:
            known_version: the version of the view that the worker has. While there is no other, the request waits.
            seconds: maximum seconds of this wait.
        """
        loop = asyncio.get_running_loop()
        changed: asyncio.Future[None] = loop.create_future()
        waiter = _Waiter(loop, changed)
        # Before the report is handled: a change in between must not be missed.
        with self.lock:
            self._world_waiters.add(waiter)
        try:
            view = await self.handle_async(event)
            assert isinstance(view, WorldView)
            if view.version == known_version and seconds > 0:
                await asyncio.wait([changed], timeout=seconds)
                view = await self.handle_async(WorldViewed(event.worker))
                assert isinstance(view, WorldView)
            return view
        finally:
            with self.lock:
                self._world_waiters.discard(waiter)

    def _notify_world(self) -> None:
        with self.lock:
            waiters, self._world_waiters = self._world_waiters, set()
        for waiter in waiters:
            waiter.loop.call_soon_threadsafe(_set_future, waiter.changed)

    @contextmanager
    def mark_speaking(self, worker: str) -> Iterator[None]:
        """Mark a worker whose message waits here for this master's disk: it must not count as silent."""
        with self.lock:
            self._speaking_workers[worker] += 1
        try:
            yield
        finally:
            with self.lock:
                self._speaking_workers[worker] -= 1
                if not self._speaking_workers[worker]:
                    del self._speaking_workers[worker]

    def _check_fence(self) -> None:
        if not self.core_clock.may_decide():
            raise MasterFrozenError("this master is waiting for its Lease")

    def wait_for_fence(self) -> None:
        """Return when this master may decide.

        Raises:
            MasterEndsError: another master has taken over, or this one is shutting down.
        """
        while not self.core_clock.may_decide():
            if self.core_clock.is_fence_lost():
                self.fail(RefusedError("another master has the job's Lease", hint="This one exits."))
            if self._stopping:
                raise MasterEndsError("this master is shutting down while it waits for its Lease")
            self.wait_for_change(_FROZEN_POLL_SECONDS)

    def begin_incarnation(self, incarnation: int) -> None:
        """Journal this master's incarnation, before any event."""
        self._decide_and_wait(lambda: self.state.begin_incarnation(incarnation))

    def fail_job(self, reason: str, kind: str) -> None:
        """Fail the job for a reason outside the core, such as unreadable data."""
        self._decide_and_wait(lambda: self.state.fail_job(reason, kind))

    def judge_program_ends(self, seconds: float | None) -> None:
        """The programs of a done job have ended, or were given up; see ``JobStateMachine.judge_program_ends``."""
        self._decide_and_wait(lambda: self.state.judge_program_ends(seconds))

    def fail_done_job(self, reason: str) -> None:
        """What follows the last record failed; see ``JobStateMachine.fail_done_job``."""
        self._decide_and_wait(lambda: self.state.fail_done_job(reason))

    def _decide_and_wait(
        self, decide: Callable[[], list[CoreCommand]], event: CoreEvent | None = None
    ) -> RequestAnswer | None:
        answer, lsn = self._decide_now(decide, event)
        # Commands wait in the outbox. Only a sender that gets an answer has to wait here.
        if answer is not None:
            self._wait_durable(lsn)
        return answer

    def _decide_now(
        self, decide: Callable[[], list[CoreCommand]], event: CoreEvent | None = None
    ) -> tuple[RequestAnswer | None, int]:
        """Decide; returns the answer, and the journal position that must be durable before it leaves."""
        with self._fail_on_error(), self.lock:
            self._check_running()
            answer, changed = self._queue_commands(decide())
            self._notify_change(event, changed)
            return answer, self._lsn

    def _wait_durable(self, lsn: int) -> None:
        with self._fail_on_error():
            if lsn:
                self.journal.wait_until_durable(lsn)

    @contextmanager
    def _fail_on_error(self) -> Iterator[None]:
        try:
            yield
        except MasterEndsError:
            raise
        except Exception as error:
            # Memory and journal may differ now, so this master must not decide anything any more.
            self.fail(error)
            raise MasterEndsError(f"this master is shutting down: {error}") from error

    def _check_running(self) -> None:
        if self.failure is not None:
            raise MasterEndsError(f"this master is shutting down: {self.failure}")

    def _queue_commands(self, commands: list[CoreCommand]) -> tuple[RequestAnswer | None, bool]:
        """Journal and queue the decisions; returns the answer, and whether there may be work for those that wait."""
        answer: RequestAnswer | None = None
        before = self._lsn
        # A command depends on the entries before it, not on later ones: the core emits them in that
        # order.
        for command in commands:
            if isinstance(command, RecordEntry):
                self._lsn = self.journal.append(command.entry.to_json())
            elif isinstance(command, _ANSWER_TYPES):
                answer = command
            else:
                self._outbox.put(self._lsn, command)
        # A pause of the world may mean work for a worker that waits, without an entry.
        changed = self._lsn != before or any(isinstance(command, NotifyWorkers) for command in commands)
        # Still under the lock: a snapshot must be of exactly the state after the entries that it
        # replaces.
        if self.journal.size_bytes > COMPACT_BYTES:
            self._lsn = self.journal.compact(self.state.to_snapshot())
        return answer, changed

    def _execute_command(self, command: CoreCommand) -> None:
        if isinstance(command, EmitEvent):
            self._emit_event(command)
        elif isinstance(command, StartPod | DeletePod):
            self._pods.execute(command)
        elif isinstance(command, NotifyWorkers):
            self._notify_world()
        elif isinstance(command, EndJob):
            self._record_job_end(command)
        else:
            self._ps_client.execute(command)

    def _record_job_end(self, ended: EndJob) -> None:
        with self.lock:
            self.job_end = ended
            self._wake_waiting_workers()
            self._deadline_changed.notify()

    # ------------------------------------------------------------------ shutdown

    def fail(self, error: Exception) -> None:
        """Record a fatal failure: nothing is decided any more, and ``run`` returns."""
        with self.lock:
            if self.failure is not None:
                return
            # Keep the first failure: later ones are usually its consequences.
            self.failure = error
            self._stopping = True
            self._wake_waiting_workers()
            self._deadline_changed.notify()
        if isinstance(error, EdlError):
            log.error("this master cannot continue: %s", error)
        else:
            log.error("this master cannot continue", exc_info=error)

    def stop_waiting(self) -> None:
        """Answer every waiting lease request."""
        with self.lock:
            self._stopping = True
            self._wake_waiting_workers()
            self._deadline_changed.notify()

    def flush_commands(self, seconds: float) -> bool:
        """Wait until everything decided so far is executed and reported; returns whether it is."""
        return self._outbox.wait_until_empty(seconds)

    def close(self) -> None:
        """Stop the command thread after the queued commands."""
        self._outbox.close()

    # ------------------------------------------------------------------ waiting

    def wait_for_lease(self, worker: str, seconds: float, known_leases: frozenset[int] | None = None) -> RequestAnswer:
        """Work for a worker; without any, the request waits up to ``seconds`` for a change."""
        until = self.clock() + seconds
        while True:
            # Read before the request: otherwise a change between answer and wait would be missed.
            generation = self._generation
            answer = self.handle(LeaseRequested(worker, known_leases))
            assert answer is not None
            if not isinstance(answer, WaitForWork) or not self._wait_for_generation(generation, until):
                return answer

    def _notify_change(self, event: CoreEvent | None, changed: bool) -> None:
        if not isinstance(event, _ROUTINE_EVENTS) or (changed and not isinstance(event, _EVENTS_WITHOUT_WORK)):
            self._wake_waiting_workers()
        if not isinstance(event, _ROUTINE_EVENTS):
            self._deadline_changed.notify()

    def _wake_waiting_workers(self) -> None:
        self._generation += 1
        self._state_changed.notify_all()

    def _wait_for_generation(self, generation: int, until: float) -> bool:
        """Wait for a change after ``generation``; returns whether there was one before ``until``."""
        with self.lock:
            while self._generation == generation and not self._stopping:
                left = until - self.clock()
                if left <= 0:
                    return False
                self._state_changed.wait(left)
            return not self._stopping

    def wait_for_change(self, seconds: float) -> None:
        """Wait for a change, at most ``seconds``."""
        with self.lock:
            self._state_changed.wait(seconds)

    def run(self, is_stopped: Callable[[], bool], max_wait: float = 0.2) -> None:
        """Advance the core's time until the job ends, this master fails or ``is_stopped`` returns true.

        Args:
            is_stopped: called at least every ``max_wait`` seconds.
            max_wait: maximum seconds between two ticks.
        """
        due = self.core_clock.now()
        while not (self._has_ended() or is_stopped()):
            if self.core_clock.is_fence_lost():
                self.fail(RefusedError("another master has the job's Lease", hint="This one exits."))
            elif not self.core_clock.may_decide():
                self.wait_for_change(_FROZEN_POLL_SECONDS)
                continue
            # A tick is late if this process was suspended or starved. It received no messages meanwhile.
            late = max(0.0, self.core_clock.now() - due)
            with self.lock:
                now = self.core_clock.now()
                wait = min(max(self.state.next_deadline(now) - now, 0.001), max_wait)
                due = now + wait
                if not self._has_ended():
                    self._deadline_changed.wait(wait)
                late += max(0.0, self.core_clock.now() - due)
                due = max(due, self.core_clock.now())
                speaking = frozenset(self._speaking_workers)
            if not self._has_ended():
                # ``failure`` has the reason, and ends the loop.
                with suppress(MasterEndsError):
                    self.handle(Tick(late if late >= _LATE_SECONDS else 0.0, speaking))

    def _has_ended(self) -> bool:
        return self.job_end is not None or self.failure is not None


def _set_future(future: asyncio.Future[None]) -> None:
    # A future that is done was cancelled with its call.
    if not future.done():
        future.set_result(None)
