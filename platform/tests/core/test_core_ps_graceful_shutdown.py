"""Parameter servers that are told to go cost nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.core_harness import CoreHarness, alive, killed
from support.examples import examples

from edl.api.cluster_port import Role
from edl.core.events import (
    CheckpointSaveFinished,
    CutPrepared,
    DatasetDescribed,
    DeletePod,
    LeaseReply,
    LeaseRequested,
    MayEnd,
    ModelDeclared,
    PodsSynced,
    PsAttached,
    PsHeartbeat,
    PsLeaving,
    PsRegistered,
    SnapshotTaken,
    Tick,
    UpdatesHeld,
)
from edl.core.state import JobSettings
from edl.simulation.training_world import SimulatedNetwork, TrainingWorld

SOURCES = (("a", 260), ("b", 77))
DAYS = 86_400.0
GRACE = 30.0

TIMES_OF_SIX = (8.546, 8.435, 7.44, 2.368, 0.042, 6.952)

_thorough = settings(
    max_examples=examples(25), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


@dataclass(frozen=True)
class PlannedDeletion:
    """A parameter server is told to go at a time, and has ``grace`` seconds."""

    at: float
    which: int
    grace: float = GRACE

    def apply(self, world: TrainingWorld) -> None:
        servers = world.alive_servers()
        if servers:
            world.cluster.delete_pod(servers[self.which % len(servers)].uid, self.grace)


def played(
    job: JobSettings, ends: Sequence[PlannedDeletion], seed: int = 0, network: SimulatedNetwork | None = None
) -> TrainingWorld:
    world = TrainingWorld(job, SOURCES, seed=seed, network=network or SimulatedNetwork())
    for end in ends:
        world.clock.call_at(end.at, lambda end=end: end.apply(world))
    world.run(DAYS)
    world.check_end()
    return world


def costs(world: TrainingWorld) -> tuple[int, ...]:
    """Records and updates that went back, records repeated, steps that only some parameter servers applied."""
    assert world.master is not None
    counters = world.master.counters
    return counters.rolled_back, counters.updates_rolled_back, counters.repeated, counters.partial


def nothing_lacks(world: TrainingWorld) -> bool:
    """What was not yet in when a successor loaded its checkpoint was pushed to it later."""
    return all(server.lacking_minibatches <= server.applied_counts.keys() for server in world.alive_servers())


def job(**fields: object) -> JobSettings:
    return JobSettings(**{"minibatch": 4, "task_records": 24, "workers": 3, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("ps", [1, 2, 3])
def test_a_parameter_server_that_is_told_to_go_costs_nothing(ps: int) -> None:
    world = played(job(ps=ps, epochs=2), [PlannedDeletion(2.5, 0)])
    assert costs(world) == (0, 0, 0, 0)
    assert len(world.ps_processes) == ps + 1
    assert nothing_lacks(world)
    assert not any('"rolled_back"' in line for line in world.journal_lines)


@_thorough
@given(
    st.integers(1, 3),
    st.lists(st.builds(PlannedDeletion, st.floats(0.0, 12.0), st.integers(0, 5)), min_size=1, max_size=6),
    st.integers(0, 1 << 30),
    st.sampled_from([None, 6]),
    st.sampled_from([0.05, 0.4]),
)
# The second is told to go while its answer to the checkpoint that it loads is on the way.
@example(1, [PlannedDeletion(2.0, 0), PlannedDeletion(6.125, 0)], (1 << 30) - 1, None, 0.4)
# ps-1 is told to go while the successor of ps-0, which was told too, takes updates that no checkpoint contains.
@example(3, [PlannedDeletion(at, i) for at, i in zip(TIMES_OF_SIX, (2, 3, 4, 4, 3, 3), strict=True)], 213544986, 6, 0.4)
def test_whichever_parameter_servers_are_told_to_go_when_nothing_is_lost(
    ps: int, ends: list[PlannedDeletion], seed: int, checkpoint_steps: int | None, slowest: float
) -> None:
    world = played(
        job(ps=ps, epochs=2, checkpoint_steps=checkpoint_steps),
        ends,
        seed,
        SimulatedNetwork(max_delay=slowest, duplicate_probability=0.05),
    )
    assert costs(world) == (0, 0, 0, 0)
    assert nothing_lacks(world)


@_thorough
@given(
    st.integers(1, 3),
    st.lists(st.builds(PlannedDeletion, st.floats(0.0, 9.0), st.integers(0, 5)), min_size=1, max_size=4),
    st.lists(st.tuples(st.floats(0.0, 9.0), st.sampled_from(["worker", "master"])), max_size=5),
    st.integers(0, 1 << 30),
)
def test_lost_workers_and_masters_meanwhile_cost_no_update_either(
    ps: int, ends: list[PlannedDeletion], lost: list[tuple[float, str]], seed: int
) -> None:
    world = TrainingWorld(job(ps=ps, epochs=2, checkpoint_steps=15), SOURCES, seed=seed, master_timeout=GRACE)

    def apply(what: str) -> None:
        workers = world.alive_workers()
        if what == "master" and world.master is not None:
            world.kill_master(1.0)
        elif what == "worker" and workers:
            world.end_pod(workers[seed % len(workers)].uid, 137)

    for end in ends:
        world.clock.call_at(end.at, lambda end=end: end.apply(world))
    for at, what in lost:
        world.clock.call_at(at, lambda what=what: apply(what))
    world.run(DAYS)
    world.check_end()
    assert costs(world)[:2] == (0, 0)
    assert nothing_lacks(world)


def test_a_grace_that_is_too_short_falls_back_and_is_counted() -> None:
    """The cut takes a few messages, each half a second."""
    world = played(
        job(epochs=2), [PlannedDeletion(20.0, 0, grace=1.0)], network=SimulatedNetwork(min_delay=0.5, max_delay=0.6)
    )
    assert costs(world)[0] > 0


def test_without_a_master_a_parameter_server_goes_as_ever() -> None:
    world = TrainingWorld(job(epochs=2), SOURCES)
    world.clock.call_at(3.0, lambda: world.kill_master(20.0))
    world.clock.call_at(4.0, lambda: PlannedDeletion(4.0, 0).apply(world))
    world.run(6.0)
    assert not world.alive_servers()
    world.run(DAYS)
    world.check_end()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.first_cases(3)
def test_planned_and_unplanned_ends_in_a_storm(seed: int) -> None:
    """Whatever goes back is accounted for: ``check_end`` compares every parameter server with the ledger."""
    chance = Random(seed)
    world = TrainingWorld(
        job(ps=chance.choice([1, 2, 3]), epochs=3, checkpoint_steps=chance.choice([3, 6]), evaluation_steps=5),
        SOURCES,
        (("v", 20),),
        seed=seed,
        network=SimulatedNetwork(
            max_delay=chance.choice([0.05, 0.3]), duplicate_probability=0.05, loss_probability=0.02
        ),
        forgets_ended_pods=chance.random() < 0.5,
    )

    def apply(kind: str) -> None:
        servers, workers = world.alive_servers(), world.alive_workers()
        if kind == "master" and world.master is not None:
            world.kill_master(chance.uniform(0.1, 4.0))
        elif kind == "torn" and world.master is not None:
            world.die_at = world.handled_events + chance.randint(1, 20)
        elif kind == "compact":
            world.compact_journal()
        elif kind == "planned" and servers:
            world.cluster.delete_pod(chance.choice(servers).uid, chance.choice([0.3, 2.0, GRACE]))
        elif kind == "killed" and servers:
            world.end_pod(chance.choice(servers).uid, 137)
        elif kind == "worker" and workers:
            world.end_pod(chance.choice(workers).uid, 137)

    for _ in range(40):
        kind = chance.choice(["planned", "planned", "planned", "killed", "worker", "master", "torn", "compact"])
        world.clock.call_at(chance.uniform(0.5, 40.0), lambda kind=kind: apply(kind))
    world.run(DAYS)
    world.check_end()


# ---------------------------------------------------------------------------------------------- one that does not go


def handed_over() -> CoreHarness:
    """Somebody says of ps-0 that it was told to go, and what it holds is in checkpoint 2."""
    harness = CoreHarness()
    harness.train()
    harness.see(PsLeaving("ps-0"), Tick())
    harness.see(CutPrepared("ps-0", 2), UpdatesHeld("ps-0", 2, {}), SnapshotTaken("ps-0", 2, 0, 0.0))
    harness.see(CheckpointSaveFinished(2))
    assert harness.state.pods.handed_over_ps == {"ps-0": 0}
    return harness


def test_a_parameter_server_that_was_not_told_to_go_is_when_it_was_handed_over() -> None:
    """Its successor waits for its end, and training for its successor: that was for ever."""
    harness = handed_over()
    assert [c for _ in range(3) for c in harness.see(PsHeartbeat("ps-0")) if isinstance(c, DeletePod)] == [
        DeletePod("ps-0", 0.0)
    ]
    harness.see(killed(Role.PS, 0), alive(Role.PS, 0, "next"), PsRegistered("next"), PsAttached("next", False, 0))
    harness.see(PsAttached("next", True, 0), Tick())
    assert any(isinstance(c, LeaseReply) for c in harness.see(LeaseRequested("worker-1")))
    assert costs_nothing(harness)


def test_so_it_is_by_the_next_master_once_that_has_seen_who_is_there() -> None:
    harness = handed_over()
    harness.restart()
    early = harness.see(alive(Role.PS, 0), alive(Role.WORKER, 0), alive(Role.WORKER, 1), PsRegistered("ps-0"))
    assert not [c for c in early if isinstance(c, DeletePod)]
    later = harness.see(PodsSynced(), PsRegistered("ps-0"), PsHeartbeat("ps-0"))
    assert [c for c in later if isinstance(c, DeletePod)] == [DeletePod("ps-0", 0.0)]


def costs_nothing(harness: CoreHarness) -> bool:
    counters = harness.state.counters
    return not (counters.rolled_back or counters.updates_rolled_back or counters.repeated or counters.partial)


def test_a_model_that_is_declared_to_one_that_may_exit_is_not_held_there() -> None:
    """It was empty when it was told to go: what it took afterwards would end with it."""
    harness = CoreHarness()
    harness.see(DatasetDescribed(training=(("a", 640),)), alive(Role.PS, 0), alive(Role.WORKER, 0), PodsSynced())
    harness.see(PsRegistered("ps-0"), PsAttached("ps-0", False, 0))
    assert any(isinstance(c, MayEnd) and c.value for c in harness.see(PsLeaving("ps-0")))
    assert DeletePod("ps-0", 0.0) in harness.see(ModelDeclared("worker-0"))
    assert harness.state.pods.parameter_holders == {}
