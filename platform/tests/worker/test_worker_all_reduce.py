"""Ranks that train together: every record is applied exactly once, whatever happens to workers and master."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event

import pytest
from support.all_reduce_job import BOUND, AllReduceJob, KilledError, Rank
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.api.journal_entries import LeaseGranted
from edl.core.rank_state import RankPhase
from edl.core.state_agreement import DIGEST_STEPS
from edl.worker.lease_client import LeasedTask


@pytest.fixture
def folder():
    with TemporaryDirectory(prefix="edl-") as path:
        yield Path(path)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_fixed_world_applies_every_record_once(folder, workers):
    with AllReduceJob(folder, epochs=2) as job:
        for _ in range(workers):
            job.start_rank()
        job.wait_for_end()


@pytest.mark.parametrize("workers", [3, *(pytest.param(workers, marks=pytest.mark.repetition) for workers in (2, 4))])
def test_in_an_undisturbed_epoch_a_rank_is_without_records_in_two_steps_at_most(folder, workers):
    with AllReduceJob(folder, 480, epochs=2, workers_min=workers, task_records=32, seconds=0.02) as job:
        ranks = [job.start_rank() for _ in range(workers)]
        job.wait_for_end()
        granted = {entry.lease: entry for entry in job.journal if isinstance(entry, LeaseGranted)}
        steps = [[granted[share.lease] for share in shares] for _, _, shares in ranks[0].made_steps]
        for epoch in range(2):
            of_epoch = [leases for leases in steps if max(lease.work[0] for lease in leases) == epoch]
            for rank in ranks:
                without = sum(rank.uid not in {lease.worker for lease in leases} for leases in of_epoch)
                assert without <= 2, (rank.uid, epoch)


def test_a_worker_that_joins_gets_the_state_and_takes_part(folder):
    with AllReduceJob(folder, records=400, seconds=0.005) as job:
        job.start_rank()
        job.wait_for_step(3)
        job.start_rank()
        job.wait_for_round(2)
        job.wait_for_end()


def test_a_killed_worker_costs_one_step(folder):
    with AllReduceJob(folder, records=400, seconds=0.005) as job:
        ranks = [job.start_rank() for _ in range(3)]
        job.wait_for_round(3)
        job.wait_for_step(5)
        job.kill(ranks[1])
        job.wait_for_end()


def test_a_worker_that_is_told_to_leave_leaves_at_a_boundary(folder):
    with AllReduceJob(folder, records=400, seconds=0.005) as job:
        ranks = [job.start_rank() for _ in range(3)]
        job.wait_for_round(3)
        job.wait_for_step(5)
        job.tell_to_leave(ranks[0])
        job.wait(ranks[0].ended.is_set)
        job.wait_for_end()


def test_an_error_in_the_minibatch_of_one_rank_names_it(folder):
    """Such as a variable that the model makes late: with their records the others make none."""
    with AllReduceJob(folder, records=400, workers_min=2) as job:

        def refuse(rank: Rank) -> None:
            def fail(point: str) -> None:
                if point == "compute" and rank.replica.updates >= 3:
                    raise BadInputError("the variable 'late/kernel' was created by a training step")

            rank.replica.fail_at = fail

        job.start_rank()
        failing = job.start_rank(refuse)
        assert failing.ended.wait(BOUND)
        error = failing.error
        assert isinstance(error, BadInputError)
        assert not missing_keys(error.message, "'late/kernel'", f"worker-{failing.index} (rank 1)")


@pytest.mark.parametrize(
    ("place", "updates", "step", "seconds"),
    [("compute", 0, 0, 0.005), ("compute", 5, 5, 0.005), ("apply", DIGEST_STEPS - 1, DIGEST_STEPS, 0.0)],
)
def test_the_master_knows_whose_main_thread_hangs(folder, place, updates, step, seconds):
    """In the first step, before which all ask whether anybody has records; later; and before states are compared."""
    with AllReduceJob(folder, records=1400 if step > 5 else 400, seconds=seconds, workers_min=3) as job:
        goes_on = threading.Event()

        def hang(rank: Rank) -> None:
            def wait(point: str) -> None:
                if point == place and rank.replica.updates == updates:
                    goes_on.wait(BOUND)

            rank.replica.fail_at = wait

        job.start_rank()
        job.start_rank()
        slow = job.start_rank(hang)
        arrivals = job.state.step_arrivals
        # Before it hangs, a rank may be behind for a moment, too.
        job.wait(lambda: arrivals.find_late([rank.uid for rank in job.ranks]) == [slow.uid] and arrivals.step == step)
        goes_on.set()
        job.wait_for_end()


def test_a_round_goes_on_without_a_master(folder):
    with AllReduceJob(folder, records=1200, seconds=0.005, task_records=200) as job:
        ranks = [job.start_rank() for _ in range(2)]
        job.wait_for_round(2)
        job.wait_for_step(3)
        # Only the master tells a rank that its round has started.
        job.wait(lambda: all(rank.world.phase is RankPhase.RUNNING for rank in ranks))
        job.stop_master()
        step = ranks[0].world.step
        job.wait(lambda: ranks[0].world.step > step)
        job.start_master()
        job.wait_for_end()


def test_the_late_end_of_a_round_does_not_break_the_next_one(folder):
    with AllReduceJob(folder, records=1200, seconds=0.003) as job:
        first = job.start_rank()
        job.wait_for_step(3)
        ended = first.world.round
        job.start_rank()
        job.wait_for_round(2)
        number = job.state.world.round
        assert number > ended
        first.connection.abort(ended, "a message about the round before")
        job.wait_for_step(job.state.step + 10)
        assert job.state.world.round == number
        job.hurry()
        job.wait_for_end()


@pytest.mark.repetition
def test_a_worker_is_killed_while_there_is_no_master(folder):
    with AllReduceJob(folder, records=400, seconds=0.005) as job:
        ranks = [job.start_rank() for _ in range(3)]
        job.wait_for_round(3)
        job.wait_for_step(3)
        job.stop_master()
        job.kill(ranks[2])
        job.start_master()
        job.wait_for_end()


def test_training_starts_again_when_all_workers_are_lost(folder):
    with AllReduceJob(folder, records=1200, seconds=0.005) as job:
        ranks = [job.start_rank() for _ in range(2)]
        job.wait_for_step(3)
        for rank in ranks:
            job.kill(rank)
        job.wait(lambda: all(rank.ended.is_set() for rank in ranks))
        for _ in range(3):
            job.start_rank()
        job.wait_for_end()
        assert job.state.counters.rolled_back > 0


def test_max_steps_counts_the_updates_of_all_workers(folder):
    with AllReduceJob(folder, records=400, max_steps=7, workers_min=2) as job:
        ranks = [job.start_rank() for _ in range(2)]
        job.wait(lambda: job.end is not None)
        assert job.end.phase == "Done"
        assert [rank.replica.updates for rank in ranks] == [7, 7]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("workers", [1, 3])
def test_all_ranks_pause_for_an_evaluation_and_have_the_same_variables(folder, workers):
    settings = {"validation": 64, "evaluation_steps": 10, "evaluation_workers": 0}
    with AllReduceJob(folder, records=400, seconds=0.001, **settings) as job:
        for _ in range(workers):
            job.start_rank()
        job.wait_for_end()
        begun = [entry.step for entry in job.journal if entry.kind == "evaluation"]
        assert begun[-1] == job.state.step
        assert begun[:-1] == list(range(10, job.state.step, 10))
        # All ranges of one evaluation were evaluated with one state, whoever did it.
        totals: dict[int, set[float]] = {}
        for _, step, total in job.evaluated:
            totals.setdefault(step, set()).add(total)
        assert sorted(totals) == begun
        assert all(len(step_totals) == 1 for step_totals in totals.values())


def test_the_step_of_max_steps_is_evaluated_once(folder):
    with AllReduceJob(folder, records=400, validation=64, evaluation_steps=5, max_steps=10) as job:
        job.start_rank()
        job.wait(lambda: job.end is not None)
        assert [entry.step for entry in job.journal if entry.kind == "evaluation"] == [5, 10]


def test_an_evaluating_worker_is_killed(folder):
    settings = {"validation": 640, "evaluation_steps": 10, "evaluation_workers": 0}
    with AllReduceJob(folder, records=600, seconds=0.001, **settings) as job:
        ranks = [job.start_rank() for _ in range(3)]
        job.wait(lambda: any(uid == "w1" for uid, _, _ in job.evaluated))
        job.kill(ranks[1])
        job.wait_for_end()
        totals: dict[int, set[float]] = {}
        for _, step, total in job.evaluated:
            totals.setdefault(step, set()).add(total)
        assert all(len(step_totals) == 1 for step_totals in totals.values())


@pytest.mark.repetition
def test_a_worker_that_is_told_to_leave_during_an_evaluation_leaves_at_a_boundary(folder):
    with AllReduceJob(folder, records=400, validation=320, evaluation_steps=20, evaluation_workers=0) as job:
        job.evaluation_seconds = 0.05
        ranks = [job.start_rank() for _ in range(3)]
        job.wait(lambda: {uid for uid, _, _ in job.evaluated} == {"w0", "w1", "w2"})
        job.tell_to_leave(ranks[1])
        job.wait(ranks[1].ended.is_set)
        job.wait_for_end()
        reasons = [entry.reason for entry in job.journal if entry.kind == "world"]
        assert reasons[-1] == "w1 leaves"


def test_a_task_waits_until_its_worker_has_entered_the_next_round(folder):
    """A task may take longer than the ten seconds in which the members must connect."""
    begun_in = []

    def queue_task_when_a_round_ends(rank: Rank) -> None:
        end_round, run_task = rank.world.end_round, rank.loop._run_task
        task = LeasedTask(1 << 40, "evaluation")

        def end_and_queue() -> None:
            end_round()
            if not begun_in:
                rank.leases._enqueue_task(task)

        def note_phase(other: LeasedTask) -> int | None:
            if other is not task:
                return run_task(other)
            begun_in.append(rank.world.phase)
            return None

        rank.world.end_round, rank.loop._run_task = end_and_queue, note_phase

    with AllReduceJob(folder, records=400, seconds=0.005) as job:
        job.start_rank(queue_task_when_a_round_ends)
        job.wait_for_step(3)
        job.start_rank()
        job.wait_for_round(2)
        job.wait(lambda: begun_in)
        assert begun_in[0] in (RankPhase.CONFIRMED, RankPhase.RUNNING)
        job.wait_for_end()


def test_a_worker_that_is_alone_leaves_at_once(folder):
    """Nobody is there who could take its state over."""
    with AllReduceJob(folder, records=4000, seconds=0.002) as job:
        rank = job.start_rank()
        job.wait_for_step(3)
        job.tell_to_leave(rank)
        job.wait(rank.ended.is_set, seconds=2.0)


def test_a_round_that_breaks_when_the_job_is_done_waits_for_no_master(folder):
    with AllReduceJob(folder, records=96) as job:
        ranks = [job.start_rank() for _ in range(2)]
        job.wait(lambda: job.end is not None)
        # The master is gone when the ring breaks, and only the answer that there is no more work has arrived.
        job.stop_master()
        for rank in ranks:
            rank.leases.stop()
        job.wait(lambda: all(rank.ended.is_set() for rank in ranks), seconds=10)


@pytest.mark.repetition
def test_leases_of_one_step_do_not_hold_a_rank_up(folder):
    with AllReduceJob(folder, records=800, task_records=4) as job:
        job.start_rank()
        job.wait_for_step(1)
        began = time.monotonic()
        job.wait_for_step(150)
        # Three leases for each report of rank 0, every 0.2 s, would take 10 s.
        assert time.monotonic() - began < 7


def kill_at(job: AllReduceJob, point: str, call: int):
    """Make a rank die the ``call``-th time that it reaches a point of a step."""

    def prepare(rank: Rank) -> None:
        left = [call]

        def fail(reached: str) -> None:
            if reached == point:
                left[0] -= 1
                if left[0] == 0:
                    job.kill(rank)
                    raise KilledError

        rank.replica.fail_at = fail

    return prepare


def deadly(job: AllReduceJob, record: int):
    """Make the minibatch with this record kill a rank."""

    def prepare(rank: Rank) -> None:
        compute = rank.replica.compute

        def kill_or_compute(features, labels, weights, *, adds=False):
            if record in features:
                job.kill(rank)
                raise KilledError
            return compute(features, labels, weights, adds=adds)

        rank.replica.compute = kill_or_compute

    return prepare


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("workers", [1, 3])
def test_a_minibatch_that_kills_its_workers_is_found(folder, workers):
    with AllReduceJob(folder, records=800, seconds=0.001) as job:
        for _ in range(workers):
            job.start_rank(deadly(job, 90))
        while job.end is None:
            job.wait(lambda: job.end is not None or len(job.living_ranks()) < workers)
            if job.end is None:
                job.start_rank(deadly(job, 90))
        assert job.end.phase == "Failed"
        assert not missing_keys(job.end.reason, "records 88 to 91 of a", "made workers crash", "times")
        assert len(job.ranks) <= workers + 6


@pytest.mark.repetition
def test_a_minibatch_that_kills_its_workers_is_skipped_if_the_job_says_so(folder):
    with AllReduceJob(folder, records=200, seconds=0.001, skip_crashing=True) as job:
        for _ in range(2):
            job.start_rank(deadly(job, 90))
        while job.end is None:
            job.wait(lambda: job.end is not None or len(job.living_ranks()) < 2)
            if job.end is None:
                job.start_rank(deadly(job, 90))
        assert job.end.phase == "Done"
        expected = [0 if 88 <= record < 92 else 1 for record in range(200)]
        for rank in job.living_ranks():
            if rank.replica.updates:
                assert list(rank.replica.counts) == expected


@pytest.mark.repetition
def test_three_workers_that_are_killed_at_once_are_no_failure(folder):
    with AllReduceJob(folder, records=600, seconds=0.003) as job:
        ranks = [job.start_rank() for _ in range(4)]
        job.wait_for_round(4)
        job.wait_for_step(5)
        for rank in ranks[1:]:
            job.kill(rank)
        for _ in range(3):
            job.start_rank()
        job.wait_for_end()


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("victims", [1, 2])
@pytest.mark.parametrize("point", ["compute", "reduce", "apply", "applied"])
def test_workers_die_at_each_point_of_a_step(folder, point, victims):
    with AllReduceJob(folder, records=400, seconds=0.003) as job:
        for number in range(victims):
            job.start_rank(kill_at(job, point, 6 + number))
        for _ in range(2):
            job.start_rank()
        job.wait_for_end()


def test_an_abandoned_step_leaves_no_trace_on_the_survivor(folder):
    """It computes the same minibatch again, and must draw the same random numbers for it."""
    with AllReduceJob(folder, records=400, workers_min=2) as job:
        survivor = job.start_rank()
        job.start_rank(kill_at(job, "compute", 6))
        job.wait_killed(job.ranks[1])
        job.start_rank()
        job.wait_for_end()
        own = {entry.lease for entry in job.journal if entry.kind == "leased" and entry.worker == survivor.uid}
        minibatches = [share for _, _, shares in survivor.made_steps for share in shares if share.lease in own]
        assert survivor.replica.draws == len(minibatches)


@pytest.mark.parametrize("point", ["apply", "applied"])
def test_all_but_one_die_at_one_point_of_a_step(folder, point):
    with AllReduceJob(folder, records=400, seconds=0.003) as job:
        for _ in range(3):
            job.start_rank(kill_at(job, point, 5))
        job.start_rank()
        job.wait_for_end()


def test_a_joiner_dies_while_it_fetches(folder):
    with AllReduceJob(folder, records=3000, seconds=0.003) as job:
        for _ in range(2):
            job.start_rank()
        job.wait_for_step(3)
        job.start_rank(kill_at(job, "fetched", 1))
        job.wait_killed(job.ranks[2])
        job.start_rank()
        job.wait_for_end()


def test_the_source_of_a_joiner_dies(folder):
    with AllReduceJob(folder, records=600, seconds=0.003) as job:
        first = [job.start_rank() for _ in range(2)]
        job.wait_for_step(3)

        def kill_the_source(rank: Rank) -> None:
            rank.replica.fail_at = lambda point: job.kill(first[0]) if point == "fetched" else None

        job.start_rank(kill_the_source)
        job.wait_for_end()


def test_a_stopped_worker_is_lost_and_comes_back(folder):
    with AllReduceJob(folder, records=3000, seconds=0.003) as job:
        resume, is_stopped = Event(), Event()

        def stop_once(rank: Rank) -> None:
            def stop(point: str) -> None:
                if point == "compute" and rank.world.step >= 8 and not is_stopped.is_set():
                    is_stopped.set()
                    job.silent.add(rank.uid)
                    rank.connection.abort(rank.world.round, "its neighbours hear nothing from it")
                    resume.wait(20)
                    job.silent.discard(rank.uid)

            rank.replica.fail_at = stop

        job.start_rank(stop_once)
        for _ in range(2):
            job.start_rank()
        job.wait(is_stopped.is_set)
        job.wait_for_round(2)
        resume.set()
        job.wait_for_round(3)
        job.hurry()
        job.wait_for_end()


@pytest.mark.repetition
def test_a_worker_whose_state_does_not_count_builds_the_initial_one_when_all_others_are_lost(folder):
    with AllReduceJob(folder, records=800, seconds=0.003) as job:
        resume, is_stopped = Event(), Event()

        def stop_once(rank: Rank) -> None:
            def stop(point: str) -> None:
                if point == "compute" and rank.world.step >= 8 and not is_stopped.is_set():
                    is_stopped.set()
                    job.silent.add(rank.uid)
                    rank.connection.abort(rank.world.round, "its neighbours hear nothing from it")
                    resume.wait(20)
                    job.silent.discard(rank.uid)

            rank.replica.fail_at = stop

        job.start_rank(stop_once)
        other = job.start_rank()
        job.wait(is_stopped.is_set)
        job.wait_for_round(1)
        job.wait_for_step(12)
        job.kill(other)
        resume.set()
        job.wait_for_end()


@pytest.mark.repetition
def test_a_joiner_gets_the_shares_of_many_steps_that_no_master_has_acknowledged(folder, monkeypatch):
    # As if there were a thousand ranks, or no master for a minute.
    monkeypatch.setattr("edl.collective.communicator.MAX_CONTROL_BYTES", 2048)
    # A lease of each rank has 400 steps.
    with AllReduceJob(folder, records=3200, task_records=1600, seconds=0.001, workers_min=2) as job:
        ranks = [job.start_rank() for _ in range(2)]
        job.wait_for_step(3)
        job.stop_master()
        step = ranks[0].world.step
        job.wait(lambda: ranks[0].world.step > step + 100)
        job.kill(ranks[1])
        job.start_rank()
        job.start_master()
        job.wait_for_end()


def test_the_master_is_replaced_during_a_change_of_the_world(folder):
    with AllReduceJob(folder, records=1200, seconds=0.003) as job:
        ranks = [job.start_rank() for _ in range(3)]
        job.wait_for_round(3)
        for rank in ranks[:2]:
            job.kill(rank)
            job.stop_master()
            job.start_master()
        job.start_rank()
        job.wait_for_end()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.repetition) for seed in range(2, 6))])
def test_random_faults(folder, seed):
    random = Random(seed)
    with AllReduceJob(folder, records=1600, seconds=0.002, workers=6) as job:
        for _ in range(3):
            job.start_rank()
        job.wait_for_step(2)
        while job.end is None and len(job.ranks) < 14:
            living = [
                rank for rank in job.ranks if not rank.is_killed and not rank.ended.is_set() and not rank.gate.closed
            ]
            fault = random.choice(("kill", "leave", "join", "join", "master"))
            if fault == "kill" and len(living) > 1:
                job.kill(random.choice(living))
            elif fault == "leave" and len(living) > 1:
                job.tell_to_leave(random.choice(living))
            elif fault == "master":
                job.stop_master()
                job.start_master()
            else:
                job.start_rank()
            reached = job.state.step + random.randint(0, 6)
            job.wait(lambda reached=reached: job.end is not None or job.state.step >= reached)
        job.wait_for_end()


@pytest.mark.parametrize(
    "seconds", [pytest.param(10, marks=pytest.mark.repetition), pytest.param(60, marks=pytest.mark.thorough)]
)
def test_twenty_ranks_of_which_one_is_killed_every_second(folder, seconds):
    """Nobody hangs, every record is applied once, and all ranks have the same state in the end.

    The cluster gives the cause. Without one, kills that come faster than steps accuse a minibatch sooner or later.
    """
    random, workers = Random(0), 20
    with AllReduceJob(folder, records=1800, epochs=1000, seconds=0.05, workers=workers) as job:
        for _ in range(workers):
            job.start_rank()
        job.wait_for_step(3)
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            assert job.end is None, job.end
            job.kill(random.choice([rank for rank in job.living_ranks() if not rank.ended.is_set()]), is_preempted=True)
            job.start_rank()
            job.wait_for_seconds(1.0)
        job.end_with_this_epoch()
        job.wait_for_end(seconds=120)
        assert job.state.counters.rolled_back == 0
