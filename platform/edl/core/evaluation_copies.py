"""Copies of the variables that ranks of AllReduce evaluate while the others train on: who copies, and who has a copy.

All ranks have the same variables after each step, so a copy of any rank is the state of that step. The rank that
copied it goes on in the ring without records of its own. docs/design/0010-allreduce.md describes the protocol;
``EvaluationCopies`` is the master's side, and ``OwnCopy`` that of a worker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from edl.api.round_id import RoundId
from edl.core.world_rounds import NO_ROUND, RoundPhase, WorldRounds


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What a worker says about its copy.

    Attributes:
        step: the step of the copy; 0: it has none.
        changes: how often the worker has made or dropped one. Messages may arrive in any order.
    """

    step: int = 0
    changes: int = 0


NO_COPY = CopyReport()


@dataclass(slots=True)
class EvaluationCopies:
    """Which members copy their state for the next evaluation, and which have a copy.

    Nothing of it is in the journal: workers repeat in each message what they have.

    Attributes:
        at_step: the evaluators copy after this step, or after the next multiple of ``train.evaluation_steps`` that
            they reach; 0: no evaluation is ahead.
        evaluators: uids of the members that copy.
        round: the round of ``reports``.
        reports: what each member has said in this round.
        stuck: workers whose evaluation made no progress for too long. Their copies count for nothing, and they make no
            others: a thread that hangs would keep all further tasks as well.
    """

    at_step: int = 0
    evaluators: tuple[str, ...] = ()
    round: RoundId = NO_ROUND
    reports: dict[str, CopyReport] = field(default_factory=dict)
    stuck: set[str] = field(default_factory=set)

    def record_report(self, rounds: WorldRounds, worker: str, round_id: RoundId, report: CopyReport) -> None:
        """A worker says what it has. Only members of the newest round count: another one may have other steps."""
        if self.round != rounds.round:
            # A member may have been outside in between, and it says again what it has.
            self.round = rounds.round
            self.reports.clear()
        if round_id != rounds.round or worker not in rounds.members or worker in rounds.lost:
            return
        known = self.reports.get(worker)
        if known is None or report.changes >= known.changes:
            self.reports[worker] = report

    def advance(self, rounds: WorldRounds, last_evaluation: int, *, every: int, most: int) -> tuple[int, bool]:
        """No evaluation runs, and the next one is of a copy: begin it, or choose who copies.

        Args:
            last_evaluation: the step of the newest evaluation.
            every: ``train.evaluation_steps``.
            most: ``evaluation.max_workers``.

        Returns:
            the step whose evaluation begins now, or 0; whether workers have to do something else than before.
        """
        step = self.copied_step(rounds, last_evaluation)
        if step:
            return step, self.clear_plan()
        if rounds.phase is RoundPhase.RUNNING:
            next_step = (max(last_evaluation, rounds.committed_step) // every + 1) * every
            return 0, self.plan(rounds, next_step, most)
        # The members of the next round are not known yet, and an evaluator may have copied.
        return 0, False

    def plan(self, rounds: WorldRounds, next_step: int, most: int) -> bool:
        """Choose the members that copy after ``next_step``; returns whether anything changed.

        Rank 0 trains: it reports the steps and writes the checkpoints. Of the others those with the lowest ranks are
        the longest in the world, and the newest worker is the first that goes when fewer are wanted.

        Args:
            most: ``evaluation.max_workers``.
        """
        usable = self.usable_members(rounds)
        # A step that an evaluator has copied already is not moved: its report may be on the way. Unless training went
        # back to a checkpoint.
        at_step = min(self.at_step or next_step, next_step)
        have = [w for w in usable if self._step_of(rounds, w) >= at_step]
        order = [*have, *(w for w in self.evaluators if w in usable), *usable]
        chosen = tuple(dict.fromkeys(order))[:most]
        has_changed = (self.at_step, self.evaluators) != (at_step, chosen)
        self.at_step, self.evaluators = at_step, chosen
        return has_changed

    def usable_members(self, rounds: WorldRounds) -> list[str]:
        """The members that may evaluate a copy while rank 0 trains."""
        gone = self.stuck | rounds.leaving | rounds.lost
        return [worker for worker in rounds.members[1:] if worker not in gone]

    def give_up(self, rounds: WorldRounds, worker: str, step: int) -> bool:
        """The evaluation of a worker's copy hangs; returns whether it has one of this step."""
        has_copy = self.has_copy(rounds, worker, step)
        if has_copy:
            self.stuck.add(worker)
        return has_copy

    def clear_plan(self) -> bool:
        """Nobody copies; returns whether somebody was to."""
        had_plan = bool(self.at_step)
        self.at_step, self.evaluators = 0, ()
        return had_plan

    def copied_step(self, rounds: WorldRounds, after: int) -> int:
        """The first step behind ``after`` of which a member has a copy and that is in the ledger; 0: there is none.

        The step cannot be made anew: whoever has the copy has applied it, and is in the round with all others.
        """
        if rounds.phase is not RoundPhase.RUNNING:
            return 0
        steps = (self._step_of(rounds, worker) for worker in rounds.members)
        return min((step for step in steps if after < step <= rounds.committed_step), default=0)

    def has_copy(self, rounds: WorldRounds, worker: str, step: int) -> bool:
        """Whether a member has said that it has a copy of this step."""
        return rounds.trains(worker) and self._step_of(rounds, worker) == step

    def holds_any(self, rounds: WorldRounds, worker: str) -> bool:
        """Whether a member of the newest round has said that it has a copy, of any step."""
        return self._step_of(rounds, worker) > 0

    def holders(self, rounds: WorldRounds, step: int) -> tuple[str, ...]:
        """The members of the running round that have a copy of this step, by rank."""
        return tuple(worker for worker in rounds.members if self.has_copy(rounds, worker, step))

    def lacks_copy(self, rounds: WorldRounds, worker: str, step: int) -> bool:
        """Whether a worker certainly has no copy of this step: it is no member, or it says so."""
        if rounds.phase is not RoundPhase.RUNNING:
            return False
        is_member = worker in rounds.members and worker not in rounds.lost
        return not is_member or (self._has_reported(rounds, worker) and self._step_of(rounds, worker) != step)

    def are_lost(self, rounds: WorldRounds, step: int) -> bool:
        """Whether no member has a copy of this step any more; a new master waits until all have said what they have."""
        return rounds.phase is RoundPhase.RUNNING and all(self.lacks_copy(rounds, w, step) for w in rounds.members)

    def _has_reported(self, rounds: WorldRounds, worker: str) -> bool:
        return self.round == rounds.round and worker in self.reports

    def _step_of(self, rounds: WorldRounds, worker: str) -> int:
        is_known = self._has_reported(rounds, worker) and worker not in self.stuck
        return self.reports[worker].step if is_known else 0


class CopyAction(Enum):
    """What a worker does about its copy between two steps."""

    NONE = "none"
    TAKE = "take"
    DROP = "drop"


@dataclass(slots=True)
class OwnCopy:
    """The copy of one worker.

    Attributes:
        every: ``train.evaluation_steps``.
        step: the step of the copy; 0: there is none.
        changes: see ``CopyReport``.
    """

    every: int
    step: int = 0
    changes: int = 0

    def decide(self, copy_at: int, evaluated_step: int, step: int) -> CopyAction:
        """What to do after a step.

        Args:
            copy_at: copy after this step or a later one; 0: this worker is no evaluator.
            evaluated_step: the step whose copies are being evaluated; 0: there is none.
            step: the newest step in the worker's variables.
        """
        if self.step and self.step != evaluated_step and not 0 < copy_at <= self.step:
            return CopyAction.DROP
        if not self.step and 0 < copy_at <= step and step % self.every == 0:
            return CopyAction.TAKE
        return CopyAction.NONE

    def take(self, step: int) -> None:
        """The variables of this step are copied."""
        self.step, self.changes = step, self.changes + 1

    def drop(self) -> None:
        """The copy is gone. A worker that leaves the world drops it: the others may make its steps anew."""
        if self.step:
            self.step, self.changes = 0, self.changes + 1

    @property
    def report(self) -> CopyReport:
        """What the worker says about it."""
        return CopyReport(self.step, self.changes)
