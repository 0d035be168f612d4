"""A simulated worker: leases, steps, progress and reports.

Its messages may be delayed, duplicated or lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edl.api.exit_codes import SIGKILL_EXIT
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
from edl.core.ledger import EVALUATION, EXPORT, METRICS, TRAINING, Lease
from edl.simulation.simulated_ps import PushReply, SimulatedPs, minibatch_of

if TYPE_CHECKING:
    from edl.simulation.training_world import TrainingWorld

RETRY, HEARTBEAT, POLL = 0.2, 0.25, 0.1


@dataclass(slots=True)
class HeldLease:
    """A lease that this worker holds; ``done_steps`` is the number of its finished steps."""

    lease_reply: LeaseReply
    lease: Lease
    done_steps: int = 0


@dataclass(slots=True)
class SimulatedWorker:
    """One worker process.

    Attributes:
        step_seconds: seconds per step.
        max_leases: maximum number of leases that it holds.
        frozen_until: end of a SIGSTOP. Calls that are due earlier run then.
    """

    world: TrainingWorld
    uid: str
    index: int
    step_seconds: float
    max_leases: int = 2
    alive: bool = True
    leaving: bool = False
    frozen_until: float = 0.0
    held_leases: dict[int, HeldLease] = field(default_factory=dict)
    declared_ps: tuple[str, ...] = ()
    outgoing_messages: deque[tuple[CoreEvent, Callable[[Any], None]]] = field(default_factory=deque)

    # ------------------------------------------------------------------ time and messages

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call after a delay, or at the end of a SIGSTOP; not at all if the worker has died."""

        def call_unless_frozen() -> None:
            if not self.alive:
                return
            if self.world.clock.now() < self.frozen_until:
                self.world.clock.call_at(self.frozen_until, call_unless_frozen)
            else:
                call()

        self.world.clock.call_later(seconds, call_unless_frozen)

    def send_message(self, event: CoreEvent, then: Callable[[Any], None]) -> None:
        """Send a message to the master, after the answers to the earlier ones."""
        self.outgoing_messages.append((event, then))
        if len(self.outgoing_messages) == 1:
            self._send_next()

    def _send_next(self) -> None:
        event, then = self.outgoing_messages[0]

        def receive_answer(answer: Any) -> None:
            self.outgoing_messages.popleft()
            if self.outgoing_messages:
                self._send_next()
            then(answer)

        self.world.send_request(self, event, receive_answer)

    # ------------------------------------------------------------------ life cycle

    def start_working(self) -> None:
        """Declare the model, then work."""
        self._send_heartbeat()
        self._declare_model(self.choose_action)

    def _declare_model(self, then: Callable[[], None]) -> None:
        servers = self.world.usable_ps()
        if len(servers) < self.world.settings.ps:
            self.call_later(RETRY, lambda: self._declare_model(then))
            return
        for ps in servers:
            ps.initialized = True
        self.declared_ps = tuple(ps.uid for ps in servers)
        self.world.send_request(self, ModelDeclared(self.uid), lambda _: then())

    def choose_action(self) -> None:
        """Decide what to do between two steps."""
        if self.leaving:
            self._leave_job()
        elif len(self.held_leases) < self.max_leases:
            self.world.send_request(self, LeaseRequested(self.uid), self._receive_lease)
        else:
            self._run_step()

    def _initialize_ps(self, ps: SimulatedPs) -> None:
        """Send the initial values to an empty PS if no checkpoint can be loaded."""
        if self.alive and not ps.initialized and not self.world.settings.durable:
            ps.initialized = True
            self.world.send_request(self, ModelDeclared(self.uid), lambda _: None)

    def _receive_lease(self, answer: Any) -> None:
        if isinstance(answer, LeaseReply):
            lease = Lease(answer.lease, answer.record_range, answer.minibatch, self.uid)
            self.held_leases.setdefault(answer.lease, HeldLease(answer, lease))
        elif isinstance(answer, StopWork):
            self.world.end_pod(self.uid, 0)
            return
        if self.held_leases:
            self._run_step()
        elif tuple(ps.uid for ps in self.world.usable_ps()) != self.declared_ps:
            self._declare_model(self.choose_action)
        else:
            self.call_later(POLL, self.choose_action)

    def _leave_job(self) -> None:
        steps = tuple(
            LeaseProgress(n, h.done_steps) for n, h in self.held_leases.items() if h.lease_reply.kind == TRAINING
        )
        self.held_leases.clear()
        # 0, as edl.worker.graceful_shutdown ends the process.
        self.send_message(WorkerLeft(self.uid, "told to go", steps), lambda _: self.world.end_pod(self.uid, 0))

    def _send_heartbeat(self) -> None:
        """One iteration of the reporting thread."""
        # A report behind an unanswered message would only wait for it.
        if not self.outgoing_messages:
            self._report_progress()
        self.call_later(HEARTBEAT, self._send_heartbeat)

    def _report_progress(self) -> None:
        steps = tuple(LeaseProgress(number, lease.done_steps, 1.0, 1) for number, lease in self.held_leases.items())

        def drop_lost_leases(answer: Acknowledged) -> None:
            for number in answer.lost_leases:
                self.held_leases.pop(number, None)

        self.send_message(ProgressReported(self.uid, steps), drop_lost_leases)

    # ------------------------------------------------------------------ work

    def _run_step(self) -> None:
        lease = self.held_leases[min(self.held_leases)]
        if lease.lease_reply.kind != TRAINING:
            self.call_later(self.step_seconds, lambda: self._other_step(lease))
        elif lease.done_steps == lease.lease.step_count:
            self._report_task(lease, None)
        elif minibatch_of(lease.lease, lease.done_steps) in self.world.lethal_minibatches or self._feeds_lethal():
            self.call_later(self.step_seconds, self._crash)
        elif minibatch_of(lease.lease, lease.done_steps) in self.world.poison_minibatches:
            failed = WorkerFailed(self.uid, "crash", "bad record", lease=lease.lease_reply.lease)
            self.send_message(failed, lambda _: self.world.end_pod(self.uid, 1))
        else:
            self.call_later(self.step_seconds, lambda: self._push_step(lease))

    def _crash(self) -> None:
        self.world.end_pod(self.uid, self.world.rng.choice((0, SIGKILL_EXIT)))

    def _feeds_lethal(self) -> bool:
        """Whether a minibatch that crashes this worker is among those that it has read or fed."""
        # A worker feeds up to MAX_FED_AHEAD minibatches ahead, but none of a lease that is granted
        # one by one: so a crash has one suspect.
        steps = [
            (lease, step)
            for _, lease in sorted(self.held_leases.items())
            for step in range(lease.done_steps, lease.lease.step_count)
        ]
        steps = [(lease, step) for lease, step in steps if lease.lease_reply.kind == TRAINING]
        ahead = [(lease, step) for lease, step in steps[1 : 1 + MAX_FED_AHEAD] if not lease.lease_reply.one_by_one]
        fed = steps[:1] if steps[0][0].lease_reply.one_by_one else [*steps[:1], *ahead]
        return any(minibatch_of(lease.lease, step) in self.world.lethal_fed for lease, step in fed)

    def _push_step(self, lease: HeldLease) -> None:
        """Push to every PS. The step ends when all have answered.

        Messages in flight arrive even if the worker dies.
        """
        if lease.lease_reply.lease not in self.held_leases:
            self.choose_action()
            return
        waiting = set(range(self.world.settings.ps))
        revoked: list[int] = []
        number, step = lease.lease_reply.lease, lease.done_steps
        what = minibatch_of(lease.lease, step)

        def record_reply(index: int, answer: PushReply) -> None:
            waiting.discard(index)
            if answer is PushReply.REVOKED:
                revoked.append(index)
            if not waiting and self.alive:
                self.call_later(0.0, finish_step)

        def attempt_push(index: int) -> None:
            ps = self.world.usable_ps_at(index)
            if ps is not None:
                self._initialize_ps(ps)
            answer = ps.apply_push(number, step, what, self.world.clock.now()) if ps is not None else PushReply.LATER
            if answer is not PushReply.LATER:
                record_reply(index, answer)
            elif revoked and ps is None:
                record_reply(index, PushReply.REVOKED)
            elif ps is not None or self.alive:
                self.world.clock.call_later(POLL, lambda: attempt_push(index))

        def finish_step() -> None:
            if revoked:
                self.held_leases.pop(number, None)
            else:
                lease.done_steps = step + 1
            self.choose_action()

        for index in sorted(waiting):
            self.world.clock.call_later(self.world.message_latency(), lambda i=index: attempt_push(i))  # type: ignore[misc]

    def _report_task(self, lease: HeldLease, result: Any) -> None:
        self.held_leases.pop(lease.lease_reply.lease, None)
        last = LeaseProgress(lease.lease_reply.lease, lease.lease.step_count)
        self.send_message(TaskReported(self.uid, lease.lease_reply.lease, last, result), lambda _: None)
        self.choose_action()

    def _other_step(self, lease: HeldLease) -> None:
        lease.done_steps += 1
        granted = lease.lease_reply
        if granted.lease not in self.held_leases:
            self.choose_action()
        elif lease.done_steps < lease.lease.step_count:
            self.choose_action() if self.leaving else self._run_step()
        elif granted.kind in (EVALUATION, EXPORT) and not self.world.is_pin_readable(granted.pin):
            self.held_leases.pop(granted.lease)
            self.call_later(POLL, self.choose_action)
        else:
            self._report_task(lease, self._task_result(granted))

    def _task_result(self, granted: LeaseReply) -> Any:
        work = granted.record_range
        if granted.kind == EVALUATION:
            seen_records = {"additive": False, "states": [work.source, work.start, work.end]}
            return {"count": {"additive": True, "states": [work.records]}, "seen": seen_records}
        if granted.kind == METRICS:
            self.world.evaluations.append((granted.pin, granted.payload))
            return {"accuracy": 0.5}
        return ["/export"] if granted.kind == EXPORT else None
