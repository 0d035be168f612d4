"""Evaluations of copies under AllReduce: single decisions by name, the master's tasks, and random histories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from core.copies_simulator import CopiesSimulator
from support.all_reduce_master import AllReduceMaster
from support.examples import examples

from edl.api.round_id import RoundId
from edl.api.run_events import EvaluationStarted, WarningRaised
from edl.core.allreduce import describe_world
from edl.core.callback_decisions import EarlyStopping
from edl.core.evaluation_copies import NO_COPY, CopyAction, CopyReport, EvaluationCopies, OwnCopy
from edl.core.events import LeaseProgress, LeaseReply, ModelDeclared, ProgressReported, TaskReported, Tick
from edl.core.lease_timeouts import STUCK_FIRST
from edl.core.rank_state import RankPhase
from edl.core.world_rounds import Share, WorldRounds

SEEDS = examples(1_000)


# ------------------------------------------------------------------------------------------------ a worker's copy


def test_a_worker_copies_exactly_the_step_that_the_master_names() -> None:
    own = OwnCopy(every=10)
    assert [own.decide(20, 0, step) for step in (10, 19, 20)] == [CopyAction.NONE, CopyAction.NONE, CopyAction.TAKE]


def test_a_worker_that_hears_of_it_too_late_copies_the_next_multiple() -> None:
    own = OwnCopy(every=10)
    assert own.decide(20, 0, 23) is CopyAction.NONE
    assert own.decide(20, 0, 30) is CopyAction.TAKE


def test_a_worker_keeps_its_copy_until_its_evaluation_is_over() -> None:
    own = OwnCopy(every=10)
    own.take(20)
    assert own.decide(20, 0, 21) is CopyAction.NONE  # The master has not heard of the copy yet.
    assert own.decide(0, 20, 22) is CopyAction.NONE
    assert own.decide(30, 0, 23) is CopyAction.DROP
    own.drop()
    assert own.report == CopyReport(step=0, changes=2)
    own.drop()
    assert own.report == CopyReport(step=0, changes=2)


# ------------------------------------------------------------------------------------------------ the master's plan


def running(*members: str) -> WorldRounds:
    number = RoundId(1, 1)
    return WorldRounds(round=number, started_round=number, members=members, is_closing=False)


def test_rank_0_never_copies() -> None:
    copies = EvaluationCopies()
    assert copies.plan(running("a", "b", "c", "d"), 10, 2)
    assert (copies.at_step, copies.evaluators) == (10, ("b", "c"))
    assert not copies.plan(running("a", "b", "c", "d"), 10, 2)


def test_a_worker_that_leaves_is_replaced_and_the_others_stay() -> None:
    copies, rounds = EvaluationCopies(), running("a", "b", "c", "d")
    copies.plan(rounds, 10, 2)
    rounds.leaving.add("b")
    assert copies.plan(rounds, 20, 2)
    assert (copies.at_step, copies.evaluators) == (10, ("c", "d"))


def test_training_that_goes_back_moves_the_step_that_is_copied() -> None:
    copies, rounds = EvaluationCopies(), running("a", "b")
    copies.plan(rounds, 30, 1)
    copies.plan(rounds, 10, 1)
    assert copies.at_step == 10


def test_the_next_multiple_is_copied_and_its_evaluation_begins_with_the_ledger() -> None:
    copies, rounds = EvaluationCopies(), running("a", "b")
    rounds.committed_step = 11
    assert copies.advance(rounds, 0, every=10, most=1) == (0, True)
    assert (copies.at_step, copies.evaluators) == (20, ("b",))
    assert copies.advance(rounds, 0, every=10, most=1) == (0, False)
    copies.record_report(rounds, "b", rounds.round, CopyReport(20, 1))
    rounds.committed_step = 20
    assert copies.advance(rounds, 0, every=10, most=1) == (20, True)
    assert (copies.at_step, copies.evaluators) == (0, ())


def test_between_two_rounds_a_plan_stays_as_it_is() -> None:
    copies, rounds = EvaluationCopies(), running("a", "b")
    copies.plan(rounds, 20, 1)
    rounds.is_closing = True
    assert copies.advance(rounds, 0, every=10, most=1) == (0, False)
    assert copies.evaluators == ("b",)


def test_a_late_message_does_not_take_a_copy_away() -> None:
    copies, rounds = EvaluationCopies(), running("a", "b")
    copies.record_report(rounds, "b", rounds.round, CopyReport(10, 1))
    copies.record_report(rounds, "b", rounds.round, CopyReport(0, 0))
    assert copies.has_copy(rounds, "b", 10)
    copies.record_report(rounds, "b", rounds.round, CopyReport(0, 2))
    assert not copies.has_copy(rounds, "b", 10)


def test_copies_of_an_older_round_do_not_count() -> None:
    copies, rounds = EvaluationCopies(), running("a", "b")
    copies.record_report(rounds, "b", RoundId(1, 0), CopyReport(10, 1))
    assert copies.copied_step(rounds, 0) == 0
    assert not copies.are_lost(rounds, 10)


def test_a_step_is_evaluated_when_it_is_in_the_ledger() -> None:
    copies, rounds = EvaluationCopies(), running("a", "b")
    copies.record_report(rounds, "b", rounds.round, CopyReport(10, 1))
    assert copies.copied_step(rounds, 0) == 0
    rounds.committed_step = 10
    assert copies.copied_step(rounds, 0) == 10
    assert copies.copied_step(rounds, 10) == 0


def test_a_new_master_waits_until_all_members_have_said_what_they_have() -> None:
    copies, rounds = EvaluationCopies(), running("a", "b", "c")
    copies.record_report(rounds, "a", rounds.round, CopyReport())
    copies.record_report(rounds, "b", rounds.round, CopyReport())
    assert not copies.are_lost(rounds, 10)
    copies.record_report(rounds, "c", rounds.round, CopyReport())
    assert copies.are_lost(rounds, 10)


# ------------------------------------------------------------------------------------------------ the master's tasks


class EvaluatingMaster(AllReduceMaster):
    """A master whose first step is evaluated, by ``w1`` of two workers or more."""

    def __init__(self, *workers: str, **settings: Any) -> None:
        super().__init__(started=len(workers), workers_min=2, validation=32, evaluation_steps=1, **settings)
        self.start_round(*workers)
        self.training = self.lease("w0").lease

    def make_steps(self, step: int) -> Any:
        """Rank 0 reports that so many steps are stable."""
        shares = {number: (Share(self.training, 4 * number - 4, 4 * number),) for number in range(1, step + 1)}
        return self.report("w0", RankPhase.RUNNING, step=step, stable=step, shares=shares)

    def say_copy(self, worker: str, step: int, changes: int) -> Any:
        """A worker says which copy it has; returns its view."""
        return self.report(worker, RankPhase.RUNNING, evaluation_copy=CopyReport(step, changes))

    def begin(self) -> None:
        """``w1`` copies the first step, which is evaluated."""
        self.say_copy("w1", 1, 1)
        self.make_steps(1)

    def finish(self, worker: str, task: LeaseReply, result: Any) -> None:
        """A worker reports the result of a task."""
        self.handle(TaskReported(worker, task.lease, None, result))


STATES = {"loss": {"additive": True, "states": [[1.0]]}}


def test_a_copy_is_evaluated_while_training_goes_on() -> None:
    master = EvaluatingMaster("w0", "w1", "w2")
    views = {worker: master.report(worker, RankPhase.RUNNING) for worker in ("w0", "w1", "w2")}
    assert {worker: view.copy_at for worker, view in views.items()} == {"w0": 0, "w1": 1, "w2": 0}
    assert all(view.evaluate_at == 0 and not view.must_pause for view in views.values())
    master.say_copy("w1", 1, 1)
    assert master.state.evaluation is None
    view = master.make_steps(1)
    assert not view.must_pause
    assert view.evaluated_step == 1
    # Only the worker that has the copy gets tasks, and no training records meanwhile.
    assert master.lease("w2").kind == "training"
    first = master.lease("w1")
    tasks = [first, master.lease("w1", first.lease)]
    assert [(task.kind, task.step, task.of_copy) for task in tasks] == [("evaluation", 1, True)] * 2
    assert not isinstance(master.lease("w1", *(task.lease for task in tasks)), LeaseReply)
    master.make_steps(3)
    for task in tasks:
        master.finish("w1", task, STATES)
    metrics = master.lease("w1")
    assert (metrics.kind, metrics.step, metrics.of_copy) == ("metrics", 1, True)
    master.finish("w1", metrics, {"loss": 0.5})
    assert [event.step for event in master.events if isinstance(event, EvaluationStarted)] == [1]
    # What was due meanwhile is skipped.
    assert master.say_copy("w1", 1, 1).copy_at == 4
    assert master.lease("w1").kind == "training"


def test_a_world_of_one_pauses_and_says_so() -> None:
    master = AllReduceMaster(started=1, validation=32, evaluation_steps=1)
    master.start_round("w0")
    assert master.report("w0", RankPhase.RUNNING).evaluate_at == 1
    shares = {1: (Share(master.lease("w0").lease, 0, 4),)}
    view = master.report("w0", RankPhase.RUNNING, step=1, stable=1, shares=shares, is_paused=True)
    assert view.must_pause
    world = describe_world(master.state)
    assert world is not None
    assert world.evaluation == "training pauses for the evaluation of step 1: there is a single worker"


def test_a_world_of_one_does_not_pause_for_evaluations_that_nobody_asked_for() -> None:
    """Without ``train.evaluation_steps`` there is only the final evaluation; step 0 was evaluated without end."""
    master = AllReduceMaster(started=1, validation=32, evaluation_steps=None)
    master.start_round("w0")
    view = master.report("w0", RankPhase.RUNNING)
    assert (view.evaluate_at, view.must_pause) == (0, False)
    assert master.lease("w0").kind == "training"
    assert master.state.evaluation is None


def test_status_names_the_worker_that_evaluates() -> None:
    master = EvaluatingMaster("w0", "w1")
    master.begin()
    world = describe_world(master.state)
    assert world is not None
    assert world.evaluation == "worker-1 evaluates step 1 while the others train"


def test_all_pause_if_callbacks_decide_by_the_evaluation() -> None:
    master = AllReduceMaster(started=2, validation=32, evaluation_steps=1)
    for worker in master.workers:
        master.handle(ModelDeclared(worker, (EarlyStopping("loss", "min"),)))
    master.start_round("w0", "w1")
    view = master.report("w1", RankPhase.RUNNING)
    assert (view.evaluate_at, view.copy_at) == (1, 0)


def test_the_evaluation_is_given_up_when_no_copy_is_left_and_a_later_step_is_evaluated() -> None:
    master = EvaluatingMaster("w0", "w1", "w2")
    master.begin()
    assert master.lease("w1").kind == "evaluation"
    master.kill("w1")
    master.report("w0", RankPhase.ENDED, step=1, shares={1: (Share(master.training, 0, 4),)})
    master.report("w2", RankPhase.ENDED, step=1, shares={1: (Share(master.training, 0, 4),)})
    assert master.state.evaluation is not None
    for worker in ("w0", "w2"):
        master.report(worker, RankPhase.CONFIRMED)
    assert master.state.evaluation is None
    assert [event.message for event in master.events if isinstance(event, WarningRaised)] == [
        "the evaluation of step 1 was given up: no worker is left that has a copy of its variables"
    ]
    assert master.report("w2", RankPhase.RUNNING).copy_at == 2


def hang(master: EvaluatingMaster, task: LeaseReply, seconds: float, *copies: str) -> None:
    """Let time pass in which all are heard, these workers have a copy, and the first one makes no step of its task."""
    until = master.now + seconds
    while master.now < until:
        for worker in master.rounds.members:
            has_copy = CopyReport(1, 1) if worker in copies else NO_COPY
            master.report(worker, RankPhase.RUNNING, evaluation_copy=has_copy)
        master.handle(ProgressReported(copies[0], (LeaseProgress(task.lease, 0),)))
        master.handle(Tick(), after=min(3.0, max(0.01, until - master.now)))


def warnings(master: AllReduceMaster) -> list[str]:
    return [event.message for event in master.events if isinstance(event, WarningRaised)]


def test_a_worker_that_hangs_in_the_evaluation_of_its_copy_evaluates_no_more() -> None:
    """Its main thread goes on, so nobody waits for it; the tasks that it gets wait behind the one that hangs."""
    master = EvaluatingMaster("w0", "w1", "w2")
    master.begin()
    task = master.lease("w1")
    hang(master, task, STUCK_FIRST - 5, "w1")
    assert master.state.evaluation is not None
    hang(master, task, 10, "w1")
    assert master.state.evaluation is None
    assert warnings(master) == [
        "worker-1 hangs in the evaluation of step 1, no step for 601 s: it evaluates no more copies",
        "the evaluation of step 1 was given up: "
        "no worker is left that has a copy of its variables, but for one that hangs",
    ]
    views = {worker: master.report(worker, RankPhase.RUNNING) for worker in ("w0", "w1", "w2")}
    assert {worker: view.copy_at for worker, view in views.items()} == {"w0": 0, "w1": 0, "w2": 2}
    assert master.lease("w1").kind == "training"


def test_another_copy_takes_the_place_of_one_whose_evaluation_hangs() -> None:
    master = EvaluatingMaster("w0", "w1", "w2", evaluation_workers=2)
    master.say_copy("w1", 1, 1)
    master.say_copy("w2", 1, 1)
    master.make_steps(1)
    task = master.lease("w1")
    hang(master, task, STUCK_FIRST + 5, "w1", "w2")
    # It drops its copy, which adds records to the steps again.
    assert [master.say_copy(worker, 1, 1).evaluated_step for worker in ("w1", "w2")] == [0, 1]
    again = master.lease("w2")
    assert (again.kind, again.record_range) == ("evaluation", task.record_range)
    assert len(warnings(master)) == 1


def test_all_pause_for_the_next_evaluation_if_the_only_evaluator_hangs() -> None:
    master = EvaluatingMaster("w0", "w1")
    master.begin()
    hang(master, master.lease("w1"), STUCK_FIRST + 5, "w1")
    assert master.state.evaluation is None
    view = master.make_steps(2)
    assert view.evaluate_at == 2
    world = describe_world(master.state)
    assert world is not None
    assert world.evaluation == "training pauses for an evaluation: the worker that would evaluate a copy hangs"


def test_a_silent_worker_is_no_evaluator_that_hangs() -> None:
    master = EvaluatingMaster("w0", "w1", "w2")
    master.begin()
    assert master.lease("w1").kind == "evaluation"
    for _ in range(15):
        for worker in ("w0", "w2"):
            master.report(worker, RankPhase.RUNNING)
        master.handle(Tick(), after=3)
    assert not master.state.evaluation_copies.stuck


def test_a_new_master_goes_on_with_the_evaluation() -> None:
    master = EvaluatingMaster("w0", "w1")
    master.begin()
    first = master.lease("w1")
    master.finish("w1", first, STATES)
    master.restart()
    # It does not know yet who has a copy.
    training = master.lease("w1")
    assert training.kind == "training"
    assert master.report("w0", RankPhase.RUNNING).evaluated_step == 1
    assert master.say_copy("w1", 1, 1).evaluated_step == 1
    task = master.lease("w1", training.lease)
    assert (task.kind, task.step, task.of_copy) == ("evaluation", 1, True)
    assert task.record_range != first.record_range


def test_the_records_of_a_worker_without_its_copy_are_leased_again() -> None:
    master = EvaluatingMaster("w0", "w1", "w2", evaluation_workers=2)
    master.say_copy("w1", 1, 1)
    master.say_copy("w2", 1, 1)
    master.make_steps(1)
    lost = master.lease("w1")
    assert lost.kind == "evaluation"
    master.say_copy("w1", 0, 2)
    again = master.lease("w2")
    assert (again.kind, again.record_range) == ("evaluation", lost.record_range)
    assert master.lease("w1").kind == "training"


def test_a_worker_that_ends_while_it_evaluates_a_copy_accuses_no_training_records() -> None:
    master = EvaluatingMaster("w0", "w1", "w2")
    training = master.lease("w1")
    master.begin()
    assert training.kind == "training"
    assert master.lease("w1", training.lease).kind == "evaluation"
    master.kill("w1", exit_code=1)
    assert master.state.range_crashes
    assert not master.state.crash_suspects.suspect_ranges


def test_an_evaluation_of_a_copy_survives_the_compaction_of_the_journal() -> None:
    master = EvaluatingMaster("w0", "w1")
    master.begin()
    snapshot = master.state.to_snapshot()
    state = type(master.state)(master.settings)
    state.replay_journal(snapshot, [])
    assert state.evaluation is not None
    assert state.evaluation.of_copy


# ------------------------------------------------------------------------------------------------ random histories


def simulate(seeds: Iterable[int]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in seeds:
        simulator = CopiesSimulator(seed, members_min=1 + seed % 2, most=1 + seed % 2, records=60)
        simulator.run(300)
        simulator.finish_evaluation()
        counts["completed"] += len(simulator.completed)
        counts["given up"] += simulator.given_up
    return counts


@pytest.mark.examples
@pytest.mark.parametrize("block", range(2))
@pytest.mark.first_cases(1)
def test_only_steps_that_count_are_evaluated_whatever_dies(block: int) -> None:
    counts = simulate(range(block, SEEDS, 2))
    assert counts["completed"] > SEEDS // 4
    assert counts["given up"] > 0


def begin_early(self: EvaluationCopies, rounds: WorldRounds, after: int) -> int:
    steps = (self._step_of(rounds, worker) for worker in rounds.members)
    return min((step for step in steps if step > after), default=0)


@pytest.mark.examples
def test_the_simulation_notices_an_evaluation_of_a_step_that_is_not_in_the_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(EvaluationCopies, "copied_step", begin_early)
    with pytest.raises(AssertionError, match="a step is evaluated that may be made anew"):
        simulate(range(1_000))
