"""Workers, parameter servers and a master in synchronous mode, without threads, sockets or time: a scheduler picks what
happens next among all that could. When nothing can happen any more and work is left, they wait for each other for ever.

The parameter servers are the real decisions (leases, cuts, rounds); workers and master are as docs/design/0002 says.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from edl.core.cuts import CutStage, PendingCut
from edl.numerics.parameter_store import PushGradients
from edl.ps.applied_steps import AdmissionOutcome, AppliedSteps, PushId
from edl.ps.cut_state import CutState
from edl.ps.push_updates import PendingPush
from edl.ps.sync_updates import SyncUpdater

Action = Callable[[], None]
NUMBER = 1 << 32
NOTHING = PushGradients(np.zeros(1, np.float32), {}, 1.0, 1.0)


class CountingContents:
    """Contents that only count updates."""

    def __init__(self) -> None:
        self.version = 0

    def apply_push(self, gradients: PushGradients | None) -> None:
        self.version += 1


@dataclass
class LeaseRange:
    """Records of a lease: step k is record ``start + k``."""

    number: int
    start: int
    end: int


class RoundsServer:
    """One parameter server's decisions."""

    def __init__(self, wanted: int, tolerance: int) -> None:
        self.leases = AppliedSteps()
        self.leases.attach_master(1, 0, [], [])
        self.contents = CountingContents()
        self.cuts: CutState[int] = CutState()
        is_held = lambda: self.cuts.is_paused  # noqa: E731
        self.together = SyncUpdater(self.leases, self.contents, wanted, tolerance, is_held)  # type: ignore[arg-type]
        self.behind: list[PendingPush] = []
        self.rounds: list[tuple[PushId, ...]] = []

    def take(self, push: PendingPush) -> None:
        """A push arrives, or has waited for its cut."""
        if self.keeps_out(push):
            if push not in self.behind:
                self.behind.append(push)
            return
        if push in self.behind:
            self.behind.remove(push)
        self.together.offer_push(push)

    def keeps_out(self, push: PendingPush) -> bool:
        """Whether it waits for a cut."""
        return (
            self.cuts.must_wait(*push.push_id) and self.leases.decide_push(*push.push_id) is AdmissionOutcome.ADMITTED
        )

    def settle(self) -> None:
        """Leases or cuts changed."""
        self.together.reevaluate()


@dataclass(eq=False)
class RoundsWorker:
    """One worker: what it has in hand, and which answers it waits for."""

    index: int
    queue: deque[LeaseRange] = field(default_factory=deque)
    step: int = 0
    version: int = 0
    waits: dict[int, PendingPush] = field(default_factory=dict)
    unsent: list[int] = field(default_factory=list)
    again: set[int] = field(default_factory=set)
    leading: bool = True
    round: tuple[PushId, ...] = ()
    connected: set[int] = field(default_factory=set)
    gone: bool = False
    refused: Counter[PushId] = field(default_factory=Counter)

    @property
    def pushing(self) -> bool:
        return bool(self.waits or self.unsent)


class RoundsSimulator:
    """All of them.

    Args:
        seed: of the scheduler.
        workers: how many.
        servers: how many.
        wanted: ``grads_to_wait``.
        tolerance: ``version_tolerance``.
        ranges: leases, each of so many steps.
        steps: of a lease.
        kills: workers that vanish, at some time, in some way.
        cuts: cuts that are taken, or called off.
        restarts: parameter servers that lose all that they know.
    """

    def __init__(
        self,
        seed: int,
        *,
        workers: int,
        servers: int,
        wanted: int,
        tolerance: int = 0,
        ranges: int = 4,
        steps: int = 3,
        kills: int = 0,
        cuts: int = 0,
        restarts: int = 0,
    ) -> None:
        self.random = random.Random(seed)
        self._new_server = partial(RoundsServer, wanted, tolerance)
        self.servers = [self._new_server() for _ in range(servers)]
        self.workers = [RoundsWorker(index) for index in range(workers)]
        self.total = ranges * steps
        self.todo = deque(LeaseRange(NUMBER + n, n * steps, (n + 1) * steps) for n in range(ranges))
        self.numbers = iter(range(NUMBER + ranges, NUMBER + 10_000))
        self.records: dict[PushId, int] = {}
        self.done: Counter[int] = Counter()
        self.partial: Counter[int] = Counter()
        self.entered = [Counter[int]() for _ in range(servers)]
        self.kills, self.cuts, self.restarts = kills, cuts, restarts
        self.cut = PendingCut(0, checkpoint=True, pin=False, stage=CutStage.SAVING)
        self.born: dict[str, int] = {}
        self.taken = 0
        self.closing: list[tuple[RoundsWorker, int]] = []
        self.orphans: list[RoundsWorker] = []

    def play(self, limit: int = 20_000) -> None:
        """Until nothing can happen any more."""
        for _ in range(limit):
            actions = list(self._actions())
            if not actions:
                return
            self.random.choice(actions)()
        raise AssertionError("they go on for ever")

    # ------------------------------------------------------------------ what may happen

    def _actions(self) -> Iterator[Action]:
        for worker in self.workers:
            if not worker.gone:
                yield from self._of_worker(worker)
        for worker, part in self.closing:
            yield partial(self._close, worker, part)
        for worker in self.orphans:
            yield partial(self._revoke, worker)
        for part, server in enumerate(self.servers):
            for push in server.behind:
                if not server.keeps_out(push):
                    yield partial(server.take, push)
            if str(part) in self.cut.waiting_ps:
                yield partial(self._ask, part)
        yield from self._of_master()

    def _of_worker(self, worker: RoundsWorker) -> Iterator[Action]:
        if len(worker.queue) < 2 and self.todo:
            yield partial(self._grant, worker)
        if worker.queue and not worker.pushing:
            yield partial(self._begin, worker)
        for part in worker.unsent:
            yield partial(self._send, worker, part)
        for part, push in worker.waits.items():
            if push.outcome is not None:
                yield partial(self._receive, worker, part)

    def _of_master(self) -> Iterator[Action]:
        if self.cuts and not self.cut.awaits_copies and not self.orphans:
            yield self._begin_cut
        if self.kills and sum(not worker.gone for worker in self.workers) > 1:
            yield self._kill
        if self.restarts:
            yield self._restart

    # ------------------------------------------------------------------ master

    def _begin_cut(self) -> None:
        self.cuts -= 1
        self.cut = PendingCut(self.cut.number + 1, checkpoint=True, pin=False)
        self.cut.enter_stage(CutStage.HOLDING, map(str, range(len(self.servers))))

    def _ask(self, part: int) -> None:
        """A server holds updates, or is asked for its copy: it may have to be asked again."""
        server, cut, name = self.servers[part], self.cut, str(part)
        if cut.stage is CutStage.HOLDING:
            server.cuts.pause_pushes(cut.number, 0.0)
            cut.applied_steps[name] = server.leases.steps_of_pushed_leases()
            cut.record_answer(CutStage.HOLDING, name)
            if cut.is_complete:
                self._decide()
            return
        server.cuts.include_steps(cut.number, cut.included_steps)
        server.settle()
        if server.leases.has_reached(cut.included_steps):
            self._copy(part)

    def _decide(self) -> None:
        """All are held: which steps the cut has, or that it is off."""
        known = {lease.number: 0 for worker in self.workers for lease in worker.queue}
        known |= {worker.queue[0].number: worker.step for worker in self.workers if worker.queue}
        within = (
            None if self.cut.find_unconfirmed_leases(known, self.born) else self.cut.decide_included_steps(known).value
        )
        if within is None or self.random.random() < 0.2:
            self._call_off()
        else:
            self.cut.included_steps = within
            self.cut.enter_stage(CutStage.SNAPSHOT, map(str, range(len(self.servers))))

    def _copy(self, part: int) -> None:
        server, within = self.servers[part], self.cut.included_steps
        included = {lease: through for lease, through in server.leases.steps_by_lease().items() if within.get(lease)}
        assert included == {lease: through for lease, through in within.items() if through}, "not the same on all"
        server.cuts.record_copy(self.cut.number, 0, pin=False)
        server.settle()
        self.cut.record_answer(CutStage.SNAPSHOT, str(part))
        if self.cut.is_complete:
            self.cut.enter_stage(CutStage.SAVING, ())
            self.taken += 1

    def _call_off(self) -> None:
        if not self.cut.awaits_copies:
            return
        for server in self.servers:
            server.cuts.release_cut(self.cut.number)
            server.settle()
        self.cut.enter_stage(CutStage.SAVING, ())

    def _grant(self, worker: RoundsWorker) -> None:
        worker.queue.append(self.todo.popleft())

    def _kill(self) -> None:
        """A process is killed (its connections close) or its node is lost (nobody hears of it but the master)."""
        self.kills -= 1
        worker = self.random.choice([worker for worker in self.workers if not worker.gone])
        worker.gone = True
        if self.random.random() < 0.5:
            self.closing += [(worker, part) for part in worker.connected]
        self.orphans.append(worker)

    def _close(self, worker: RoundsWorker, part: int) -> None:
        push = worker.waits.get(part)
        if push is not None and push.outcome is None:
            return  # its thread waits inside, and notices nothing
        self.closing.remove((worker, part))
        self.servers[part].together.handle_disconnect(worker.index, worker.index)

    def _revoke(self, worker: RoundsWorker) -> None:
        self.orphans.remove(worker)
        self._call_off()
        for lease in worker.queue:
            through = []
            for server in self.servers:
                through.append(server.leases.revoke_leases([lease.number], 0)[lease.number])
                server.settle()
            low, high = min(through), max(through)
            for step in range(low):
                self.done[lease.start + step] += 1
            self.partial.update(lease.start + step for step in range(low, high))
            if lease.start + low < lease.end:
                self.todo.appendleft(LeaseRange(next(self.numbers), lease.start + low, lease.end))
        worker.queue.clear()

    def _restart(self) -> None:
        """A PS comes back with what a checkpoint of this moment would have held, and knows nothing else."""
        self.restarts -= 1
        part = self.random.randrange(len(self.servers))
        lost, new = self.servers[part], self._new_server()
        new.leases.restore_steps(lost.leases.steps_by_lease())
        new.leases.revoke_leases(lost.leases._revoked_leases, 0)
        new.contents.version = lost.contents.version // 2
        self.born[str(part)] = next(self.numbers)
        new.cuts.finish_cut(lost.cuts._last_finished_cut)
        self.servers[part] = new
        self._call_off()
        for worker in self.workers:
            worker.connected.discard(part)
            if part in worker.waits and worker.waits[part].outcome is None:
                del worker.waits[part]
                worker.unsent.append(part)
                worker.again.add(part)

    # ------------------------------------------------------------------ workers

    def _begin(self, worker: RoundsWorker) -> None:
        worker.leading, worker.unsent, worker.round = True, [0], ()
        worker.again.clear()

    def _send(self, worker: RoundsWorker, part: int) -> None:
        lease = worker.queue[0]
        more = lease.start + worker.step + 1 < lease.end
        following = lease.number if more else worker.queue[1].number if len(worker.queue) > 1 else 0
        push = PendingPush(
            PushId(lease.number, worker.step),
            None,  # type: ignore[arg-type]
            NOTHING,
            worker.index,
            worker.index,
            worker.version,
            following,
            worker.round,
            part in worker.again,
        )
        self.records[push.push_id] = lease.start + worker.step
        worker.unsent.remove(part)
        worker.waits[part] = push
        worker.connected.add(part)
        self.servers[part].take(push)

    def _receive(self, worker: RoundsWorker, part: int) -> None:
        push = worker.waits.pop(part)
        outcome = push.require_admission()
        if outcome is AdmissionOutcome.REVOKED:
            raise AssertionError("a live worker's lease was revoked")
        if outcome is AdmissionOutcome.ADMITTED:
            self.entered[part][self.records[push.push_id]] += 1
            if push.round_pushes not in self.servers[part].rounds:
                self.servers[part].rounds.append(push.round_pushes)
        if outcome is AdmissionOutcome.STALE:
            worker.refused[push.push_id] += 1
            worker.version = self.servers[0].contents.version
        elif worker.leading:
            worker.version = self.servers[0].contents.version
            worker.leading, worker.round = False, push.round_pushes or (push.push_id,)
            worker.unsent = list(range(1, len(self.servers)))
        if not worker.pushing and outcome is not AdmissionOutcome.STALE:
            self._stepped(worker)

    def _stepped(self, worker: RoundsWorker) -> None:
        worker.step += 1
        lease = worker.queue[0]
        if lease.start + worker.step < lease.end:
            return
        for record in range(lease.start, lease.end):
            self.done[record] += 1
        worker.queue.popleft()
        worker.step = 0
