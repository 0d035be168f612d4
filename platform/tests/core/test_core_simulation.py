"""A whole job under faults: ``edl.simulation.training_world`` checks what must hold at every event and at the end."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples

from edl.api.run_events import RangeQuarantined, RollbackDone
from edl.core.events import StopRequested
from edl.core.job import JobStateMachine
from edl.core.record_ranges import describe_ranges
from edl.core.shuffle import BlockLayout
from edl.core.state import JobSettings
from edl.simulation.promises import BrokenPromiseError
from edl.simulation.training_world import TICK, SimulatedNetwork, TrainingWorld

SOURCES = (("a", 260), ("b", 77))
BLOCKS = BlockLayout((((50, 5), (10, 1)), ((7, 11),)), 100)
DAYS = 86_400.0


@dataclass(frozen=True)
class JobFault:
    """Something bad at a time: ``which`` of the pods there are, ``much`` of it (0 to 1)."""

    at: float
    what: str
    which: int
    much: float

    def apply(self, world: TrainingWorld) -> None:
        workers, servers = world.alive_workers(), world.alive_servers()
        if self.what == "master killed" and world.master is not None:
            world.kill_master(0.1 + 5 * self.much)
        elif self.what == "master killed in the middle of a write" and world.master is not None:
            world.die_at = world.handled_events + 1 + self.which
        elif self.what == "journal compacted":
            world.compact_journal()
        elif self.what == "ps killed" and servers:
            world.end_pod(servers[self.which % len(servers)].uid, 137)
        elif workers:
            worker = workers[self.which % len(workers)]
            if self.what == "worker killed":
                world.end_pod(worker.uid, 137)
            elif self.what == "worker told to go":
                worker.leaving = True
            elif self.what == "worker stopped":
                worker.frozen_until = world.clock.now() + 40 * self.much
            elif self.what == "worker slow":
                worker.step_seconds = 3 * self.much


WORKER_FAULTS = ("worker killed", "worker told to go", "worker stopped", "worker slow")
MASTER_FAULTS = ("master killed", "master killed in the middle of a write", "journal compacted")


def faults(*kinds: str) -> st.SearchStrategy[list[JobFault]]:
    unit = st.floats(0.0, 1.0)
    one = st.builds(JobFault, st.floats(0.0, 9.0), st.sampled_from(kinds), st.integers(0, 20), unit)
    return st.lists(one, max_size=10)


@st.composite
def jobs(draw: st.DrawFn, ps: int | None = None) -> JobSettings:
    return JobSettings(
        minibatch=draw(st.sampled_from([3, 4, 8])),
        task_records=24,
        epochs=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 3)),
        max_steps=draw(st.sampled_from([None, None, 17])),
        shuffle=draw(st.sampled_from([0, None, 10, 48, 100])),
        evaluation_steps=draw(st.sampled_from([None, 5, 12])),
        checkpoint_steps=draw(st.sampled_from([None, 6, 15])),
        export=draw(st.booleans()),
        ps=ps or draw(st.integers(1, 3)),
        workers=draw(st.integers(1, 4)),
    )


@dataclass
class FaultyRun:
    """A job, run to its end under faults."""

    job: JobSettings
    faults: list[JobFault]
    seed: int
    validation: int = 20
    forgets: bool = False
    network: SimulatedNetwork = field(
        default_factory=lambda: SimulatedNetwork(duplicate_probability=0.05, loss_probability=0.02)
    )

    def to_end(self) -> TrainingWorld:
        validation = (("v", self.validation),) if self.validation else ()
        world = TrainingWorld(
            self.job,
            SOURCES,
            validation,
            seed=self.seed,
            network=self.network,
            forgets_ended_pods=self.forgets,
            blocks=BLOCKS,
        )
        for fault in self.faults:
            world.clock.call_at(fault.at, lambda fault=fault: fault.apply(world))
        world.run(DAYS)
        world.check_end()
        return world


_thorough = settings(
    max_examples=examples(25),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
seeds = st.integers(0, 1 << 30)


@_thorough
@given(jobs(), faults(*WORKER_FAULTS, *MASTER_FAULTS, "ps killed"), seeds, st.sampled_from([0, 20]), st.booleans())
def test_every_record_is_done_once_whoever_dies_when(
    job: JobSettings, bad: list[JobFault], seed: int, validation: int, forgets: bool
) -> None:
    FaultyRun(job, bad, seed, validation, forgets).to_end()


@_thorough
@given(jobs(ps=1), faults(*WORKER_FAULTS), seeds)
def test_lost_workers_cost_a_minibatch_each_and_nothing_is_rolled_back(
    job: JobSettings, bad: list[JobFault], seed: int
) -> None:
    world = FaultyRun(job, bad, seed).to_end()
    assert world.master is not None
    counters = world.master.counters
    assert (counters.rolled_back, counters.updates_rolled_back, counters.partial) == (0, 0, 0)
    taken_back = sum('"revoking"' in line and '"in_flight": true' in line for line in world.journal_lines)
    assert counters.repeated <= job.minibatch * taken_back


@_thorough
@given(jobs(), faults("worker told to go"), seeds)
def test_workers_that_are_told_to_go_cost_nothing(job: JobSettings, bad: list[JobFault], seed: int) -> None:
    world = FaultyRun(job, bad, seed, network=SimulatedNetwork()).to_end()
    assert world.master is not None
    assert world.master.counters.repeated == 0


@_thorough
@given(jobs(), faults(*MASTER_FAULTS), seeds)
def test_a_lost_master_costs_no_record(job: JobSettings, bad: list[JobFault], seed: int) -> None:
    world = FaultyRun(job, bad, seed, network=SimulatedNetwork()).to_end()
    assert world.master is not None
    counters = world.master.counters
    assert (counters.rolled_back, counters.updates_rolled_back, counters.partial, counters.repeated) == (0, 0, 0, 0)
    assert counters.workers_lost == 0


@_thorough
@given(jobs(), faults(*WORKER_FAULTS, "ps killed"), st.floats(0.0, 9.0), seeds)
def test_a_job_that_is_stopped_after_a_final_checkpoint_goes_on_where_it_was(
    job: JobSettings, bad: list[JobFault], at: float, seed: int
) -> None:
    """Whatever is lost before: nothing of what the ledger calls done is lost with the stop."""
    world = TrainingWorld(
        job,
        SOURCES,
        (),
        seed=seed,
        network=SimulatedNetwork(duplicate_probability=0.05, loss_probability=0.02),
        blocks=BLOCKS,
    )
    for fault in bad:
        if fault.at < at:  # later ones would hit the run that goes on
            world.clock.call_at(fault.at, lambda fault=fault: fault.apply(world))
    world.clock.call_at(at, lambda: world.post_events(StopRequested("stopped", checkpoint_seconds=10.0)))
    world.run(DAYS)
    assert world.end_command is not None
    assert world.clock.now() <= at + 10.0 + TICK
    stopped = world.end_command
    if stopped.phase == "Done":  # it was over before
        return
    master, contains_all = world.master, "contains all" in stopped.reason
    assert master is not None
    if contains_all:
        assert master.checkpoint is not None
        assert master.training_ledger is not None
        assert master.checkpoint.ledger["done_records"] == master.training_ledger.done_records
    before = master.counters.rolled_back
    world.resume_job()
    world.run(2 * DAYS)
    world.check_end()
    if contains_all:
        assert [tell.records for tell in world.emitted_events if isinstance(tell, RollbackDone)][-1] == 0
        assert world.master.counters.rolled_back == before


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.first_cases(5)
def test_a_job_in_a_storm(seed: int) -> None:
    """Forty faults in as many seconds, a slow network, and a cut every few steps."""
    chance = Random(seed)
    kinds = [*["worker killed"] * 3, *["ps killed"] * 2, *WORKER_FAULTS[1:], *MASTER_FAULTS]
    bad = [
        JobFault(chance.uniform(1, 40), chance.choice(kinds), chance.randint(0, 30), chance.random()) for _ in range(40)
    ]
    job = JobSettings(
        minibatch=4,
        task_records=16,
        epochs=2,
        evaluation_steps=chance.choice([None, 5]),
        checkpoint_steps=chance.choice([2, 4]),
        ps=chance.choice([1, 2, 2, 3]),
        workers=6,
    )
    network = SimulatedNetwork(
        max_delay=chance.choice([0.05, 0.3, 0.6]), duplicate_probability=0.05, loss_probability=0.02
    )
    FaultyRun(job, bad, seed, forgets=chance.random() < 0.5, network=network).to_end()


def test_a_run_is_a_function_of_its_seed() -> None:
    bad = [
        JobFault(1.0, "worker killed", 0, 0.0),
        JobFault(2.0, "ps killed", 1, 0.0),
        JobFault(3.0, "master killed", 0, 0.1),
    ]
    job = JobSettings(minibatch=4, task_records=24, ps=2, workers=3, checkpoint_steps=6)
    first, second = (FaultyRun(job, bad, 7).to_end() for _ in range(2))
    assert first.journal_lines == second.journal_lines


def test_the_simulation_notices_an_update_that_is_lost() -> None:
    world = TrainingWorld(JobSettings(minibatch=4, task_records=24, workers=2), SOURCES, seed=1)
    world.run(5.0)
    (ps,) = world.alive_servers()
    ps.applied_counts.pop(next(iter(ps.applied_counts)))

    def to_end() -> None:
        world.run(DAYS)  # which looks at every cut
        world.check_end()

    with pytest.raises(BrokenPromiseError, match="missing"):
        to_end()


def test_a_minibatch_that_makes_workers_crash_is_put_aside() -> None:
    job = JobSettings(minibatch=4, task_records=24, workers=2, skip_crashing=True)
    world = TrainingWorld(job, SOURCES, seed=3, poison_minibatches=frozenset({(0, "a", 40)}))
    world.run(DAYS)
    world.check_end()
    assert world.master is not None
    training = world.master.ledgers["training"]
    assert [(work.source, work.start, work.end) for work in training.quarantined_ranges] == [("a", 40, 44)]
    assert training.done_records == training.total_records - 4


@pytest.mark.parametrize("seed", range(5))
def test_a_minibatch_that_kills_its_workers_is_put_aside(seed: int) -> None:
    """They leave without a word: by a signal, or with exit code 0."""
    job = JobSettings(minibatch=4, task_records=24, workers=2, skip_crashing=True)
    world = TrainingWorld(job, SOURCES, seed=seed, lethal_minibatches=frozenset({(0, "a", 40)}))
    world.run(DAYS)
    world.check_end()
    assert world.master is not None
    training = world.master.ledgers["training"]
    assert [(work.source, work.start, work.end) for work in training.quarantined_ranges] == [("a", 40, 44)]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("first", [0, 12, 20, 24, 40, 236])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.first_cases(18)  # those of one seed
def test_a_minibatch_that_kills_workers_while_it_is_fed_ahead_is_the_one_that_is_put_aside(
    workers: int, first: int, seed: int
) -> None:
    """The one that trains meanwhile is innocent, also where it belongs to the range before."""
    job = JobSettings(minibatch=4, task_records=24, workers=workers, skip_crashing=True)
    world = TrainingWorld(job, SOURCES, seed=seed, lethal_fed=frozenset({(0, "a", first)}))
    world.run(DAYS)
    world.check_end()
    assert world.master is not None
    training = world.master.ledgers["training"]
    assert [(work.source, work.start, work.end) for work in training.quarantined_ranges] == [("a", first, first + 4)]
    assert training.done_records == training.total_records - 4
    assert world.master.counters.workers_lost == 3


def test_neighbours_that_kill_workers_while_they_are_fed_ahead_are_all_put_aside_and_nothing_else() -> None:
    job = JobSettings(minibatch=4, task_records=64, workers=1, skip_crashing=True)
    world = TrainingWorld(job, SOURCES, lethal_fed=frozenset({(0, "a", 40), (0, "a", 44), (0, "a", 52)}))
    world.run(DAYS)
    world.check_end()
    assert world.master is not None
    aside = world.master.ledgers["training"].quarantined_ranges
    assert sorted((work.start, work.end) for work in aside) == [(40, 44), (44, 48), (52, 56)]


@pytest.mark.parametrize("seed", range(10))
def test_a_minibatch_that_kills_workers_while_it_is_fed_ahead_among_other_faults(seed: int) -> None:
    """Masters that know nothing of the ends before them count anew, and blame no innocent minibatch either."""
    chance = Random(seed)
    job = JobSettings(minibatch=4, task_records=24, workers=2, ps=2, checkpoint_steps=6, skip_crashing=True)
    world = TrainingWorld(job, SOURCES, seed=seed, lethal_fed=frozenset({(0, "a", 40), (0, "b", 8)}))
    world.run(1.0)
    for _ in range(3):
        world.kill_master(0.5)
        world.run(world.clock.now() + chance.uniform(1.0, 4.0))
    world.run(DAYS)
    world.check_end()
    assert world.master is not None
    aside = world.master.ledgers["training"].quarantined_ranges
    assert sorted((work.source, work.start, work.end) for work in aside) == [("a", 40, 44), ("b", 8, 12)]


def test_a_minibatch_that_makes_workers_crash_ends_a_job_that_does_not_skip() -> None:
    world = TrainingWorld(
        JobSettings(minibatch=4, task_records=24, workers=2),
        SOURCES,
        seed=3,
        poison_minibatches=frozenset({(0, "a", 40)}),
    )
    world.run(DAYS)
    assert world.end_command is not None
    assert world.end_command.phase == "Failed"
    assert "records 40 to 43 of a" in world.end_command.reason


def test_a_shuffled_minibatch_that_makes_workers_crash_is_named_by_file_and_record() -> None:
    job = JobSettings(minibatch=4, task_records=24, workers=2, skip_crashing=True, shuffle=100)
    world = TrainingWorld(job, SOURCES, seed=3, poison_minibatches=frozenset({(0, "", 40)}), blocks=BLOCKS)
    world.run(DAYS)
    world.check_end()
    assert world.master is not None
    order = world.master.shuffle_order
    assert order is not None
    expected = order.epoch_order(0).record_ranges(40, 44)
    (entry,) = (entry for entry in world.returned_leases if entry.quarantine)
    assert entry.records == expected
    (event,) = (event for event in world.emitted_events if isinstance(event, RangeQuarantined))
    assert f"{describe_ranges(expected)} made workers crash 3 times" in event.reason
    training = world.master.ledgers["training"]
    assert [(work.source, work.start, work.end) for work in training.quarantined_ranges] == [("", 40, 44)]
    assert training.done_records == training.total_records - 4


def test_a_master_that_replays_finds_the_same_order_and_old_journals_have_none() -> None:
    job = JobSettings(minibatch=4, task_records=24, workers=2, shuffle=100)
    world = TrainingWorld(job, SOURCES, (("v", 20),), seed=3, blocks=BLOCKS)
    world.run(1.0)
    assert world.master is not None
    assert world.master.shuffle_order is not None
    assert world.master.shuffle_order.window == 96
    assert world.replayed_master.shuffle_order == world.master.shuffle_order
    fresh = JobStateMachine(job)
    fresh.replay_journal(json.loads(json.dumps(world.master.to_snapshot())), [])
    assert fresh.shuffle_order == world.master.shuffle_order
    assert fresh.to_snapshot() == world.master.to_snapshot()
    old = JobStateMachine(job)
    old.replay_journal(None, [{"kind": "dataset", "training": [["a", 260], ["b", 77]]}])
    assert old.shuffle_order is None
    work = old.ledgers["training"].next_range()
    assert work is not None
    assert work.source in ("a", "b")


def test_a_window_that_is_wanted_of_a_reader_without_random_access_ends_the_job() -> None:
    world = TrainingWorld(JobSettings(minibatch=4, task_records=24, workers=2, shuffle=100), SOURCES, seed=3)
    world.run(DAYS)
    assert world.end_command is not None
    assert world.end_command.phase == "Failed"
    assert "train.shuffle.window" in world.end_command.reason
