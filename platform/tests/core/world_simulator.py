"""AllReduce's rounds under a random scheduler: a master, workers, and a network that loses and repeats messages.

The real ``WorldRounds``, ``RankState`` and ``Ledger`` run here; variables are the list of steps that
were applied to them. Any process may be killed between any two messages, a worker may be stopped for
a while, and a master may die between its journal entry and the messages that follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from edl.api.round_id import RoundId
from edl.core.ledger import Ledger
from edl.core.rank_state import RankPhase, RankState
from edl.core.record_ranges import RecordSource, ShardPlan
from edl.core.world_rounds import (
    ChangeAtBoundary,
    CloseRound,
    MemberReport,
    RoundAnnounced,
    RoundCommand,
    RoundPhase,
    RoundStarted,
    Share,
    StateDiverged,
    StepsCommitted,
    StepShares,
    WorldRounds,
    group_by_node,
)

Record = tuple[int, int]


def is_corrupt(record: Record) -> bool:
    """Whether a record cannot be read: every third one."""
    return record[1] % 3 == 0


"""Epoch and record."""


def node_of(worker: str) -> str:
    """Three nodes."""
    return f"node-{int(worker[1:]) % 3}"


@dataclass
class SimulatedRank:
    """A worker process.

    Attributes:
        history: its variables: the shares of every step that was applied to them.
        leases: numbers of its leases, oldest first.
        is_stopped: SIGSTOP: it does nothing, and its neighbours take it for lost.
        is_leaving: it was told to leave, and will end.
        wants_boundary: it knows that the world is to change.
        source: the member whose steps it gets while it follows the running round.
        stream: steps of its source that have not arrived here yet.
    """

    state: RankState
    index: int
    history: list[StepShares] = field(default_factory=list)
    leases: list[int] = field(default_factory=list)
    is_alive: bool = True
    is_stopped: bool = False
    is_leaving: bool = False
    wants_boundary: bool = False
    source: str = ""
    stream: list[StepShares] = field(default_factory=list)

    @property
    def uid(self) -> str:
        return self.state.worker

    def lease_position(self, lease: int) -> int:
        """Records of a lease that are in its state."""
        return max((share.end for shares in self.history for share in shares if share.lease == lease), default=0)


@dataclass
class Checkpoint:
    """What a checkpoint has: the state of a stable step, and the ledger of exactly that step."""

    step: int
    history: list[StepShares]
    ledger: dict[str, Any]
    done: frozenset[Record]


class WorldSimulator:
    """One run; what happens is a function of the seed.

    Args:
        seed: of everything.
        members_min: ``workers.min``.
        records: of an epoch.
        loss: share of messages that are lost.
    """

    def __init__(self, seed: int, *, members_min: int = 1, records: int = 40, loss: float = 0.1) -> None:
        self.random = Random(seed)
        self.members_min, self.loss = members_min, loss
        self.plan = ShardPlan((RecordSource("a", records),), 8)
        self.ledger = Ledger(self.plan, 1, 1)
        self.journal: list[Any] = []
        self.incarnation = 0
        self.lease_counter = 0
        self.lease_ranges: dict[int, tuple[int, int]] = {}
        self.workers: dict[str, SimulatedRank] = {}
        self.messages: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.contributions: dict[tuple[RoundId, int], dict[str, tuple[Share, ...]]] = {}
        self.boundaries: set[tuple[RoundId, int]] = set()
        self.done: frozenset[Record] = frozenset()
        self.skipped = 0
        """Corrupt records that the ledger has counted."""
        self.checkpoint = Checkpoint(0, [], self.ledger.to_snapshot(), frozenset())
        self.restarts_from_checkpoint = 0
        self._compared: dict[str, tuple[list[StepShares], int, frozenset[Record]]] = {}
        self.rounds = WorldRounds()
        self.start_master()

    # ------------------------------------------------------------------------------------------ processes

    def start_master(self) -> None:
        """A new master replays the journal; the messages on their way to the old one are lost."""
        self.incarnation += 1
        self.rounds = WorldRounds(self.incarnation, self.members_min, self.checkpoint.step, node_of=node_of)
        for entry in self.journal:
            self._apply_to_rounds(entry)
        self.messages = [message for message in self.messages if message[0] in self._worker_handlers()]
        self.obey(self.rounds.handle_restart())
        for worker in self.workers.values():
            if not worker.is_alive or worker.is_stopped:
                self.send(self.master_hears_of_loss, worker.uid, reliably=True)
            elif worker.is_leaving:
                self.obey(self.rounds.handle_leaving(worker.uid))

    def start_worker(self) -> None:
        """A new worker process, with its model built."""
        index = len(self.workers)
        worker = SimulatedRank(RankState(f"w{index}"), index)
        self.workers[worker.uid] = worker

    def kill(self, worker: SimulatedRank) -> None:
        """SIGKILL: the cluster tells the master some time later."""
        worker.is_alive = False
        self.send(self.master_hears_of_loss, worker.uid, reliably=True)

    def stop(self, worker: SimulatedRank) -> None:
        """SIGSTOP: its neighbours report it after some time."""
        worker.is_stopped = True
        self.send(self.master_hears_of_loss, worker.uid, reliably=True)

    def tell_to_leave(self, worker: SimulatedRank) -> None:
        """SIGTERM, or a request of the master."""
        worker.is_leaving = True
        self.obey(self.rounds.handle_leaving(worker.uid))

    # -------------------------------------------------------------------------------------------- network

    def send(self, handler: Callable[..., None], *message: Any, reliably: bool = False) -> None:
        """Put a message on its way: it arrives once, twice or never, in any order."""
        if not reliably and self.random.random() < self.loss:
            return
        for _ in range(2 if self.random.random() < self.loss else 1):
            self.messages.append((handler, message))

    def deliver(self) -> None:
        """Deliver any of the messages on their way."""
        handler, message = self.messages.pop(self.random.randrange(len(self.messages)))
        handler(*message)

    def _worker_handlers(self) -> tuple[Callable[..., None], ...]:
        return (
            self.worker_hears_announcement,
            self.worker_hears_start,
            self.worker_hears_close,
            self.worker_hears_boundary,
            self.worker_hears_acknowledgement,
            self.worker_is_outside,
            self.master_hears_of_loss,
        )

    # --------------------------------------------------------------------------------------------- master

    def obey(self, commands: list[RoundCommand]) -> None:
        """Carry out what the rounds decided: entries first. The master may die after any entry."""
        for command in commands:
            if isinstance(command, StateDiverged):
                raise AssertionError(f"states differ: {command}")
            if isinstance(command, CloseRound):
                for worker in command.workers:
                    self.send(self.worker_hears_close, worker, command.round)
            elif isinstance(command, ChangeAtBoundary):
                self.send(self.worker_hears_boundary, self.random.choice(self.rounds.members), command.round)
            else:
                if isinstance(command, RoundAnnounced):
                    assert command.members == group_by_node(command.members, node_of), "a node's members are apart"
                if isinstance(command, RoundStarted):
                    states = [self.workers[uid].state.state_round for uid in self.rounds.members]
                    assert all(each == command.round for each in states), "a member lacks the first state of a round"
                self.journal.append(command)
                self._apply_to_ledger(command)
                if self.random.random() < 0.05:
                    self.start_master()
                    return
                self._apply_to_rounds(command)
                self._send_entry(command)
                if isinstance(command, RoundStarted):
                    self.obey(self.rounds.request_pending_leaves())

    def _apply_to_rounds(self, entry: RoundAnnounced | RoundStarted | StepsCommitted) -> None:
        if isinstance(entry, RoundAnnounced):
            self.rounds.apply_announced(entry)
        elif isinstance(entry, RoundStarted):
            self.rounds.apply_started(entry)
        else:
            self.rounds.apply_committed(entry)

    def _apply_to_ledger(self, entry: RoundAnnounced | RoundStarted | StepsCommitted) -> None:
        if isinstance(entry, RoundAnnounced):
            if not entry.holders:
                assert entry.step == self.checkpoint.step
                assert not [uid for uid in entry.members if self.has_valid_state(self.workers[uid])], entry
                self.restarts_from_checkpoint += bool(self.done != self.checkpoint.done)
                self.ledger.restore_snapshot(self.checkpoint.ledger)
                self.done = self.checkpoint.done
                self.skipped = sum(map(is_corrupt, self.done))
            return
        for lease, records in entry.done.items():
            start, _ = self.lease_ranges[lease]
            self.done |= {(0, start + record) for record in range(records)}
            if lease in self.ledger.leases:
                self.skipped += self.ledger.record_skipped(lease, entry.skipped.get(lease, 0))
                self.ledger.record_progress(lease, records)
                if self.ledger.leases[lease].done_steps == self.ledger.leases[lease].step_count:
                    self.ledger.finish_lease(lease)
        if isinstance(entry, RoundStarted):
            for number, lease in list(self.ledger.leases.items()):
                if lease.worker not in self.rounds.members:
                    self.ledger.return_lease(number, lease.done_steps)

    def has_valid_state(self, worker: SimulatedRank) -> bool:
        """Whether a worker has a state of the newest round that started, or of a later one.

        The ledger of a step before the committed one is not known.
        """
        state, valid_from = worker.state, self.rounds.valid_from
        if state.step is None or state.step < self.rounds.committed_step:
            return False
        return state.state_round == valid_from or state.state_round > valid_from

    def _send_entry(self, entry: RoundAnnounced | RoundStarted | StepsCommitted) -> None:
        if isinstance(entry, StepsCommitted):
            for follower in self.workers.values():
                if follower.source and follower.state.round == self.rounds.round:
                    self.send(self.worker_hears_acknowledgement, follower.uid, entry.step)
        for worker in self.rounds.members:
            if isinstance(entry, RoundAnnounced):
                self.send(self.worker_hears_announcement, worker, entry)
            elif isinstance(entry, RoundStarted):
                self.send(self.worker_hears_start, worker, entry.round, entry.step)
            else:
                self.send(self.worker_hears_acknowledgement, worker, entry.step)

    def master_hears_of_loss(self, uid: str) -> None:
        if self.workers[uid].is_alive and not self.workers[uid].is_stopped:
            return  # it has come back; the report of its neighbours was late
        self.obey(self.rounds.handle_lost(uid, "a test"))

    def master_hears_report(self, uid: str, round_id: RoundId, report: MemberReport) -> None:
        self.obey(self.rounds.handle_report(uid, round_id, report))

    def master_hears_candidate(self, uid: str, round_id: RoundId, report: MemberReport) -> None:
        if self.workers[uid].is_alive and not self.workers[uid].is_stopped:
            self.obey(self.rounds.handle_candidate(uid, self.workers[uid].index, round_id, report))

    def master_hears_follower(self, uid: str, round_id: RoundId, phase: RankPhase, report: MemberReport) -> None:
        if not self.workers[uid].is_alive or self.workers[uid].is_stopped:
            return
        if uid in self.rounds.members and uid not in self.rounds.lost:
            self.obey(self.rounds.handle_report(uid, round_id, report))
        else:
            is_caught_up = phase is RankPhase.CAUGHT_UP
            self.obey(self.rounds.handle_follower(uid, self.workers[uid].index, round_id, is_caught_up=is_caught_up))

    def master_hears_confirmation(self, uid: str, round_id: RoundId, digest: int) -> None:
        self.obey(self.rounds.handle_confirmed(uid, round_id, digest))

    def master_hears_stable(
        self, uid: str, round_id: RoundId, step: int, after: int, done: dict[int, int], skipped: dict[int, int]
    ) -> None:
        assert after <= self.rounds.committed_step or round_id != self.rounds.round
        self.obey(self.rounds.handle_stable(round_id, step, done, skipped))

    def master_hears_poll(self, uid: str, round_id: RoundId, phase: RankPhase) -> None:
        """What a worker's heartbeat is answered with: what it may have missed."""
        rounds = self.rounds
        if uid not in rounds.members or uid in rounds.lost:
            self.send(self.worker_is_outside, uid, rounds.round, rounds.phase is not RoundPhase.CLOSING)
        elif rounds.phase is RoundPhase.CLOSING:
            self.send(self.worker_hears_close, uid, rounds.round)
        else:
            entry = next(e for e in reversed(self.journal) if isinstance(e, RoundAnnounced))
            if round_id < rounds.round:
                self.send(self.worker_hears_announcement, uid, entry)
            elif rounds.phase is RoundPhase.RUNNING:
                self.send(self.worker_hears_start, uid, rounds.round, rounds.committed_step)
                if rounds.pending_change:
                    self.send(self.worker_hears_boundary, uid, rounds.round)

    # -------------------------------------------------------------------------------------------- workers

    def _reachable(self, uid: str) -> SimulatedRank | None:
        worker = self.workers[uid]
        return worker if worker.is_alive and not worker.is_stopped else None

    def worker_hears_announcement(self, uid: str, entry: RoundAnnounced) -> None:
        if (worker := self._reachable(uid)) is None:
            return
        if worker.source:
            self.end_following(worker)
        worker.state.handle_announced(entry)
        worker.wants_boundary = False
        if not entry.holders and entry.round == worker.state.round:
            worker.leases.clear()

    def worker_hears_start(self, uid: str, round_id: RoundId, step: int) -> None:
        if (worker := self._reachable(uid)) is not None:
            worker.state.handle_started(round_id)
            worker.state.handle_acknowledged(step)

    def worker_hears_close(self, uid: str, round_id: RoundId) -> None:
        if (worker := self._reachable(uid)) is None:
            return
        if worker.source:
            # The last steps are on their way to it, unless the master takes it for a member.
            if uid not in self.rounds.members:
                return
            self.end_following(worker)
        if worker.state.handle_closed(round_id):
            self.report(worker)

    def worker_hears_boundary(self, uid: str, round_id: RoundId) -> None:
        if (worker := self._reachable(uid)) is not None and worker.state.round == round_id:
            worker.wants_boundary = True

    def worker_hears_acknowledgement(self, uid: str, step: int) -> None:
        if (worker := self._reachable(uid)) is not None:
            worker.state.handle_acknowledged(step)

    def worker_is_outside(self, uid: str, round_id: RoundId, may_follow: bool) -> None:
        worker = self._reachable(uid)
        if worker is None or (worker.source and round_id <= worker.state.round):
            return
        if round_id > worker.state.round or not worker.state.is_outside:
            worker.source, worker.stream = "", []
            worker.state.leave_world(round_id, may_follow=may_follow)
            worker.leases.clear()
        elif not may_follow:
            self.end_following(worker)

    def report(self, worker: SimulatedRank) -> None:
        digest = hash(tuple(worker.history))
        self.send(self.master_hears_report, worker.uid, worker.state.round, worker.state.report(digest))

    def poll(self, worker: SimulatedRank) -> None:
        """A heartbeat, and what the worker repeats until the master has reacted."""
        state, digest = worker.state, hash(tuple(worker.history))
        if state.phase is RankPhase.ENDED:
            self.report(worker)
        elif state.phase is RankPhase.CONFIRMED:
            self.send(self.master_hears_confirmation, worker.uid, state.round, digest)
        elif state.phase is RankPhase.OUTSIDE and not worker.is_leaving:
            self.send(self.master_hears_candidate, worker.uid, state.round, state.report(digest))
        elif state.is_outside and not worker.is_leaving:
            report = state.report(digest)
            self.send(self.master_hears_follower, worker.uid, state.round, state.phase, report)
        elif state.phase is RankPhase.FETCHING:
            self.fetch(worker)
        self.send(self.master_hears_poll, worker.uid, state.round, state.phase)

    def fetch(self, worker: SimulatedRank) -> None:
        """Copy the state of a member that has it, together with its shares."""
        entry = next(e for e in reversed(self.journal) if isinstance(e, RoundAnnounced))
        state = worker.state
        if entry.round != state.round:
            return
        if not entry.holders and state.rank == 0:
            worker.history = list(self.checkpoint.history)
            state.adopt_state(entry.round, entry.step)
            return
        source = self.workers[self.random.choice(entry.holders or entry.members[:1])]
        has_state = source.state.state_round == entry.round and source.state.step == entry.step
        if source.is_alive and not source.is_stopped and has_state:
            worker.history = list(source.history)
            state.adopt_state(entry.round, entry.step, source.state.shares)

    def begin_following(self, worker: SimulatedRank, source: SimulatedRank) -> None:
        """Copy the state of a running member, and get every step from it from now on."""
        worker.state.begin_following()
        worker.source, worker.stream = source.uid, []
        assert source.state.step is not None
        worker.history = list(source.history)
        worker.state.adopt_followed_state(source.state.step, source.state.shares)

    def follow_step(self, worker: SimulatedRank) -> None:
        """The next step of the source arrives. When all have, the worker may say so."""
        if worker.stream:
            shares = worker.stream.pop(0)
            worker.history.append(shares)
            worker.state.apply_step(shares)
        else:
            worker.state.catch_up()

    def has_source_ended(self, worker: SimulatedRank) -> bool:
        """Whether no further step comes from the source."""
        source = self.workers[worker.source]
        state = source.state
        return not source.is_alive or state.round != worker.state.round or state.phase is not RankPhase.RUNNING

    def end_following(self, worker: SimulatedRank) -> None:
        """The connection to the source ends; what has not arrived is lost."""
        worker.source, worker.stream = "", []
        worker.state.end_following()

    def contribute(self, worker: SimulatedRank) -> None:
        """Compute a gradient and put it into the reduction of the next step."""
        state = worker.state
        assert state.step is not None
        key = (state.round, state.step + 1)
        if worker.uid in (sent := self.contributions.setdefault(key, {})):
            return
        self._request_lease(worker)
        shares: list[Share] = []
        for lease in worker.leases:
            start, end = self.lease_ranges[lease]
            position = worker.lease_position(lease)
            if position < end - start:
                last = min(end - start, position + self.random.randint(1, 3))
                skipped = sum(is_corrupt((0, record)) for record in range(start, start + last))
                shares.append(Share(lease, position, last, skipped))
                break
        sent[worker.uid] = tuple(shares)
        if worker.wants_boundary:
            self.boundaries.add(key)

    def _request_lease(self, worker: SimulatedRank) -> None:
        """Get a lease, if the master is there; one that the worker does not know of comes first."""
        if self.rounds.phase is not RoundPhase.RUNNING or worker.uid not in self.rounds.members:
            return
        has_work = any(
            worker.lease_position(lease) < self.lease_ranges[lease][1] - self.lease_ranges[lease][0]
            for lease in worker.leases
        )
        if has_work:
            return
        unknown_leases = [
            lease.number for lease in self.ledger.worker_leases(worker.uid) if lease.number not in worker.leases
        ]
        if unknown_leases:
            worker.leases.append(unknown_leases[0])
        elif (work := self.ledger.next_range()) is not None:
            self.lease_counter += 1
            self.ledger.grant_range(self.lease_counter, work, worker.uid)
            self.lease_ranges[self.lease_counter] = (work.start, work.end)
            worker.leases.append(self.lease_counter)

    def can_finish(self, worker: SimulatedRank) -> bool:
        state = worker.state
        if state.phase is not RankPhase.RUNNING or state.step is None:
            return False
        return len(self.contributions.get((state.round, state.step + 1), ())) == len(state.members)

    def finish(self, worker: SimulatedRank) -> None:
        """The reduction has reached this worker: it applies the step."""
        state = worker.state
        assert state.step is not None
        key = (state.round, state.step + 1)
        sent = self.contributions[key]
        shares = tuple(share for member in state.members for share in sent[member])
        for other in self.workers.values():
            if other.source == worker.uid and other.state.round == state.round:
                other.stream.append(shares)
        worker.history.append(shares)
        stable = state.apply_step(shares)
        if stable > state.shares.after:
            done = state.shares.done_records(stable)
            skipped = state.shares.skipped_records(stable)
            self.send(self.master_hears_stable, worker.uid, state.round, stable, state.shares.after, done, skipped)
        if key in self.boundaries:
            state.handle_closed(state.round)
            self.report(worker)

    def is_round_broken(self, worker: SimulatedRank) -> bool:
        """Whether a member is gone, or has left the round: this worker's connections break."""
        for uid in worker.state.members:
            other = self.workers[uid]
            has_left = other.state.round > worker.state.round or (
                other.state.round == worker.state.round and other.state.phase in (RankPhase.ENDED, RankPhase.OUTSIDE)
            )
            if not other.is_alive or other.is_stopped or has_left:
                return True
        return False

    def notice_break(self, worker: SimulatedRank) -> None:
        worker.state.handle_closed(worker.state.round)
        self.report(worker)

    def take_checkpoint(self) -> None:
        """Write the state of a stable step, with the ledger of exactly that step."""
        step = self.rounds.committed_step
        for worker in self.workers.values():
            running = worker.is_alive and worker.state.phase is RankPhase.RUNNING
            if running and worker.state.round == self.rounds.round and (worker.state.step or 0) >= step:
                position = self.ledger.snapshot_at_cut({n: x.done_steps for n, x in self.ledger.leases.items()})
                self.checkpoint = Checkpoint(step, worker.history[:step], position, self.done)
                self.rounds.checkpoint_step = step
                return

    # ------------------------------------------------------------------------------------------ scheduling

    def actions(self, *, faults: bool) -> Iterator[tuple[float, Callable[[], None]]]:
        """What can happen next, with weights."""
        if self.messages:
            yield 4.0 + len(self.messages), self.deliver
        for worker in self.workers.values():
            if not worker.is_alive:
                continue
            if worker.is_stopped:
                yield 0.3, lambda w=worker: setattr(w, "is_stopped", False)
                continue
            yield 1.0, lambda w=worker: self.poll(w)
            if worker.state.phase is RankPhase.RUNNING:
                yield 3.0, lambda w=worker: self.contribute(w)
                if self.can_finish(worker):
                    yield 3.0, lambda w=worker: self.finish(w)
                if self.is_round_broken(worker):
                    yield 1.0, lambda w=worker: self.notice_break(w)
            if worker.source:
                yield 3.0, lambda w=worker: self.follow_step(w)
                if faults:
                    yield 0.05, lambda w=worker: self.end_following(w)
                if not worker.stream and self.has_source_ended(worker):
                    yield 3.0, lambda w=worker: self.end_following(w)
            elif worker.state.phase is RankPhase.FOLLOWING:
                yield 0.1, lambda w=worker: self.end_following(w)
                for source in self.sources_for(worker):
                    yield 1.0, lambda w=worker, s=source: self.begin_following(w, s)
            if faults:
                yield 0.03, lambda w=worker: self.kill(w)
                yield 0.03, lambda w=worker: self.stop(w)
                yield 0.03, lambda w=worker: self.tell_to_leave(w)
            if worker.is_leaving:
                # It exits as soon as it is outside, or when its grace period ends.
                yield (1.0 if worker.state.is_outside else 0.05), lambda w=worker: self.kill(w)
        alive = sum(worker.is_alive for worker in self.workers.values())
        if alive < 4 or (faults and alive < 6):
            yield (0.1 if alive >= self.members_min else 1.0), self.start_worker
        if faults:
            yield 0.05, self.start_master
        if self.rounds.phase is RoundPhase.RUNNING:
            yield 0.1, self.take_checkpoint

    def sources_for(self, worker: SimulatedRank) -> list[SimulatedRank]:
        """Members of the running round that a worker outside may follow."""
        members = (self._reachable(uid) for uid in self.rounds.members)
        return [x for x in members if x and x.state.round == worker.state.round and x.state.phase is RankPhase.RUNNING]

    def step(self, *, faults: bool) -> None:
        """Let one thing happen, and check what must hold after each."""
        actions = list(self.actions(faults=faults))
        (chosen,) = self.random.choices([action for _, action in actions], [weight for weight, _ in actions])
        chosen()
        self.check()

    def run(self, faulty_steps: int, limit: int = 20_000) -> None:
        """Steps with faults, then without any until all records are done."""
        for _ in range(faulty_steps):
            self.step(faults=True)
        for _ in range(limit):
            if self.ledger.is_finished:
                return
            self.step(faults=False)
        raise AssertionError(f"not finished: {self.rounds} {[w.state for w in self.workers.values() if w.is_alive]}")

    # ------------------------------------------------------------------------------------------ invariants

    def records(self, history: list[StepShares]) -> list[Record]:
        """Every record that was applied, in order."""
        records = []
        for shares in history:
            for share in shares:
                start, _ = self.lease_ranges[share.lease]
                records += [(0, start + record) for record in range(share.start, share.end)]
        return records

    def check(self) -> None:
        """What must hold at every moment; see the invariants in docs/design/0010-allreduce.md."""
        committed = self.rounds.committed_step
        assert self.skipped == sum(record % 3 == 0 for _, record in self.done), (
            "a corrupt record was not counted exactly once"
        )
        running = [
            worker
            for worker in self.workers.values()
            if worker.is_alive and worker.state.phase is RankPhase.RUNNING and worker.state.round == self.rounds.round
        ]
        for worker in running:
            assert worker.state.step == len(worker.history)
            # Few actions change what is compared here, which is most of the time of a simulation.
            compared = (list(worker.history), committed, self.done)
            if self._compared.get(worker.uid) == compared:
                continue
            self._compared[worker.uid] = compared
            applied = self.records(worker.history)
            assert len(applied) == len(set(applied)), f"{worker.uid} applied a record twice"
            assert committed <= len(worker.history), f"{worker.uid} lacks a step that is done"
            assert set(self.records(worker.history[:committed])) == self.done, "the ledger is not the state"
        for worker in self.workers.values():
            assert not worker.source or worker.state.step == len(worker.history)
        steps = {len(worker.history) for worker in running}
        assert not steps or max(steps) - min(steps) <= 1, f"ranks are further apart than one step: {steps}"
