"""A worker of AllReduce whose main thread hangs: users learn who waits for whom, and it is replaced in the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from support.all_reduce_master import AllReduceMaster
from support.text_keys import missing_keys

from edl.api.run_events import WarningRaised
from edl.core.allreduce import describe_world
from edl.core.evaluation_copies import CopyReport
from edl.core.events import DeletePod, LeaseProgress, ProgressReported, StartPod, Tick
from edl.core.journal_application import end_job
from edl.core.lease_timeouts import STUCK_FIRST, STUCK_FLOOR
from edl.core.model_files import ModelFile
from edl.core.rank_state import RankPhase
from edl.core.stragglers import REPLACEMENT_SECONDS
from edl.core.world_rounds import RoundPhase, Share

WORKERS = ("w0", "w1", "w2")


def start(count: int = 3, *, training: int | None = None, **settings: Any) -> AllReduceMaster:
    """A job that makes a step in a hundredth of a second: its workers have made three.

    Args:
        training: so many workers have records; None: all.
    """
    master = AllReduceMaster(started=count, **settings)
    master.start_round(*master.workers)
    lease, *_ = [master.lease(worker).lease for worker in master.workers[:training]]
    for step in (1, 2, 3):
        for worker in master.workers:
            master.report(
                worker,
                RankPhase.RUNNING,
                step=step,
                stable=step - 1 if worker == "w0" else 0,
                shares={
                    each: (Share(lease, each - 1, each),) for each in range(master.rounds.committed_step + 1, step)
                },
                entered=step,
            )
    assert master.rounds.committed_step == 2
    return master


def pass_time(
    master: AllReduceMaster, entered: Mapping[str, int | None], seconds: float, *tasks: ProgressReported
) -> list[object]:
    """Let time pass in which these workers say how far they are, also with tasks; returns the commands about pods."""
    commands: list[object] = []
    until = master.now + seconds
    while master.now < until:
        for worker, number in entered.items():
            master.report(worker, RankPhase.RUNNING, step=3, stable=2, entered=number)
        for task in tasks:
            master.handle(task)
        commands += master.handle(Tick(), after=min(3.0, max(0.01, until - master.now)))
    return [each for each in commands if isinstance(each, DeletePod | StartPod)]


def awaited(master: AllReduceMaster) -> str:
    world = describe_world(master.state)
    assert world is not None
    return world.awaited


def warnings(master: AllReduceMaster) -> list[str]:
    return [each.message for each in master.events if isinstance(each, WarningRaised)]


def test_users_learn_which_worker_the_others_wait_for() -> None:
    master = start()
    assert pass_time(master, {"w0": 4, "w1": 4, "w2": 3}, STUCK_FLOOR - 2) == []
    assert awaited(master) == ""
    pass_time(master, {"w0": 4, "w1": 4, "w2": 3}, 17)
    assert awaited(master) == "worker-2 has not finished its part of step 4 for 75 s; 2 others wait for it"
    assert len(warnings(master)) == 1
    assert "worker-2 has not finished its part of step 4" in warnings(master)[0]
    # It was only a long step.
    pass_time(master, {"w0": 4, "w1": 4, "w2": 4}, 1)
    pass_time(master, {"w0": 5, "w1": 5, "w2": 5}, 30)
    assert awaited(master) == ""
    assert len(warnings(master)) == 1


def test_several_workers_are_named_together() -> None:
    master = start()
    pass_time(master, {"w0": 4, "w1": 3, "w2": 3}, 75)
    assert awaited(master) == (
        "worker-1, worker-2 have not finished their parts of step 4 for 75 s; 1 other waits for them"
    )


def test_nobody_is_to_blame_while_all_are_in_a_step_of_their_own() -> None:
    master = start()
    moved = pass_time(master, dict.fromkeys(WORKERS, 3), REPLACEMENT_SECONDS + 60)
    assert moved == []
    assert awaited(master).startswith("all 3 workers have been in their own step 4 for ")
    assert awaited(master).endswith(" s: none waits for another")
    assert len(warnings(master)) == 1


def test_the_only_worker_is_never_replaced() -> None:
    master = start(1)
    assert pass_time(master, {"w0": 3}, REPLACEMENT_SECONDS + 60) == []
    assert awaited(master).startswith("the only worker has been in step 4 for ")


def test_a_worker_for_which_the_others_wait_too_long_is_replaced() -> None:
    master = start()
    entered = {"w0": 4, "w1": 4, "w2": 3}
    assert pass_time(master, entered, REPLACEMENT_SECONDS - 2) == []
    deleted, started = pass_time(master, entered, 4)
    assert deleted == DeletePod("w2", master.settings.grace)
    assert isinstance(started, StartPod)
    assert started.index == 3
    assert not missing_keys(warnings(master)[-1], "worker-2", "kept the others waiting", "it is replaced")
    # The others do not wait until it is killed.
    assert master.rounds.phase is RoundPhase.CLOSING
    assert master.rounds.awaited_workers() == ["w0", "w1"]
    for worker in ("w0", "w1"):
        master.report(worker, RankPhase.ENDED, step=3)
    master.start_round("w0", "w1")
    assert master.rounds.members == ("w0", "w1")
    # Its threads go on until it is killed, and it ends by a signal that the master asked for.
    master.report("w2", RankPhase.RUNNING, step=3, entered=3)
    master.kill("w2")
    assert pass_time(master, {"w0": 0, "w1": 0}, 4) == []
    assert not master.state.has_ended


def test_no_worker_is_replaced_while_more_of_them_compute_than_wait() -> None:
    master = start()
    assert pass_time(master, {"w0": 4, "w1": 3, "w2": 3}, REPLACEMENT_SECONDS + 60) == []


def test_a_worker_without_records_does_not_wait() -> None:
    """It enters the next exchange at once, however long the step of the only worker with records is."""
    master = start(2, training=1)
    assert pass_time(master, {"w0": 3, "w1": 4}, 2 * REPLACEMENT_SECONDS) == []
    assert awaited(master).startswith("worker-0 has not finished its part of step 4")


def test_workers_without_records_are_not_counted_among_those_that_wait() -> None:
    """Two compute, and of the two that wait one has nothing to do: the step is probably long."""
    master = start(4, training=3)
    assert pass_time(master, {"w0": 3, "w1": 3, "w2": 4, "w3": 4}, 2 * REPLACEMENT_SECONDS) == []
    assert awaited(master).startswith("worker-0, worker-1 have not finished")


def test_a_worker_that_evaluates_a_copy_does_not_wait() -> None:
    master = start(2, workers_min=2, validation=32, evaluation_steps=100)
    master.report("w1", RankPhase.RUNNING, step=3, stable=2, entered=3, evaluation_copy=CopyReport(2, 1))
    assert pass_time(master, {"w0": 3, "w1": 4}, 2 * REPLACEMENT_SECONDS) == []
    assert awaited(master).startswith("worker-0 has not finished its part of step 4")


def replace_w2(master: AllReduceMaster) -> None:
    """``w2`` hangs and is replaced; the others start a round without it, behind step 3."""
    lease = master.state.worker_leases("w0")[0][1].number
    pass_time(master, {"w0": 4, "w1": 4, "w2": 3}, REPLACEMENT_SECONDS + 4)
    for worker in ("w0", "w1"):
        master.report(worker, RankPhase.ENDED, step=3, shares={3: (Share(lease, 2, 3),)})
    master.kill("w2")
    master.start_round("w0", "w1")
    assert master.rounds.committed_step == 3


@pytest.mark.parametrize(("makes_steps", "factor"), [(False, 2), (True, 1)])
def test_without_a_step_after_a_replacement_the_next_one_takes_twice_as_long(makes_steps: bool, factor: int) -> None:
    """Whatever takes longer than the limit may be done at the second time, and one that never ends costs few pods."""
    master = start()
    lease = master.state.worker_leases("w0")[0][1].number
    replace_w2(master)
    if makes_steps:
        master.report("w0", RankPhase.RUNNING, step=4, stable=4, shares={4: (Share(lease, 3, 4),)}, entered=1)
        assert master.rounds.committed_step == 4
    deletion = DeletePod("w1", master.settings.grace)
    assert deletion not in pass_time(master, {"w0": 2, "w1": 1}, factor * REPLACEMENT_SECONDS - 10)
    assert deletion in pass_time(master, {"w0": 2, "w1": 1}, 20)


def test_the_first_step_of_a_round_says_nothing_of_the_next_ones() -> None:
    """Workers may trace their models in it."""
    master = start()
    lease = master.state.worker_leases("w0")[0][1].number
    master.kill("w2")
    for worker in ("w0", "w1"):
        master.report(worker, RankPhase.ENDED, step=3, shares={3: (Share(lease, 2, 3),)})
    master.start_round("w0", "w1")
    timeouts = master.state.step_arrivals.step_timeouts
    for step, longest in ((4, 1), (5, 100)):
        pass_time(master, {"w0": step - 4, "w1": step - 4}, 90)
        shares = {each: (Share(lease, each - 1, each),) for each in range(4, step + 1)}
        master.report("w0", RankPhase.RUNNING, step=step, stable=step, shares=shares)
        assert master.rounds.committed_step == step
        assert longest / 2 < max(1, timeouts.max_step) <= longest


def test_a_step_of_their_own_begins_when_the_last_one_has_entered_it() -> None:
    master = start()
    pass_time(master, {"w0": 4, "w1": 4, "w2": 3}, 50)
    pass_time(master, dict.fromkeys(WORKERS, 4), 51)
    assert awaited(master) == ""
    pass_time(master, dict.fromkeys(WORKERS, 4), 15)
    assert awaited(master).startswith("all 3 workers have been in their own step 4 for 6")


def test_nobody_waits_in_a_job_that_has_ended() -> None:
    master = start()
    pass_time(master, {"w0": 4, "w1": 4, "w2": 3}, 75)
    assert awaited(master)
    end_job(master.state, "Failed", "its data is damaged")
    assert awaited(master) == ""


def test_a_program_may_take_its_time_between_two_steps() -> None:
    master = start(has_parameters=False)
    assert pass_time(master, {"w0": 4, "w1": 4, "w2": 3}, REPLACEMENT_SECONDS + 60) == []
    assert awaited(master).startswith("worker-2 has not finished its part of step 4")


def test_before_a_step_was_measured_steps_may_be_long() -> None:
    master = AllReduceMaster()
    master.start_round(*WORKERS)
    pass_time(master, {"w0": 1, "w1": 1, "w2": 0}, STUCK_FIRST - 5)
    assert awaited(master) == ""


def test_a_worker_that_does_not_say_how_far_it_is_is_not_judged() -> None:
    master = start()
    master.restart()
    assert pass_time(master, {"w0": 4, "w1": 4, "w2": None}, REPLACEMENT_SECONDS + 60) == []
    assert awaited(master) == ""


def test_a_new_master_counts_from_its_start() -> None:
    master = start()
    entered = {"w0": 4, "w1": 4, "w2": 3}
    pass_time(master, entered, REPLACEMENT_SECONDS - 10)
    master.restart()
    assert pass_time(master, entered, REPLACEMENT_SECONDS - 10) == []
    assert DeletePod("w2", master.settings.grace) in pass_time(master, entered, 20)


def test_time_in_which_the_master_was_stopped_does_not_count() -> None:
    master = start()
    entered = {"w0": 4, "w1": 4, "w2": 3}
    pass_time(master, entered, 30)
    master.handle(Tick(late_seconds=1000), after=1000)
    assert pass_time(master, entered, 20) == []
    assert awaited(master) == ""


def test_nobody_is_replaced_in_a_pause_in_which_no_task_has_begun() -> None:
    """A callback at the end of the step may take as long as it likes."""
    master = start(validation=8, evaluation_steps=2, evaluation_workers=0)
    assert pass_time(master, {"w0": 4, "w1": 4, "w2": 3}, 3 * REPLACEMENT_SECONDS) == []
    assert master.state.world_pauses
    assert awaited(master).startswith("worker-2 has not finished its part of step 4 for ")


def start_pause(count: int = 2) -> AllReduceMaster:
    """All pause for the evaluation of step 2, which has two tasks."""
    master = start(count, training=1, validation=32, evaluation_steps=2, evaluation_workers=0)
    master.report("w0", RankPhase.RUNNING, step=2, stable=2, entered=4, is_paused=True)
    assert master.state.evaluation is not None
    return master


def begin_task(master: AllReduceMaster, worker: str) -> int:
    """A worker gets a part of the evaluation; returns its lease."""
    task = master.lease(worker)
    assert task.kind == "evaluation"
    return int(task.lease)


def evaluate(worker: str, lease: int, steps: int) -> ProgressReported:
    """A worker says how far it is with a task."""
    return ProgressReported(worker, (LeaseProgress(lease, steps),))


def test_a_worker_that_hangs_in_a_task_is_named_and_replaced_and_another_one_gets_the_task() -> None:
    master = start_pause()
    entered, hangs = {"w0": 5, "w1": 4}, evaluate("w1", begin_task(master, "w1"), 0)
    assert pass_time(master, entered, STUCK_FIRST - 10, hangs) == []
    assert awaited(master) == ""
    pass_time(master, entered, 20, hangs)
    assert awaited(master) == "worker-1 has made no progress in the evaluation for 610 s; 1 other waits for it"
    assert len(warnings(master)) == 1
    assert pass_time(master, entered, REPLACEMENT_SECONDS - STUCK_FIRST - 14) == []
    assert DeletePod("w1", master.settings.grace) in pass_time(master, entered, 5)
    master.report("w0", RankPhase.ENDED, step=2)
    master.start_round("w0")
    first = begin_task(master, "w0")
    assert master.lease("w0", first).kind == "evaluation"


def test_a_worker_that_goes_on_with_its_task_may_keep_the_others_waiting() -> None:
    master = start_pause()
    lease = begin_task(master, "w1")
    for steps in range(4):
        assert pass_time(master, {"w0": 5, "w1": 4}, STUCK_FIRST - 10, evaluate("w1", lease, steps)) == []
    assert awaited(master) == ""


def test_no_worker_is_replaced_while_more_of_them_have_tasks_than_wait() -> None:
    master = start_pause(3)
    for worker in ("w1", "w2"):
        begin_task(master, worker)
    assert pass_time(master, {"w0": 5, "w1": 4, "w2": 4}, REPLACEMENT_SECONDS + 60) == []
    assert awaited(master).startswith("worker-1, worker-2 have made no progress in the evaluation for ")


def test_nobody_is_named_while_all_have_tasks() -> None:
    master = start_pause()
    for worker in ("w0", "w1"):
        begin_task(master, worker)
    assert pass_time(master, {"w0": 4, "w1": 4}, REPLACEMENT_SECONDS + 60) == []
    assert awaited(master) == ""


@pytest.mark.parametrize("has_restarted", [False, True])
def test_a_file_of_the_model_is_written_by_another_worker_if_the_first_one_hangs(has_restarted: bool) -> None:
    master = start(2, training=1, callbacks=(ModelFile("{batch}.keras", every_steps=2),))
    master.report("w0", RankPhase.RUNNING, step=2, stable=2, entered=4, is_paused=True)
    assert master.lease("w0").kind == "model file"
    if has_restarted:
        master.restart()
        master.report("w0", RankPhase.RUNNING, step=2, stable=2, entered=4, is_paused=True)
    entered = {"w0": 4, "w1": 5}
    assert pass_time(master, entered, REPLACEMENT_SECONDS - 2) == []
    assert awaited(master).startswith("worker-0 has made no progress in writing the file of ModelCheckpoint for ")
    assert DeletePod("w0", master.settings.grace) in pass_time(master, entered, 4)
    master.report("w1", RankPhase.ENDED, step=2)
    master.start_round("w1")
    master.kill("w0")
    assert master.lease("w1").kind == "model file"


@pytest.mark.parametrize("seconds", [75, REPLACEMENT_SECONDS + 60])
def test_a_worker_that_hangs_while_a_round_ends_is_noticed_too(seconds: float) -> None:
    """The others wait for its report, and its main thread has to make it."""
    master = start(4)
    master.kill("w3")
    assert master.rounds.phase is RoundPhase.CLOSING
    for worker in ("w0", "w1"):
        master.report(worker, RankPhase.ENDED, step=3)
    commands: list[object] = []
    until = master.now + seconds
    while master.now < until and master.rounds.phase is RoundPhase.CLOSING:
        for worker in ("w0", "w1"):
            master.report(worker, RankPhase.ENDED, step=3)
        master.report("w2", RankPhase.RUNNING, step=3, entered=3)
        commands += master.handle(Tick(), after=1.5)
    deleted = [each for each in commands if isinstance(each, DeletePod)]
    if seconds < REPLACEMENT_SECONDS:
        assert awaited(master).startswith(f"worker-2 has not left round {master.rounds.round.number} for ")
        assert deleted == []
    else:
        assert deleted == [DeletePod("w2", master.settings.grace)]
        assert master.rounds.members == ("w0", "w1")


@pytest.mark.parametrize("seconds", [75, REPLACEMENT_SECONDS + 6])
def test_a_worker_that_hangs_before_a_round_starts_is_noticed_too(seconds: float) -> None:
    """Its callback ``on_train_begin`` opens a file on a dead mount, for example."""
    master = start()
    master.kill("w2")
    for worker in ("w0", "w1"):
        master.report(worker, RankPhase.ENDED, step=3)
    assert master.rounds.phase is RoundPhase.CONFIRMING
    commands: list[object] = []
    until = master.now + seconds
    while master.now < until and master.rounds.phase is RoundPhase.CONFIRMING:
        master.report("w0", RankPhase.CONFIRMED, entered=3)
        master.report("w1", RankPhase.FETCHING, entered=2)
        commands += master.handle(Tick(), after=3)
    deleted = [each for each in commands if isinstance(each, DeletePod)]
    if seconds < REPLACEMENT_SECONDS:
        number = master.rounds.round.number
        assert awaited(master) == f"worker-1 has not begun round {number} for 75 s; 1 other waits for it"
        assert deleted == []
    else:
        assert deleted == [DeletePod("w1", master.settings.grace)]
        assert master.rounds.awaited_workers() == ["w0"]


def test_nobody_is_named_while_the_state_is_copied() -> None:
    master = start()
    master.kill("w2")
    for worker in ("w0", "w1"):
        master.report(worker, RankPhase.ENDED, step=3)
    for _ in range(int(REPLACEMENT_SECONDS / 3) + 10):
        for worker in ("w0", "w1"):
            master.report(worker, RankPhase.FETCHING, entered=3)
        master.handle(Tick(), after=3)
    assert master.rounds.phase is RoundPhase.CONFIRMING
    assert awaited(master) == ""
