"""The loop around the core: events in, commands carried out.

One lock makes events come one at a time. Decisions are journaled in the order in which they are made, and nothing
leaves before what it rests on is on disk: no answer, and no command either (module ``outbox``). Everything that can
wait for somebody else (a PS, the cluster, a disk) is done by a thread of its own, which puts what came of it back in as
an event. When something fails in here, memory and journal may differ: the first failure ends this master, and the next
one begins with what the journal says.
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
)
from edl.core.job import JobStateMachine
from edl.core.leader_election import MasterFence
from edl.master import guarded_threads
from edl.storage.journal import Journal

# --------------------------------------------------------------------------------------------------
# Commands on their way out: each is carried out after what it rests on is on disk, in the order of the decisions.
#
# A parameter server that was told of a cut, a pod that was started, a line that people have read: none of it may belong
# to a past that the next master does not find in the journal.


class CommandOutbox:
    """A queue between deciding and doing.

    Args:
        durable: waits until the journal is on disk up to a number.
        do: carries a command out; must not wait for anybody.
    """

    def __init__(self, wait_durable: Callable[[int], None], execute: Callable[[CoreCommand], None]) -> None:
        self._wait_durable, self._execute = wait_durable, execute
        self._queue: queue.SimpleQueue[tuple[int, CoreCommand | threading.Event] | None] = queue.SimpleQueue()

    def put(self, lsn: int, command: CoreCommand) -> None:
        """Queue a command that rests on everything up to ``lsn``."""
        self._queue.put((lsn, command))

    def wait_until_empty(self, seconds: float) -> bool:
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
                self._wait_durable(lsn)
            if isinstance(command, threading.Event):
                command.set()
            else:
                self._execute(command)


# --------------------------------------------------------------------------------------------------
# The time that the core is told: it stands still while this master may not decide.
#
# Else the first thing that a master did after minutes without its fence would be to take every lease back from workers
# that it had refused to hear.


class FencedClock:
    """Monotonic seconds, less those without the right to decide.

    Args:
        clock: monotonic seconds.
        fence: the right; None where nobody else can have it.
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
        """Whether it never will again: another master decides."""
        return self._fence is not None and self._fence.lost()


log = logging.getLogger(__name__)

COMPACT_BYTES = 64 << 20
_ANSWER_TYPES = (LeaseReply, WaitForWork, StopWork, Acknowledged, MayEnd)
_ROUTINE_EVENTS = (LeaseRequested, ProgressReported, TaskReported, PsHeartbeat, Tick)
"""Events that bring nothing nearer that waits for time to pass by less than a tick: they come by the thousand, and
waking the clock for each of them would cost as much as handling them."""
_EVENTS_WITHOUT_WORK = (LeaseRequested, ProgressReported)
"""Events after which a worker that waits for work need not ask again."""
_REQUEST_EVENTS = (
    LeaseRequested,
    ProgressReported,
    TaskReported,
    WorkerLeft,
    WorkerFailed,
    ModelDeclared,
    PsRegistered,
    PsLeaving,
)
"""Events behind which somebody waits for an answer; while nothing may be decided they are refused for now, and all
other events, which are facts, wait."""
_FROZEN_POLL_SECONDS = 0.2
_LATE_SECONDS = 0.25
"""A look at the time that comes so much later than it was due tells that this process was held up."""


class MasterEndsError(RetryableError):
    """This master cannot go on; the one after it will answer."""


class MasterFrozenError(RetryableError):
    """This master does not know whether it is the master still; it will, or another one answers."""


class CommandExecutor(Protocol):
    """Who carries out one kind of command; must not block."""

    def execute(self, command: CoreCommand) -> None:
        """Begin to carry it out; the outcome comes back as an event."""


class MasterShell:
    """The job's state and everything that may touch it.

    Args:
        state: replayed from the journal.
        journal: open, of this incarnation.
        pods: carries out StartPod and DeletePod.
        ps: carries out what is meant for parameter servers.
        tell: writes an event for people.
        fence: the right to decide; None where nobody else can have it.
        clock: monotonic seconds.

    Attributes:
        time: the core's.
        lock: held while state is read or changed.
        ended: how the job ended, once that is on disk.
        failure: why this master cannot go on; the first reason counts.
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
        self._outbox = CommandOutbox(journal.wait_until_durable, self._execute_command)
        guarded_threads.start_guarded_thread("outbox", self._outbox.run, self.fail)

    # ------------------------------------------------------------------ events

    def handle(self, event: CoreEvent) -> RequestAnswer | None:
        """Decide and have it carried out; returns the answer once everything decided so far is on disk.

        Raises:
            MasterEndsError: the journal cannot be written, a newer master has opened it, or deciding failed.
            MasterFrozenError: nothing may be decided now; raised for requests, while facts wait until it may be.
        """
        if isinstance(event, _REQUEST_EVENTS):
            self._check_fence()
        else:
            self.wait_for_fence()
        return self._decide_and_wait(lambda: self.state.handle(event, self.core_clock.now()), event)

    async def handle_async(self, event: LeaseRequested | ProgressReported | TaskReported) -> RequestAnswer:
        """``handle`` of a request on an event loop, which serves others while the disk works; raises the same."""
        self._check_fence()
        with self._mark_speaking(event.worker):
            answer, lsn = self._decide_now(lambda: self.state.handle(event, self.core_clock.now()), event)
            assert answer is not None, event
            loop = asyncio.get_running_loop()
            synced: asyncio.Future[None] = loop.create_future()
            # The event loop serves hundreds of workers: it must not wait for a disk, so the journal calls back.
            if lsn and self.journal.call_when_durable(lsn, lambda: loop.call_soon_threadsafe(_set_future, synced)):
                await synced
            self._wait_durable(lsn)
        return answer

    @contextmanager
    def _mark_speaking(self, worker: str) -> Iterator[None]:
        """While a message of a worker is here, its worker is not silent: it waits for this master's disk."""
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
            MasterEndsError: it never will again, or it ends.
        """
        while not self.core_clock.may_decide():
            if self.core_clock.is_fence_lost():
                self.fail(RefusedError("another master has the job's Lease", hint="This one ends."))
            if self._stopping:
                raise MasterEndsError("this master ends while it waits for its Lease")
            self.wait_for_change(_FROZEN_POLL_SECONDS)

    def begin_incarnation(self, incarnation: int) -> None:
        """Enter this master's number into the journal, before any event."""
        self._decide_and_wait(lambda: self.state.begin_incarnation(incarnation))

    def fail_job(self, reason: str, kind: str) -> None:
        """Fail the job for a reason that lies outside the core: its data cannot be read."""
        self._decide_and_wait(lambda: self.state.fail_job(reason, kind))

    def _decide_and_wait(
        self, decide: Callable[[], list[CoreCommand]], event: CoreEvent | None = None
    ) -> RequestAnswer | None:
        answer, lsn = self._decide_now(decide, event)
        if answer is not None:
            self._wait_durable(lsn)
        return answer

    def _decide_now(
        self, decide: Callable[[], list[CoreCommand]], event: CoreEvent | None = None
    ) -> tuple[RequestAnswer | None, int]:
        """Decide; the answer, and what must be durable before it leaves."""
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
            self.fail(error)
            raise MasterEndsError(f"this master ends: {error}") from error

    def _check_running(self) -> None:
        if self.failure is not None:
            raise MasterEndsError(f"this master ends: {self.failure}")

    def _queue_commands(self, commands: list[CoreCommand]) -> tuple[RequestAnswer | None, bool]:
        """Journal and queue what was decided; the answer, and whether the ledger changed."""
        answer: RequestAnswer | None = None
        before = self._lsn
        # A command rests on the entries decided before it, not on those after it: the core gives them in that order.
        for command in commands:
            if isinstance(command, RecordEntry):
                self._lsn = self.journal.append(command.entry.to_json())
            elif isinstance(command, _ANSWER_TYPES):
                answer = command
            else:
                self._outbox.put(self._lsn, command)
        changed = self._lsn != before
        # With the lock held: a snapshot has to be of the state after exactly the entries that it replaces.
        if self.journal.size_bytes > COMPACT_BYTES:
            self._lsn = self.journal.compact(self.state.to_snapshot())
        return answer, changed

    def _execute_command(self, command: CoreCommand) -> None:
        if isinstance(command, EmitEvent):
            self._emit_event(command)
        elif isinstance(command, StartPod | DeletePod):
            self._pods.execute(command)
        elif isinstance(command, EndJob):
            self._record_job_end(command)
        else:
            self._ps_client.execute(command)

    def _record_job_end(self, ended: EndJob) -> None:
        with self.lock:
            self.job_end = ended
            self._wake_waiting_workers()
            self._deadline_changed.notify()

    # ------------------------------------------------------------------ the end of this master

    def fail(self, error: Exception) -> None:
        """Something that this master cannot do without is gone: nothing is decided any more, ``run`` returns."""
        with self.lock:
            if self.failure is not None:
                return
            # The first reason counts: what fails afterwards mostly fails because of it.
            self.failure = error
            self._stopping = True
            self._wake_waiting_workers()
            self._deadline_changed.notify()
        if isinstance(error, EdlError):
            log.error("this master cannot go on: %s", error)
        else:
            log.error("this master cannot go on", exc_info=error)

    def stop_waiting(self) -> None:
        """Answer every question that waits."""
        with self.lock:
            self._stopping = True
            self._wake_waiting_workers()
            self._deadline_changed.notify()

    def flush_commands(self, seconds: float) -> bool:
        """Wait until all that was decided so far is carried out and told; whether it is."""
        return self._outbox.wait_until_empty(seconds)

    def close(self) -> None:
        """End the thread that carries commands out, after what is queued."""
        self._outbox.close()

    # ------------------------------------------------------------------ waiting

    def wait_for_lease(self, worker: str, seconds: float, known_leases: frozenset[int] | None = None) -> RequestAnswer:
        """Work for a worker; when there is none, the question waits here up to ``seconds`` for a change."""
        until = self.clock() + seconds
        while True:
            # Read before the question is asked: a change between the answer and the wait would be missed otherwise.
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
        """Wait for a change after ``generation``; whether there was one before ``until``."""
        with self.lock:
            while self._generation == generation and not self._stopping:
                left = until - self.clock()
                if left <= 0:
                    return False
                self._state_changed.wait(left)
            return not self._stopping

    def wait_for_change(self, seconds: float) -> None:
        """Wait for a change, or so many seconds."""
        with self.lock:
            self._state_changed.wait(seconds)

    def run(self, is_stopped: Callable[[], bool], max_wait: float = 0.2) -> None:
        """Let time pass for the core until the job has ended, this master failed or ``is_stopped`` says so.

        Args:
            stopped: looked at every ``max_wait`` seconds, or more often.
            longest: seconds that pass without a look.
        """
        due = self.core_clock.now()
        while not (self._has_ended() or is_stopped()):
            if self.core_clock.is_fence_lost():
                self.fail(RefusedError("another master has the job's Lease", hint="This one ends."))
            elif not self.core_clock.may_decide():
                self.wait_for_change(_FROZEN_POLL_SECONDS)
                continue
            late = max(0.0, self.core_clock.now() - due)  # since the last look; a master that is stopped hears nobody
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
                with suppress(MasterEndsError):  # ``failure`` says why
                    self.handle(Tick(late if late >= _LATE_SECONDS else 0.0, speaking))

    def _has_ended(self) -> bool:
        return self.job_end is not None or self.failure is not None


def _set_future(future: asyncio.Future[None]) -> None:
    if not future.done():  # else its call has ended meanwhile
        future.set_result(None)
