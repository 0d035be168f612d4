"""A simulated worker: leases, steps, progress and reports.

Its messages may be delayed, duplicated or lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edl.core.crash_suspects import MAX_FED_AHEAD
from edl.core.events import (
    Acknowledged,
    CoreEvent,
    LeaseProgress,
    LeaseReply,
    LeaseRequested,
    ModelDeclared,
    ProgressReported,
    StopWork,
    TaskReported,
    WorkerFailed,
    WorkerLeft,
)
from edl.core.ledger import Lease
from edl.core.state import EVALUATION, EXPORT, METRICS, TRAINING
from edl.simulation.simulated_ps import Answer, SimulatedPs, minibatch_of

if TYPE_CHECKING:
    from edl.simulation.training_world import World

RETRY, HEARTBEAT, POLL = 0.2, 0.25, 0.1


@dataclass(slots=True)
class Held:
    """A lease that this worker holds; ``through`` is the number of its finished steps."""

    granted: LeaseReply
    lease: Lease
    through: int = 0
    told: int = -1


@dataclass(slots=True)
class SimulatedWorker:
    """One worker process.

    Attributes:
        pace: seconds per step.
        ahead: maximum number of leases that it holds.
        frozen_until: end of a SIGSTOP. Calls that are due earlier run then.
    """

    world: World
    uid: str
    index: int
    pace: float
    ahead: int = 2
    alive: bool = True
    leaving: bool = False
    frozen_until: float = 0.0
    held: dict[int, Held] = field(default_factory=dict)
    declared: tuple[str, ...] = ()
    wire: deque[tuple[CoreEvent, Callable[[Any], None]]] = field(default_factory=deque)

    # ------------------------------------------------------------------ time and messages

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call after a delay, or at the end of a SIGSTOP; not at all if the worker has died."""

        def go() -> None:
            if not self.alive:
                return
            if self.world.clock.now() < self.frozen_until:
                self.world.clock.at(self.frozen_until, go)
            else:
                call()

        self.world.clock.after(seconds, go)

    def say(self, event: CoreEvent, then: Callable[[Any], None]) -> None:
        """Send a message to the master, after the answers to the earlier ones."""
        self.wire.append((event, then))
        if len(self.wire) == 1:
            self._send()

    def _send(self) -> None:
        event, then = self.wire[0]

        def answered(answer: Any) -> None:
            self.wire.popleft()
            if self.wire:
                self._send()
            then(answer)

        self.world.ask(self, event, answered)

    # ------------------------------------------------------------------ life cycle

    def start(self) -> None:
        """Declare the model, then work."""
        self._beat()
        self._declare(self.next)

    def _declare(self, then: Callable[[], None]) -> None:
        servers = self.world.placed()
        if len(servers) < self.world.settings.ps:
            self.later(RETRY, lambda: self._declare(then))
            return
        for ps in servers:
            ps.initialized = True
        self.declared = tuple(ps.uid for ps in servers)
        self.world.ask(self, ModelDeclared(self.uid), lambda _: then())

    def next(self) -> None:
        """Decide what to do between two steps."""
        if self.leaving:
            self._leave()
        elif len(self.held) < self.ahead:
            self.world.ask(self, LeaseRequested(self.uid), self._granted)
        else:
            self._work()

    def _fill(self, ps: SimulatedPs) -> None:
        """Send the initial values to an empty PS if no checkpoint can be loaded."""
        if self.alive and not ps.initialized and not self.world.settings.durable:
            ps.initialized = True
            self.world.ask(self, ModelDeclared(self.uid), lambda _: None)

    def _granted(self, answer: Any) -> None:
        if isinstance(answer, LeaseReply):
            lease = Lease(answer.lease, answer.record_range, answer.minibatch, self.uid)
            self.held.setdefault(answer.lease, Held(answer, lease))
        elif isinstance(answer, StopWork):
            self.world.end(self.uid, 0)
            return
        if self.held:
            self._work()
        elif tuple(ps.uid for ps in self.world.placed()) != self.declared:
            self._declare(self.next)
        else:
            self.later(POLL, self.next)

    def _leave(self) -> None:
        steps = tuple(LeaseProgress(n, h.through) for n, h in self.held.items() if h.granted.kind == TRAINING)
        self.held.clear()
        self.say(WorkerLeft(self.uid, "told to go", steps), lambda _: self.world.end(self.uid, 143))

    def _beat(self) -> None:
        """One iteration of the reporting thread."""
        # A report behind an unanswered message would only wait for it.
        if not self.wire:
            self._tell()
        self.later(HEARTBEAT, self._beat)

    def _tell(self) -> None:
        steps = tuple(LeaseProgress(number, held.through, 1.0, 1) for number, held in self.held.items())

        def answered(answer: Acknowledged) -> None:
            for number in answer.lost_leases:
                self.held.pop(number, None)

        self.say(ProgressReported(self.uid, steps), answered)

    # ------------------------------------------------------------------ work

    def _work(self) -> None:
        held = self.held[min(self.held)]
        if held.granted.kind != TRAINING:
            self.later(self.pace, lambda: self._other_step(held))
        elif held.through == held.lease.step_count:
            self._report(held, None)
        elif minibatch_of(held.lease, held.through) in self.world.lethal or self._feeds_lethal():
            self.later(self.pace, lambda: self.world.end(self.uid, self.world.rng.choice((0, 137))))
        elif minibatch_of(held.lease, held.through) in self.world.poison:
            failed = WorkerFailed(self.uid, "crash", "bad record", lease=held.granted.lease)
            self.say(failed, lambda _: self.world.end(self.uid, 1))
        else:
            self.later(self.pace, lambda: self._push(held))

    def _feeds_lethal(self) -> bool:
        """Whether a minibatch that crashes this worker is among those that it has read or fed."""
        # A worker feeds up to MAX_FED_AHEAD minibatches ahead, but none of a lease that is granted
        # one by one: so a crash has one suspect.
        steps = [
            (held, step) for _, held in sorted(self.held.items()) for step in range(held.through, held.lease.step_count)
        ]
        steps = [(held, step) for held, step in steps if held.granted.kind == TRAINING]
        ahead = [(held, step) for held, step in steps[1 : 1 + MAX_FED_AHEAD] if not held.granted.one_by_one]
        fed = steps[:1] if steps[0][0].granted.one_by_one else [*steps[:1], *ahead]
        return any(minibatch_of(held.lease, step) in self.world.lethal_fed for held, step in fed)

    def _push(self, held: Held) -> None:
        """Push to every PS. The step ends when all have answered.

        Messages in flight arrive even if the worker dies.
        """
        if held.granted.lease not in self.held:
            self.next()
            return
        waiting = set(range(self.world.settings.ps))
        revoked: list[int] = []
        number, step = held.granted.lease, held.through
        what = minibatch_of(held.lease, step)

        def answered(index: int, answer: Answer) -> None:
            waiting.discard(index)
            if answer is Answer.REVOKED:
                revoked.append(index)
            if not waiting and self.alive:
                self.later(0.0, over)

        def attempt(index: int) -> None:
            ps = self.world.placed_at(index)
            if ps is not None:
                self._fill(ps)
            answer = ps.push(number, step, what, self.world.clock.now()) if ps is not None else Answer.LATER
            if answer is not Answer.LATER:
                answered(index, answer)
            elif revoked and ps is None:
                answered(index, Answer.REVOKED)
            elif ps is not None or self.alive:
                self.world.clock.after(POLL, lambda: attempt(index))

        def over() -> None:
            if revoked:
                self.held.pop(number, None)
            else:
                held.through = step + 1
            self.next()

        for index in sorted(waiting):
            self.world.clock.after(self.world.latency(), lambda i=index: attempt(i))  # type: ignore[misc]

    def _report(self, held: Held, result: Any) -> None:
        self.held.pop(held.granted.lease, None)
        last = LeaseProgress(held.granted.lease, held.lease.step_count)
        self.say(TaskReported(self.uid, held.granted.lease, last, result), lambda _: None)
        self.next()

    def _other_step(self, held: Held) -> None:
        held.through += 1
        granted = held.granted
        if granted.lease not in self.held:
            self.next()
        elif held.through < held.lease.step_count:
            self.next() if self.leaving else self._work()
        elif granted.kind in (EVALUATION, EXPORT) and not self.world.readable(granted.pin):
            self.held.pop(granted.lease)
            self.later(POLL, self.next)
        else:
            self._report(held, self._result(granted))

    def _result(self, granted: LeaseReply) -> Any:
        work = granted.record_range
        if granted.kind == EVALUATION:
            seen = {"additive": False, "states": [work.source, work.start, work.end]}
            return {"count": {"additive": True, "states": [work.records]}, "seen": seen}
        if granted.kind == METRICS:
            self.world.evaluations.append((granted.pin, granted.payload))
            return {"accuracy": 0.5}
        return ["/export"] if granted.kind == EXPORT else None
