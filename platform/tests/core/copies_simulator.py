"""The simulation of the rounds with evaluations of copies: the real ``EvaluationCopies`` and ``OwnCopy``.

A copy is the list of steps that its variables have. Messages about copies are lost, repeated and late like all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from core.world_simulator import SimulatedRank, WorldSimulator

from edl.api.round_id import RoundId
from edl.core.evaluation_copies import CopyAction, CopyReport, EvaluationCopies, OwnCopy
from edl.core.rank_state import RankPhase
from edl.core.world_rounds import RoundAnnounced, RoundStarted, StepsCommitted, StepShares

EVERY = 3
TASKS = 4


class CopiesSimulator(WorldSimulator):
    """One run, in which a step is evaluated now and then.

    Args:
        seed: of everything.
        most: ``evaluation.max_workers``.
        more: of ``WorldSimulator``.
    """

    def __init__(self, seed: int, *, most: int = 2, **more: Any) -> None:
        self.most = most
        self.copies = EvaluationCopies()
        self.own: dict[str, OwnCopy] = {}
        self.copied: dict[str, list[StepShares]] = {}
        self.orders: dict[str, tuple[int, int, int]] = {}
        self.evaluated_step = 0
        self.last_evaluation = 0
        self.tasks_left = 0
        self.view_version = 0
        self.completed: list[int] = []
        self.given_up = 0
        super().__init__(seed, **more)

    def start_worker(self) -> None:
        super().start_worker()
        uid = f"w{len(self.workers) - 1}"
        self.own[uid], self.orders[uid] = OwnCopy(EVERY), (0, 0, 0)

    # --------------------------------------------------------------------------------------------- master

    def start_master(self) -> None:
        self.copies = EvaluationCopies()
        super().start_master()

    def _worker_handlers(self) -> tuple[Callable[..., None], ...]:
        return (*super()._worker_handlers(), self.worker_hears_order)

    def _apply_to_ledger(self, entry: RoundAnnounced | RoundStarted | StepsCommitted) -> None:
        super()._apply_to_ledger(entry)
        if isinstance(entry, RoundAnnounced) and not entry.holders:
            self.evaluated_step, self.last_evaluation = 0, entry.step

    def master_hears_copy(self, uid: str, round_id: RoundId, report: CopyReport) -> None:
        self.copies.record_report(self.rounds, uid, round_id, report)
        self.advance_evaluation()
        at_step = self.copies.at_step if uid in self.copies.evaluators else 0
        self.view_version += 1
        self.send(self.worker_hears_order, uid, self.view_version, at_step, self.evaluated_step)

    def advance_evaluation(self) -> None:
        copies, rounds = self.copies, self.rounds
        if self.evaluated_step:
            if copies.are_lost(rounds, self.evaluated_step):
                self.evaluated_step, self.given_up = 0, self.given_up + 1
            return
        self.evaluated_step, _ = copies.advance(rounds, self.last_evaluation, every=EVERY, most=self.most)
        if self.evaluated_step:
            self.last_evaluation, self.tasks_left = self.evaluated_step, TASKS

    def evaluate(self, worker: SimulatedRank) -> None:
        """A worker that has said that it has a copy gets a task; one that has it no more does nothing."""
        step = self.evaluated_step
        copied = self.find_copy(worker, step)
        if copied is None:
            return
        assert len(copied) == step, "a step is evaluated that is not the one of the task"
        assert self.rounds.committed_step >= step, "a step is evaluated that may be made anew"
        for member in self.running_members():
            assert member.history[:step] == copied, "a step is evaluated that is not the one of the others"
        self.tasks_left -= 1
        if not self.tasks_left:
            self.completed.append(step)
            self.evaluated_step = 0

    def find_copy(self, worker: SimulatedRank, step: int) -> list[StepShares] | None:
        """The worker's copy of this step; None: it has none any more."""
        return self.copied[worker.uid] if self.own[worker.uid].step == step else None

    def running_members(self) -> list[SimulatedRank]:
        """The members of the newest round that train."""
        living = (worker for worker in self.workers.values() if worker.is_alive)
        return [x for x in living if x.state.phase is RankPhase.RUNNING and x.state.round == self.rounds.round]

    # -------------------------------------------------------------------------------------------- workers

    def worker_hears_order(self, uid: str, version: int, copy_at: int, evaluated_step: int) -> None:
        if self._reachable(uid) is not None and version > self.orders[uid][0]:
            self.orders[uid] = (version, copy_at, evaluated_step)

    def worker_is_outside(self, uid: str, round_id: RoundId, may_follow: bool) -> None:
        was_outside = self.workers[uid].state.is_outside and round_id <= self.workers[uid].state.round
        super().worker_is_outside(uid, round_id, may_follow)
        if self._reachable(uid) is not None and not was_outside:
            self.drop_copy(uid)

    def drop_copy(self, uid: str) -> None:
        self.own[uid].drop()

    def worker_hears_announcement(self, uid: str, entry: RoundAnnounced) -> None:
        super().worker_hears_announcement(uid, entry)
        if self._reachable(uid) is not None and not entry.holders and entry.round == self.workers[uid].state.round:
            self.own[uid].drop()

    def contribute(self, worker: SimulatedRank) -> None:
        own, (_, copy_at, evaluated_step) = self.own[worker.uid], self.orders[worker.uid]
        assert worker.state.step is not None
        action = own.decide(copy_at, evaluated_step, worker.state.step)
        if action is CopyAction.TAKE:
            own.take(worker.state.step)
            self.copied[worker.uid] = list(worker.history)
        elif action is CopyAction.DROP:
            own.drop()
        super().contribute(worker)

    def say_copy(self, worker: SimulatedRank) -> None:
        """Each message says what copy the worker has."""
        self.send(self.master_hears_copy, worker.uid, worker.state.round, self.own[worker.uid].report)

    # ------------------------------------------------------------------------------------------ scheduling

    def actions(self, *, faults: bool) -> Iterator[tuple[float, Callable[[], None]]]:
        yield from super().actions(faults=faults)
        yield 0.5, self.advance_evaluation
        for worker in self.workers.values():
            if worker.is_alive and not worker.is_stopped:
                yield 1.0, lambda w=worker: self.say_copy(w)
                if faults and self.own[worker.uid].step:
                    yield 0.2, lambda w=worker: self.stop(w)
                if self.evaluated_step and self.copies.has_copy(self.rounds, worker.uid, self.evaluated_step):
                    yield 1.0, lambda w=worker: self.evaluate(w)

    def finish_evaluation(self, limit: int = 20_000) -> None:
        """Steps without faults until the evaluation in progress is complete or given up."""
        for _ in range(limit):
            if not self.evaluated_step:
                return
            self.step(faults=False)
        raise AssertionError(f"the evaluation of step {self.evaluated_step} waits: {self.copies}")
