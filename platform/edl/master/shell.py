"""The loop around the core: events in, commands carried out.

One lock makes events come one at a time. Decisions are journaled in the order in which they are made, and an answer
leaves only when what it rests on is on disk. Everything that can wait for somebody else (a PS, the cluster, a disk) is
done by a thread of its own, which puts what came of it back in as an event.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from edl.core.events import (
    Acknowledged,
    Answer,
    Command,
    DeletePod,
    EndJob,
    Event,
    Granted,
    LeaseWanted,
    Progressed,
    Record,
    StartPod,
    StopWork,
    TaskReported,
    Tell,
    Tick,
    WaitForWork,
)
from edl.core.job import JobState
from edl.store.journal import Journal

log = logging.getLogger(__name__)

COMPACT_BYTES = 64 << 20
_ANSWERS = (Granted, WaitForWork, StopWork, Acknowledged)
_ROUTINE = (LeaseWanted, Progressed, TaskReported, Tick)
"""Events that bring nothing nearer that waits for time to pass by less than a tick: they come by the thousand, and
waking the clock for each of them would cost as much as handling them."""


class Effects(Protocol):
    """Who carries out one kind of command; must not block."""

    def do(self, command: Command) -> None:
        """Begin to carry it out; the outcome comes back as an event."""


class Shell:
    """The job's state and everything that may touch it.

    Args:
        state: replayed from the journal.
        journal: open, of this incarnation.
        pods: carries out StartPod and DeletePod.
        ps: carries out what is meant for parameter servers.
        tell: writes an event for people.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        state: JobState,
        journal: Journal,
        *,
        pods: Effects,
        ps: Effects,
        tell: Callable[[Tell], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = state
        self.journal = journal
        self.clock = clock
        self.ended: EndJob | None = None
        self._pods, self._ps, self._tell = pods, ps, tell
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._alarm = threading.Condition(self.lock)
        self._generation = 0
        self._stopping = False
        self._answers: list[Answer] = []

    # ------------------------------------------------------------------ events

    def handle(self, event: Event) -> Answer | None:
        """Decide and begin to carry out; returns the answer once what it rests on is on disk.

        Raises:
            StorageError: the journal cannot be written any more.
            RefusedError: a newer master has opened it.
        """
        with self.lock:
            answer, lsn = self._carry_out(self.state.handle(event, self.clock()))
            if lsn and not isinstance(event, LeaseWanted):
                self._wake()
            if not isinstance(event, _ROUTINE):
                self._alarm.notify()
        if lsn and answer is not None:
            self.journal.wait(lsn)
        return answer

    def begin(self, incarnation: int) -> None:
        """Enter this master's number into the journal, before any event."""
        with self.lock:
            self._carry_out(self.state.new_incarnation(incarnation))

    def _carry_out(self, commands: list[Command]) -> tuple[Answer | None, int]:
        answer: Answer | None = None
        lsn = 0
        for command in commands:
            if isinstance(command, Record):
                lsn = self.journal.append(command.entry)
            elif isinstance(command, _ANSWERS):
                answer = command
            elif isinstance(command, Tell):
                self._tell(command)
            elif isinstance(command, StartPod | DeletePod):
                self._pods.do(command)
            elif isinstance(command, EndJob):
                self.ended = command
                self._wake()
                self._alarm.notify()
            else:
                self._ps.do(command)
        if self.journal.size_bytes > COMPACT_BYTES:
            lsn = self.journal.compact(self.state.snapshot())
        return answer, lsn

    # ------------------------------------------------------------------ waiting

    def lease(self, worker: str, seconds: float) -> Answer:
        """Work for a worker; when there is none, the question waits here up to ``seconds`` for a change."""
        until = self.clock() + seconds
        while True:
            generation = self._generation
            answer = self.handle(LeaseWanted(worker))
            assert answer is not None
            if not isinstance(answer, WaitForWork) or not self._wait(generation, until):
                return answer

    def _wake(self) -> None:
        self._generation += 1
        self._changed.notify_all()

    def _wait(self, generation: int, until: float) -> bool:
        """Wait for a change after ``generation``; whether there was one before ``until``."""
        with self.lock:
            while self._generation == generation and not self._stopping:
                left = until - self.clock()
                if left <= 0:
                    return False
                self._changed.wait(left)
            return not self._stopping

    def give_up(self, reason: str, kind: str) -> None:
        """Fail the job for a reason that lies outside the core: its data cannot be read."""
        with self.lock:
            self._carry_out(self.state.give_up(reason, kind))

    def pause(self, seconds: float) -> None:
        """Wait for a change, or so many seconds."""
        with self.lock:
            self._changed.wait(seconds)

    def stop_waiting(self) -> None:
        """Answer every question that waits."""
        with self.lock:
            self._stopping = True
            self._wake()
            self._alarm.notify()

    def run(self, stopped: Callable[[], bool], longest: float = 0.5) -> None:
        """Let time pass for the core until the job has ended or ``stopped`` says so."""
        while self.ended is None and not stopped():
            with self.lock:
                now = self.clock()
                wait = min(max(self.state.deadline(now) - now, 0.001), longest)
                if self.ended is None:
                    self._alarm.wait(wait)
            if self.ended is None:
                self.handle(Tick())
