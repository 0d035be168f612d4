"""A whole job on a cluster that takes pods away: never more workers than wanted, and no record is ever lost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples

from edl.api.cluster_port import Role, TerminationCause
from edl.api.run_events import RoleLeaving, RoleStarted, RollbackDone
from edl.core import events as ev
from edl.core.state import JobSettings
from edl.simulation.training_world import SimulatedNetwork, TrainingWorld

SOURCES = (("a", 260), ("b", 77))
DAYS = 86_400.0
TAKEN = {
    "preempted": TerminationCause.PREEMPTED,
    "evicted": TerminationCause.EVICTED,
    "deleted": TerminationCause.DELETED,
}
FAULTS = (*TAKEN, "killed", "node lost", "room changed", "scaled", "refused", "accepted")
MASTER_FAULTS = ("master killed", "master killed in the middle of a write", "journal compacted")


@dataclass(frozen=True)
class ClusterFault:
    """Something that a cluster or a person does at a time: to ``which`` of the pods there are, ``much`` of it."""

    at: float
    what: str
    which: int
    much: float

    def apply(self, world: TrainingWorld) -> None:
        cluster = world.cluster
        pods = cluster.live_pods(Role.PS if self.which % 7 == 6 else Role.WORKER)
        if self.what in TAKEN and pods:
            cluster.delete_pod(pods[self.which % len(pods)].uid, 5.0 * self.much, TAKEN[self.what])
        elif self.what == "killed" and pods:
            world.end_pod(pods[self.which % len(pods)].uid, 137)
        elif self.what == "out of memory" and (workers := cluster.live_pods(Role.WORKER)):
            world.end_pod(workers[self.which % len(workers)].uid, 137, TerminationCause.OUT_OF_MEMORY)
        elif self.what == "node lost":
            for pod in pods[: 1 + self.which % 3]:
                cluster.lose_node(pod.uid)
        elif self.what == "room changed":
            cluster.set_capacity(1 + self.which % 5)
        elif self.what in ("refused", "accepted"):
            cluster.start_refusal = "exceeded quota" if self.what == "refused" else ""
        elif self.what == "scaled":
            world.post_events(ev.ScaleRequested(max=(None, 1, 2, 3, 6)[self.which % 5]))
        else:
            self._strike_master(world)

    def _strike_master(self, world: TrainingWorld) -> None:
        if self.what == "master killed" and world.master is not None:
            world.kill_master(0.1 + 5 * self.much)
        elif self.what == "master killed in the middle of a write" and world.master is not None:
            world.die_at = world.handled_events + 1 + self.which
        elif self.what == "journal compacted":
            world.compact_journal()


def faults(*kinds: str, most: int = 12) -> st.SearchStrategy[list[ClusterFault]]:
    unit = st.floats(0.0, 1.0)
    one = st.builds(ClusterFault, st.floats(0.0, 12.0), st.sampled_from(kinds), st.integers(0, 20), unit)
    return st.lists(one, max_size=most)


@st.composite
def jobs(draw: st.DrawFn) -> JobSettings:
    return JobSettings(
        minibatch=draw(st.sampled_from([4, 8])),
        task_records=24,
        epochs=draw(st.integers(1, 3)),
        max_steps=draw(st.sampled_from([None, None, 17])),
        evaluation_steps=draw(st.sampled_from([None, 5])),
        checkpoint_steps=draw(st.sampled_from([None, 6])),
        ps=draw(st.integers(1, 2)),
        workers=draw(st.integers(1, 5)),
        elevated_share=draw(st.sampled_from([0.0, 0.5])),
        oom_memory_factor=1.5,
        grace=draw(st.sampled_from([0.5, 5.0])),
        durable=draw(st.sampled_from([True, True, False])),
    )


def to_end(
    job: JobSettings, bad: list[ClusterFault], seed: int, capacity: int | None, *, forgets: bool = False
) -> TrainingWorld:
    """Run the job; what is refused is accepted again at last."""
    network = SimulatedNetwork(duplicate_probability=0.05, loss_probability=0.02)
    world = TrainingWorld(
        job, SOURCES, (("v", 20),), seed=seed, network=network, forgets_ended_pods=forgets, capacity=capacity
    )
    for fault in [*bad, ClusterFault(15.0, "accepted", 0, 0.0)]:
        world.clock.call_at(fault.at, lambda fault=fault: fault.apply(world))  # type: ignore[misc]
    world.run(DAYS)
    world.check_end()
    return world


_thorough = settings(
    max_examples=examples(40),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
seeds = st.integers(0, 1 << 30)
rooms = st.sampled_from([None, 1, 2, 4])


@_thorough
@given(jobs(), faults(*FAULTS, *MASTER_FAULTS), faults("out of memory", most=3), seeds, rooms, st.booleans())
def test_no_record_is_lost_whatever_the_cluster_takes_away(
    job: JobSettings, bad: list[ClusterFault], hungry: list[ClusterFault], seed: int, room: int | None, forgets: bool
) -> None:
    world = to_end(job, [*bad, *hungry], seed, room, forgets=forgets)
    assert world.master is not None
    summary = world.master.counters
    if job.durable and job.ps == 1:
        assert summary.partial == 0


@_thorough
@given(jobs(), faults("preempted", "evicted", "deleted", "room changed", "scaled"), seeds, rooms)
def test_workers_with_time_to_leave_cost_no_record(
    job: JobSettings, bad: list[ClusterFault], seed: int, room: int | None
) -> None:
    polite = [ClusterFault(fault.at, fault.what, fault.which - fault.which % 7, 1.0) for fault in bad]
    world = to_end(JobSettings(**{**_fields(job), "grace": 30.0}), polite, seed, room)
    assert world.master is not None
    counters = world.master.counters
    assert (counters.rolled_back, counters.updates_rolled_back, counters.partial) == (0, 0, 0)


def _fields(job: JobSettings) -> dict[str, object]:
    return {name: getattr(job, name) for name in JobSettings.__slots__}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.first_cases(4)
def test_a_job_on_a_cluster_in_a_storm(seed: int) -> None:
    chance = Random(seed)
    kinds = [*FAULTS, *TAKEN, *MASTER_FAULTS]
    bad = [
        ClusterFault(chance.uniform(1, 40), chance.choice(kinds), chance.randint(0, 30), chance.random())
        for _ in range(40)
    ]
    job = JobSettings(
        minibatch=4,
        task_records=16,
        epochs=2,
        evaluation_steps=5,
        checkpoint_steps=4,
        ps=chance.choice([1, 2]),
        workers=6,
        durable=chance.random() < 0.7,
    )
    bad.append(ClusterFault(41.0, "accepted", 0, 0.0))
    to_end(job, bad, seed, chance.choice([None, 2, 4]), forgets=chance.random() < 0.5)


def test_workers_without_room_are_withdrawn_when_the_data_is_used_up() -> None:
    world = TrainingWorld(JobSettings(minibatch=8, task_records=24, workers=5), SOURCES, seed=1, capacity=2)
    world.run(DAYS)
    world.check_end()
    start_events = [tell for tell in world.emitted_events if isinstance(tell, RoleStarted)]
    started = {tell.index for tell in start_events if tell.role == "worker"}
    withdrawn = [tell for tell in world.emitted_events if isinstance(tell, RoleLeaving)]
    assert all("no work waits" in tell.cause for tell in withdrawn)
    assert {tell.index for tell in withdrawn} == set(range(5)) - started
    assert len(withdrawn) == 3
    assert world.master is not None
    assert world.master.counters.workers_lost == 0


def test_a_job_that_loses_its_only_ps_without_a_volume_begins_again_and_says_so() -> None:
    job = JobSettings(minibatch=8, task_records=24, workers=2, durable=False)
    world = TrainingWorld(job, SOURCES, seed=1)
    world.run(1.5)
    (ps,) = world.alive_servers()
    world.end_pod(ps.uid, 137)
    world.run(DAYS)
    world.check_end()
    (back,) = [tell for tell in world.emitted_events if isinstance(tell, RollbackDone)]
    assert back.to_cut is None
    assert back.records > 0
    assert not any(json.loads(line)["kind"] == "saved" for line in world.journal_lines)


def newest(world: TrainingWorld) -> str:
    return max(world.cluster.live_pods(Role.WORKER), key=lambda pod: pod.index).uid


def test_out_of_memory_raises_the_memory_of_successors_and_ends_the_job_at_last() -> None:
    job = JobSettings(minibatch=8, task_records=24, workers=2, oom_memory_factor=1.5, worker_memory="2Gi")
    world = TrainingWorld(job, SOURCES, seed=1, step_seconds=1e3)
    for at in (5.0, 10.0, 15.0, 20.0):
        world.clock.call_at(at, lambda: world.end_pod(newest(world), 137, TerminationCause.OUT_OF_MEMORY))
    world.run(DAYS)
    assert world.end_command is not None
    assert world.end_command.phase == "Failed"
    assert "3.38 times workers.resources.memory of 2Gi" in world.end_command.reason
