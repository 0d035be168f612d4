"""Rounds of the AllReduce strategy: which workers are in the world, and which steps count.

The master alone decides the *world*; its announcement of a round is what torchelastic calls a
rendezvous. Between two changes of the world lies a *round*: a number that is never used again, and
members with dense ranks. docs/design/0010-allreduce.md describes the protocol
and its invariants; ``edl.core.rank_state`` is the side of a worker.

A round goes through three phases:

* ``CONFIRMING``: it is announced. Members that lack the state of its first step fetch it, and each
  confirms the step and a digest of its state.
* ``RUNNING``: every member has confirmed. Steps are entered in the ledger as they become *stable*.
* ``CLOSING``: a member was lost, or the world is to change at a step's boundary. Survivors report the
  newest step that they applied; the furthest one counts, and the next round starts from it.

What the survivors of a round report is provisional: it enters the ledger only when all members of
the next round have confirmed it. If the last holder of a step dies before, that step was never made.

Like the rest of the core, this module reads no clock and does nothing: it returns commands and
journal entries. ``apply_*`` methods change what the journal brings back, live and in replay alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from edl.api.round_id import RoundId
from edl.core.state_agreement import count_digest_steps

NO_ROUND = RoundId(0, 0)
MAX_NUMBER = 2**62 - 1
"""The largest number in a message."""


class Share(NamedTuple):
    """The records that one rank puts into one step: ``start .. end - 1``, counted within a lease.

    Attributes:
        skipped: the corrupt records among the first ``end`` ones of the lease, which were skipped.
    """

    lease: int
    start: int
    end: int
    skipped: int = 0

    @property
    def is_possible(self) -> bool:
        """Whether there can be such a share: what another process says may be anything."""
        return (
            0 <= self.lease <= MAX_NUMBER and 0 <= self.start < self.end <= MAX_NUMBER and 0 <= self.skipped <= self.end
        )


StepShares: TypeAlias = tuple[Share, ...]
"""The shares of all ranks in one step. A rank without records puts in none."""


@dataclass(frozen=True, slots=True)
class MemberReport:
    """The state of a worker when its round has ended, or when it is ready to join.

    Attributes:
        state_round: the newest round whose first state it had; it is copied together with a state.
        step: newest step that is applied in its state; None: it has no state of this run.
        digest: digest of all variables at that step.
        after: the newest step that a master has acknowledged, as far as the worker knows.
        done: the records of the steps after it up to ``step``: by lease, how many are done from its start.
        skipped: by lease, how many of these are corrupt and were skipped; without leases that have none.
        skipped_steps: those of these steps that changed nothing (``train.on_nan``).
    """

    state_round: RoundId = NO_ROUND
    step: int | None = None
    digest: int = 0
    after: int = 0
    done: Mapping[int, int] = field(default_factory=dict)
    skipped: Mapping[int, int] = field(default_factory=dict)
    skipped_steps: tuple[int, ...] = ()


class RoundPhase(Enum):
    """Where the newest round is; see the module."""

    CONFIRMING = "confirming"
    RUNNING = "running"
    CLOSING = "closing"


# --------------------------------------------------------------------------------------------------
# Commands and journal entries.


@dataclass(frozen=True, slots=True)
class CloseRound:
    """Tell these workers that the round is over: they stop what they are reducing, and report.

    A worker that has not heard of the round yet reports as well: it has done nothing since the one before.

    Attributes:
        warning: what users must hear of; empty if nothing.
    """

    round: RoundId
    workers: tuple[str, ...]
    warning: str = ""


@dataclass(frozen=True, slots=True)
class ChangeAtBoundary:
    """Tell the members to leave the round together, after the same step, and to report then.

    It is enough that one of them hears of it: the next reduction carries it to all.
    """

    round: RoundId
    reason: str


@dataclass(frozen=True, slots=True)
class RoundAnnounced:
    """A new round: entered in the journal before any worker learns of it.

    Attributes:
        members: uids, by rank.
        step: the step from which the round starts.
        holders: members that have its state; the others fetch it from them. Empty: the state is that of
            the newest checkpoint, or the initial one of rank 0 if ``step`` is 0.
        reason: why the world changed, for users.
        joined: members that were not in the round before: they know of no lease that they may have had.
        left: members of the round before that were told to leave, and are in this one no more: they have reported
            their state, so they computed nothing in vain.
    """

    round: RoundId
    members: tuple[str, ...]
    step: int
    holders: tuple[str, ...]
    reason: str
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundStarted:
    """All members have the state of ``step``: training continues, and the steps up to there are done.

    Attributes:
        done: by lease, the done records of the steps that were not entered before.
        difference: why the members may round differently; empty if all compute the same bits.
        skipped: by lease, the corrupt ones among these records.
        updates_skipped: how many of the steps changed nothing (``train.on_nan``).
    """

    round: RoundId
    step: int
    done: Mapping[int, int]
    difference: str = ""
    skipped: Mapping[int, int] = field(default_factory=dict)
    updates_skipped: int = 0


@dataclass(frozen=True, slots=True)
class StepsCommitted:
    """Every member has applied the steps up to ``step``; the other attributes are as in ``RoundStarted``."""

    step: int
    done: Mapping[int, int]
    skipped: Mapping[int, int] = field(default_factory=dict)
    updates_skipped: int = 0


@dataclass(frozen=True, slots=True)
class StateDiverged:
    """Two members have different states of one step: the job must stop.

    Attributes:
        workers: one worker with each of the two states.
    """

    step: int
    workers: tuple[str, str]


_SHORTAGE = "workers are ready"
_BROKEN_CONNECTION = "a connection between members broke"
FAILED_ROUNDS_LIMIT = 3
"""After so many rounds in succession that ended before their first step, users hear of it."""

RoundCommand: TypeAlias = CloseRound | ChangeAtBoundary | RoundAnnounced | RoundStarted | StepsCommitted | StateDiverged


# --------------------------------------------------------------------------------------------------
# The rounds.


def group_by_node(members: Sequence[str], node_of: Callable[[str], str]) -> tuple[str, ...]:
    """The members with those of one node side by side, so that the ring crosses the network once for each node.

    The nodes stand in the order of their first members, so the first member stays the first: rank 0 reports the
    steps and writes checkpoints.
    """
    nodes = {worker: node_of(worker) for worker in members}
    positions: dict[str, int] = {}
    for node in nodes.values():
        positions.setdefault(node, len(positions))
    return tuple(sorted(members, key=lambda worker: positions[nodes[worker]]))


@dataclass(slots=True)
class WorldRounds:
    """The rounds of one job, as its master sees them.

    Attributes:
        incarnation: incarnation of the present master.
        members_min: a round has at least so many members (``workers.min``).
        checkpoint_step: step of the newest checkpoint; training restarts there when no worker has a state.
        round: the newest round. In the journal, like the next nine.
        started_round: the newest round that all its members confirmed.
        valid_from: states of older rounds do not count any more.
        members: members of the newest round, by rank.
        base_step: the step from which that round started.
        holders: members that had the state of that step when the round was announced.
        joined: members that joined since the last round that started.
        committed_step: all steps up to it are done in the ledger.
        restore_cut: the checkpoint with which a round without holders starts; 0: the initial state.
        is_closing: whether the newest round is over. Not in the journal: a new master finds out.
        reports: reports of the closed round's members and of workers that join the next round.
        confirmed: digests of the members that have the state of ``base_step``.
        candidates: workers outside the round that are ready to join, with their index.
        joining: candidates for whose reports a planned change waits.
        leaving: members that were told to leave.
        released: of these, members that may have ended: others had reported their state, and stayed.
        lost: members that are gone.
        left_at_boundary: workers that left since the last round that started, after they had reported their state. In
            the journal.
        pending_change: why the world is to change at the next boundary; empty if it is not.
        is_planned: whether the newest round was closed for such a change, as far as the master knows.
        waiting_reason: why no round runs, for users; empty if one does.
        change_reason: why the newest round was announced.
        saves_last: whether the last worker that has the newest state saves it before it leaves.
        node_of: returns the node of a worker; empty if it is unknown, or if all run on one machine.
        difference: why the members of the newest round that started may round differently; in the journal.
        states_taken: how often all members took one member's state, because they do; in the journal.
        failed_rounds: rounds in succession that ended before they ran, because a connection broke.
    """

    incarnation: int = 1
    members_min: int = 1
    checkpoint_step: int = 0
    round: RoundId = NO_ROUND
    started_round: RoundId = NO_ROUND
    valid_from: RoundId = NO_ROUND
    members: tuple[str, ...] = ()
    base_step: int = 0
    holders: tuple[str, ...] = ()
    joined: frozenset[str] = frozenset()
    committed_step: int = 0
    restore_cut: int = 0
    is_closing: bool = True
    reports: dict[str, MemberReport] = field(default_factory=dict)
    confirmed: dict[str, int] = field(default_factory=dict)
    candidates: dict[str, int] = field(default_factory=dict)
    joining: set[str] = field(default_factory=set)
    leaving: set[str] = field(default_factory=set)
    released: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    left_at_boundary: set[str] = field(default_factory=set)
    pending_change: str = ""
    is_planned: bool = False
    waiting_reason: str = "no worker is ready yet"
    change_reason: str = ""
    saves_last: bool = False
    node_of: Callable[[str], str] = field(default=lambda worker: "", repr=False, compare=False)
    difference: str = ""
    states_taken: int = 0
    failed_rounds: int = 0

    @property
    def phase(self) -> RoundPhase:
        """Where the newest round is."""
        if self.is_closing:
            return RoundPhase.CLOSING
        return RoundPhase.RUNNING if self.started_round == self.round else RoundPhase.CONFIRMING

    def counts_as_member(self, worker: str) -> bool:
        """Whether a worker belongs to the newest round; one that leaves does not when nobody needs its state.

        It waits until all survivors have reported: if all of them leave, one has to save the state.
        """
        if worker not in self.members or worker in self.lost:
            return False
        if not self.is_closing or worker not in self.leaving or worker not in self.reports:
            return True
        survivors = [each for each in self.members if each not in self.lost]
        if any(each not in self.leaving or each not in self.reports for each in survivors):
            return worker not in self.released
        return worker == self.last_holder()

    def last_holder(self) -> str | None:
        """The worker that has to save the newest state, because all that have one leave and nobody takes it over.

        None: somebody stays, a survivor has not reported yet, or a checkpoint has the state.
        """
        survivors = [worker for worker in self.members if worker not in self.lost]
        if not (self.saves_last and self.is_closing) or any(
            w not in self.leaving or w not in self.reports for w in survivors
        ):
            return None
        # One that was released may have ended already, which the cluster reports later.
        step, holders = self._furthest_step([worker for worker in survivors if worker not in self.released])
        return holders[0] if holders and step > self.checkpoint_step else None

    def trains(self, worker: str) -> bool:
        """Whether a worker is a member of the running round."""
        return self.phase is RoundPhase.RUNNING and worker in self.members and worker not in self.lost

    def awaited_workers(self) -> list[str]:
        """The workers without which nothing goes on: the members, and at its end those for whose sake a round ended."""
        survivors = [worker for worker in self.members if worker not in self.lost]
        return [*survivors, *sorted(self.joining.intersection(self.candidates))] if self.is_closing else survivors

    def keeps_leases(self, worker: str) -> bool:
        """Whether a worker of the newest round still has the leases that it had in the round before."""
        return worker in self.members and worker not in self.joined

    # ---------------------------------------------------------------------------------------- events

    def handle_restart(self) -> list[RoundCommand]:
        """A new master has replayed the journal.

        A round that runs goes on: its members need no master between two steps. One that was announced
        and not confirmed is closed, because nobody knows which members have heard of it.
        """
        if self.round == self.started_round and self.round != NO_ROUND:
            self.is_closing = False
            return []
        return self._close("the master was replaced")

    def handle_candidate(self, worker: str, index: int, round_id: RoundId, report: MemberReport) -> list[RoundCommand]:
        """A worker that joins: it is built and outside the round, and its report says which state it has.

        It enters the next round that is announced (``_announce_if_complete``).

        Args:
            round_id: the newest round that it knows of. A member that was told that it is outside (it was
                stopped for a while, and the master that counted it as lost was replaced) names the round of
                which it is a member; what it said before it joined names an older one.
        """
        if worker in self.members and worker not in self.lost:
            return self.handle_report(worker, round_id, report)
        self.candidates[worker] = index
        if self.is_closing:
            # What it sent before it learned of the newest round may be late: it may have given up that
            # state since. The answer to it names the round, and it reports again.
            if round_id == self.round:
                self.reports[worker] = report
            return self._announce_if_complete()
        # A change that is under way takes it in at the next boundary, with all that come meanwhile.
        return self._request_change(f"{worker} joins")

    def handle_follower(self, worker: str, index: int, round_id: RoundId, *, is_caught_up: bool) -> list[RoundCommand]:
        """A worker outside the round gets every step of it from a member, and asks to join when it has caught up.

        What state it has counts only when it reports as a candidate: when no further step comes.

        Args:
            round_id: the round that it follows. If that is not the newest one, its request is ignored: it follows the
                newest one next, or joins without.
        """
        if not is_caught_up:
            self.candidates.pop(worker, None)
            self.reports.pop(worker, None)
            return self._announce_if_complete() if self.is_closing else []
        if round_id != self.round:
            return []
        self.candidates[worker] = index
        return [] if self.is_closing else self._request_change(f"{worker} joins")

    def announce_if_possible(self) -> list[RoundCommand]:
        """Announce the next round if nothing is missing any more, after a change of ``members_min``."""
        return self._announce_if_complete() if self.is_closing else []

    def handle_leaving(self, worker: str) -> list[RoundCommand]:
        """A worker was told to leave. A member does so at a boundary, so that nothing is computed in vain."""
        if worker not in self.members:
            self.candidates.pop(worker, None)
            self.reports.pop(worker, None)
            return []
        self.leaving.add(worker)
        return self._announce_if_complete() if self.is_closing else self._request_change(f"{worker} leaves")

    def handle_lost(self, worker: str, reason: str) -> list[RoundCommand]:
        """A worker is gone: the cluster says so, or nobody hears from it."""
        self.candidates.pop(worker, None)
        self.reports.pop(worker, None)
        if worker in self.members:
            is_known = worker in self.lost
            self.lost.add(worker)
            # After a loss the survivors wait for nobody who may be slow or dead.
            self.joining.clear()
            if not is_known:
                cause = f"{worker} was lost: {reason}"
                if not self.is_closing:
                    self.pending_change = ""
                    return self._close(cause)
                if self.is_planned or self.waiting_reason == _BROKEN_CONNECTION:
                    # Its neighbours were faster than the cluster, and could not say why. While a change was
                    # pending, their reports looked like those at its boundary.
                    self.is_planned, self.waiting_reason, self.failed_rounds = False, cause, 0
        return self._announce_if_complete() if self.is_closing else []

    def handle_report(self, worker: str, round_id: RoundId, report: MemberReport) -> list[RoundCommand]:
        """A member says that its round has ended: at a boundary, by a broken connection, or as it was told.

        Args:
            round_id: reports about any round but the newest are ignored; their senders join anew.
        """
        if round_id != self.round or worker not in self.members or worker in self.lost:
            return []
        commands = []
        if not self.is_closing:
            has_started = self.phase is RoundPhase.RUNNING
            self.failed_rounds = 0 if has_started else self.failed_rounds + 1
            commands = self._close(self.pending_change or _BROKEN_CONNECTION)
        self.reports[worker] = report
        return commands + self._announce_if_complete()

    def handle_confirmed(self, worker: str, round_id: RoundId, digest: int, difference: str = "") -> list[RoundCommand]:
        """A member has the state of the step from which its round starts.

        Args:
            difference: why the members may round differently. All say the same.
        """
        if round_id != self.round or self.phase is not RoundPhase.CONFIRMING or worker not in self.members:
            return []
        for other, known in self.confirmed.items():
            if known != digest:
                return [StateDiverged(self.base_step, (other, worker))]
        self.confirmed[worker] = digest
        if len(self.confirmed) < len(self.members):
            return []
        report = self._report_of_base()
        skipped = self._count_new_steps(report.skipped_steps, self.base_step)
        return [RoundStarted(self.round, self.base_step, report.done, difference, report.skipped, skipped)]

    def _count_new_steps(self, steps: tuple[int, ...], until: int) -> int:
        """How many of these steps are not committed yet and will be with ``until``."""
        return len({step for step in steps if self.committed_step < step <= until})

    def _report_of_base(self) -> MemberReport:
        """A report with the records of the steps after the committed one up to ``base_step``."""
        if self.base_step <= self.committed_step:
            return MemberReport()
        # Only of a state that counts: a worker that was outside may report another version of a step.
        return next(self.reports[worker] for worker in self.reports if self._believed_step(worker) == self.base_step)

    def handle_stable(
        self,
        round_id: RoundId,
        step: int,
        done: Mapping[int, int],
        skipped: Mapping[int, int] | None = None,
        skipped_steps: tuple[int, ...] = (),
    ) -> list[RoundCommand]:
        """Steps that every member has applied; any member may report them.

        Args:
            step: the newest stable step: one whose successor's reduction the sender has finished. Every member
                put a gradient into that reduction, so every member had applied this step.
            done: by lease, the done records of the steps up to ``step`` that no master has acknowledged.
            skipped: by lease, the corrupt ones among these records.
            skipped_steps: steps that changed nothing (``train.on_nan``).
        """
        if round_id != self.round or self.phase is not RoundPhase.RUNNING or step <= self.committed_step:
            return []
        return [StepsCommitted(step, done, skipped or {}, self._count_new_steps(skipped_steps, step))]

    # --------------------------------------------------------------------------------------- decisions

    def _request_change(self, reason: str) -> list[RoundCommand]:
        # A change that is pending takes in whatever happens before its boundary, so a second one adds nothing.
        if self.phase is not RoundPhase.RUNNING or self.pending_change:
            return []
        self.pending_change = reason
        return [ChangeAtBoundary(self.round, reason)]

    def _close(self, reason: str) -> list[RoundCommand]:
        """Close the newest round. Which step is the furthest is known when all survivors have reported."""
        # At a planned boundary the next round waits for the joiners' reports; after a loss it waits for survivors only.
        self.is_planned = bool(self.pending_change)
        self.joining = set(self.candidates) if self.is_planned else set()
        self.is_closing, self.pending_change = True, ""
        self.reports.clear()
        self.released.clear()
        self.confirmed.clear()
        self.waiting_reason = reason
        survivors = [worker for worker in self.members if worker not in self.lost]
        warning = self._failure_text() if self.failed_rounds == FAILED_ROUNDS_LIMIT else ""
        return [CloseRound(self.round, (*survivors, *self.candidates), warning), *self._announce_if_complete()]

    def _failure_text(self) -> str:
        return (
            f"{self.failed_rounds} rounds in succession ended before their first step: workers cannot connect to each "
            "other; their logs name the neighbour"
        )

    def _announce_if_complete(self) -> list[RoundCommand]:
        """Decide the members of the next round, survivors and joiners, and announce it.

        Not before every survivor has reported and there are enough members. Until then survivors keep their
        state and wait, so what they reported stays true.
        """
        survivors = [worker for worker in self.members if worker not in self.lost]
        if any(worker not in self.reports for worker in self.awaited_workers()):
            return []
        # Workers that leave are let go once one that stays has their state; otherwise theirs may be the only one.
        staying = [worker for worker in survivors if worker not in self.leaving]
        kept_step, keepers = self._furthest_step(staying)
        if keepers:
            leaving = self.leaving.intersection(survivors)
            self.released.update(worker for worker in leaving if (self._believed_step(worker) or 0) <= kept_step)
        joining = [worker for worker, _ in sorted(self.candidates.items(), key=lambda item: item[::-1])]
        # Their order assigns the ranks: those that stay keep their order and close the gaps, new ones come last. Then
        # each node's members move to its first one.
        members = (*staying, *(worker for worker in joining if worker in self.reports))
        if len(members) < max(1, self.members_min):
            self.waiting_reason = self._shortage(len(members))
            return []
        step, holders = self._furthest_step(members)
        # One that was released may have ended, which the cluster reports later.
        present = [worker for worker in survivors if worker not in self.released]
        newest, newest_holders = self._furthest_step(present)
        if not newest_holders:
            newest, newest_holders = self._furthest_step(survivors)
        if newest_holders and (newest > step or not holders):
            # A worker that leaves has the newest state. It stays for one more round, to pass the state on.
            step, holders = newest, newest_holders[:1]
            members = (*holders, *members)
        members = group_by_node(members, self.node_of)
        # The incarnation keeps numbers unique although an announcement that a master did not journal is lost with it.
        number = RoundId(self.incarnation, self.round.number + 1)
        joined = tuple(worker for worker in members if worker in self.candidates)
        reason = self.waiting_reason
        if not self.members:
            reason = "the first workers are ready"
        elif reason.endswith(_SHORTAGE):
            reason = self._shortage(len(members))  # enough have come since
        # One that was released may have ended meanwhile.
        gone = self.lost - self.released
        left = tuple(worker for worker in self.members if worker not in members and worker not in gone)
        return [RoundAnnounced(number, members, step, holders, reason, joined, left)]

    def _shortage(self, ready: int) -> str:
        return f"{ready} of at least {self.members_min} {_SHORTAGE}"

    def _furthest_step(self, members: Sequence[str]) -> tuple[int, tuple[str, ...]]:
        """The step to start from, and the members that have its state.

        A state that has a step has all steps before it, so the furthest one contains the others.
        """
        steps = {worker: step for worker in members if (step := self._believed_step(worker)) is not None}
        if not steps:
            return self.checkpoint_step, ()
        furthest = max(steps.values())
        return furthest, tuple(worker for worker, step in steps.items() if step == furthest)

    def _believed_step(self, worker: str) -> int | None:
        """The step of a worker's state, unless the state may contain a step that was never made.

        A worker that was outside of a round that started may have applied a step that this round did not
        start from. One that followed a round may lack steps that are in the ledger.
        """
        report = self.reports[worker]
        is_valid = report.state_round == self.valid_from or report.state_round.number > self.valid_from.number
        return report.step if is_valid and (report.step or 0) >= self.committed_step else None

    # ------------------------------------------------------------------------------- effects of entries

    def apply_announced(self, entry: RoundAnnounced) -> None:
        self.left_at_boundary.update(entry.left)
        self.round, self.members, self.base_step, self.holders = entry.round, entry.members, entry.step, entry.holders
        self.joined = (self.joined | set(entry.joined)) & set(entry.members)
        self.is_closing = False
        if not entry.holders:
            # Nobody had a state: training restarts from the checkpoint, or from the beginning. A worker
            # that comes back with a later state has steps that are leased again.
            self.committed_step, self.valid_from = entry.step, entry.round
        for worker in entry.members:
            self.candidates.pop(worker, None)
        self.leaving &= set(entry.members)
        self.released.clear()
        self.lost.clear()
        self.confirmed.clear()
        self.change_reason = entry.reason
        self.waiting_reason = "the members of a new round fetch its state"
        if self.failed_rounds >= FAILED_ROUNDS_LIMIT:
            self.waiting_reason = self._failure_text()

    def apply_started(self, entry: RoundStarted) -> None:
        """Apply that the newest round runs."""
        self.started_round = self.valid_from = entry.round
        self.committed_step = entry.step
        self.difference = entry.difference
        if entry.difference:
            self.states_taken += 1
        self.joined = frozenset()
        self.left_at_boundary.clear()
        self.candidates.clear()
        self.reports.clear()
        self.waiting_reason, self.failed_rounds = "", 0

    def apply_committed(self, entry: StepsCommitted) -> None:
        """Apply that steps are done."""
        if self.difference:
            self.states_taken += count_digest_steps(self.committed_step, entry.step)
        self.committed_step = entry.step

    def request_pending_leaves(self) -> list[RoundCommand]:
        """Call after ``apply_started``: workers that were told to leave too late for it do at the next boundary.

        A worker that became ready too late follows this round, and asks when it has caught up: it cannot join before,
        and a change for its sake would be one in which nothing changes.
        """
        leaving = next(iter(sorted(self.leaving)), None)
        return self._request_change(f"{leaving} leaves") if leaving is not None else []
