"""``updates_rolled_back`` is, to the update, what the parameters lack of the steps that the ledger calls done."""

from __future__ import annotations

from random import Random

import pytest
from core.test_core_simulation import DAYS, SOURCES, FaultyRun, JobFault
from support.core_harness import CoreHarness, alive, killed

from edl.api.cluster_port import Role
from edl.api.run_events import RollbackDone, WarningRaised
from edl.core.events import (
    CheckpointSaveFinished,
    CutPrepared,
    LeaseProgress,
    LeaseReply,
    LeaseRequested,
    LeasesRevoked,
    ProgressReported,
    PsAttached,
    PsRegistered,
    SnapshotTaken,
    Tick,
    UpdatesHeld,
)
from edl.core.state import JobSettings
from edl.simulation.training_world import SimulatedNetwork, TrainingWorld


def two_servers_harness() -> tuple[CoreHarness, int]:
    """Two PS, a checkpoint every 10 steps, worker-0 holds a lease of 8 steps."""
    harness = CoreHarness(ps=2, checkpoint_steps=10)
    return harness, harness.train()


def finish(harness: CoreHarness, lease: int) -> dict[int, int]:
    """The rest of a lease is done, and two steps of the next one, so that a cut is due; what PS have of both."""
    harness.see(ProgressReported("worker-0", (LeaseProgress(lease, 8),)))
    (granted,) = [x for x in harness.see(LeaseRequested("worker-0")) if isinstance(x, LeaseReply)]
    harness.see(ProgressReported("worker-0", (LeaseProgress(granted.lease, 2),)))
    return {lease: 8, granted.lease: 2}


def cut(harness: CoreHarness, applied: dict[int, int], entered: dict[str, int]) -> None:
    """The cut that is on its way is taken and saved."""
    number = harness.state.cut_number
    harness.see(*(CutPrepared(ps, number) for ps in entered), *(UpdatesHeld(ps, number, applied) for ps in entered))
    harness.see(
        *(SnapshotTaken(ps, number, 0, 0.0, steps) for ps, steps in entered.items()), CheckpointSaveFinished(number)
    )


def replace_ps(harness: CoreHarness, index: int, uid: str) -> None:
    """A PS is killed, and another one loads the newest checkpoint."""
    harness.see(killed(Role.PS, index, harness.state.pods.parameter_holders[index]))
    harness.see(alive(Role.PS, index, uid), PsRegistered(uid))
    for initialized in (False, True):
        harness.see(PsAttached(uid, initialized, 0))


def summary(harness: CoreHarness) -> tuple[int, dict[str, int], int]:
    counters = harness.state.counters
    return counters.updates_rolled_back, counters.updates_of, counters.steps_not_applied


def rolled_back_updates(harness: CoreHarness) -> int:
    """Updates that events told of."""
    return sum(tell.updates for tell in harness.emitted if isinstance(tell, RollbackDone))


def test_steps_that_were_in_and_not_reported_are_counted() -> None:
    """Three of the five steps that ps-1 had were reported when it was lost; the reports of two come later."""
    harness, lease = two_servers_harness()
    harness.see(ProgressReported("worker-0", (LeaseProgress(lease, 3),)))
    replace_ps(harness, 1, "ps-1-b")
    assert summary(harness)[0] == 3, "as far as is known"
    cut(harness, finish(harness, lease), {"ps-0": 10, "ps-1-b": 5})
    assert summary(harness) == (5, {"1": 5}, 0)
    assert rolled_back_updates(harness) == 5
    harness.restart()
    assert summary(harness) == (5, {"1": 5}, 0)


def test_what_is_lost_twice_is_counted_once() -> None:
    harness, lease = two_servers_harness()
    harness.see(ProgressReported("worker-0", (LeaseProgress(lease, 3),)))
    replace_ps(harness, 1, "ps-1-b")
    harness.see(ProgressReported("worker-0", (LeaseProgress(lease, 4),)))
    replace_ps(harness, 1, "ps-1-c")
    assert summary(harness) == (4, {"1": 4}, 0)
    cut(harness, finish(harness, lease), {"ps-0": 10, "ps-1-c": 6})
    assert summary(harness) == (4, {"1": 4}, 0)
    assert rolled_back_updates(harness) == 4


def test_what_a_checkpoint_lacks_stays_lacking_and_no_more_when_all_go_back_to_it() -> None:
    harness, lease = two_servers_harness()
    harness.see(ProgressReported("worker-0", (LeaseProgress(lease, 3),)))
    replace_ps(harness, 1, "ps-1-b")
    cut(harness, finish(harness, lease), {"ps-0": 10, "ps-1-b": 7})
    replace_ps(harness, 0, "ps-0-z")
    assert summary(harness)[1] == {"1": 3}, "all that is done is in the checkpoint"
    harness.see(killed(Role.PS, 0, "ps-0-z"), killed(Role.PS, 1, "ps-1-b"))
    assert summary(harness) == (3, {"1": 3}, 0)


def test_steps_that_are_done_and_that_nobody_applied_are_said() -> None:
    """1,504 steps were reported and 365 applied, and nobody said a word."""
    harness, lease = two_servers_harness()
    cut(harness, finish(harness, lease), {"ps-0": 4, "ps-1": 4})
    assert summary(harness) == (0, {}, 6)
    (warning,) = [tell.message for tell in harness.emitted if isinstance(tell, WarningRaised)]
    assert "10 steps are done" in warning
    assert "applied 6 fewer" in warning
    harness.restart()
    assert summary(harness) == (0, {}, 6)


def test_steps_that_are_applied_and_that_nobody_reported_are_said() -> None:
    harness, lease = two_servers_harness()
    cut(harness, finish(harness, lease), {"ps-0": 13, "ps-1": 13})
    assert summary(harness) == (0, {}, 3)
    assert "applied 3 more" in [tell.message for tell in harness.emitted if isinstance(tell, WarningRaised)][-1]


def test_a_step_that_one_of_two_applied_is_no_difference() -> None:
    harness, lease = two_servers_harness()
    harness.see(ProgressReported("worker-0", (LeaseProgress(lease, 2),)), killed(Role.WORKER, 0))
    harness.see(LeasesRevoked("ps-0", {lease: 4}, {lease: 0}), LeasesRevoked("ps-1", {lease: 3}, {lease: 0}), Tick())
    (returned,) = harness.entries("returned")
    assert returned["extra"] == {"ps-0": 1}
    assert harness.state.pods.update_offsets == {"ps-0": 1}


def test_a_checkpoint_of_an_older_edl_says_nothing_of_what_it_lacks() -> None:
    harness, lease = two_servers_harness()
    for entry in harness.journal:
        if entry["kind"] == "saved":
            del entry["ledger"]["lacking"]
    harness.restart()
    assert harness.state.checkpoint is not None
    assert "lacking" not in harness.state.checkpoint.ledger
    harness.see(*(alive(Role.PS, index) for index in range(2)), alive(Role.WORKER, 0))
    harness.see(ProgressReported("worker-0", (LeaseProgress(lease, 3),)), killed(Role.PS, 0), killed(Role.PS, 1))
    assert summary(harness) == (0, {}, 0)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_exact_in_a_storm_over_parameter_servers(seed: int) -> None:
    """Several PS and workers are killed again and again; ``World.check_end`` counts what each PS lacks."""
    chance = Random(seed)
    kinds = [*["ps killed"] * 4, *["worker killed"] * 2, "worker stopped", "master killed", "journal compacted"]
    bad = [
        JobFault(chance.uniform(1, 30), chance.choice(kinds), chance.randint(0, 30), chance.random()) for _ in range(24)
    ]
    job = JobSettings(
        minibatch=4,
        task_records=32,
        epochs=2,
        evaluation_steps=chance.choice([None, 11]),
        checkpoint_steps=chance.choice([4, 15, 40]),
        ps=chance.choice([2, 3]),
        workers=4,
    )
    FaultyRun(
        job,
        bad,
        seed,
        network=SimulatedNetwork(
            max_delay=chance.choice([0.05, 0.3]), duplicate_probability=0.05, loss_probability=0.02
        ),
    ).to_end()


def test_a_worker_that_reports_what_it_does_not_push_is_noticed() -> None:
    job = JobSettings(minibatch=4, task_records=24, workers=2, checkpoint_steps=6)
    world = TrainingWorld(job, SOURCES, seed=5)
    world.run(3.0)
    (ps,) = world.alive_servers()
    ps.leases._admitted_count -= 7
    world.run(DAYS)
    assert world.master is not None
    assert world.master.counters.steps_not_applied == 7
    assert any("applied 7 fewer" in tell.message for tell in world.emitted_events if isinstance(tell, WarningRaised))
