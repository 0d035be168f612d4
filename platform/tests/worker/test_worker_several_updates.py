"""Steps of several updates: a step counts with its last reduction, and until then it leaves no trace."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from support.all_reduce_job import BOUND, KilledError, Rank
from support.two_updates import TwoUpdatesJob, TwoUpdatesReplica

from edl.api.journal_entries import WorldAnnounced
from edl.core.world_rounds import StepShares
from edl.storage.checkpoint_manifest import CheckpointManifest, cut_directory, load_manifest
from edl.storage.checkpoint_shards import read_shard


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="edl-") as path:
        yield Path(path)


def kill_at(job: TwoUpdatesJob, rank: Rank, point: str, *, update: int = 4) -> None:
    """Kill a rank when it is at this point of its step with this number."""

    def fail(reached: str) -> None:
        if reached == point and rank.replica.updates >= update:
            job.kill(rank)
            raise KilledError

    rank.replica.fail_at = fail


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_second_update_sees_the_first_one_of_its_step(folder: Path, workers: int) -> None:
    with TwoUpdatesJob(folder, epochs=2) as job:
        for _ in range(workers):
            job.start_rank()
        job.wait_for_end()


@pytest.mark.parametrize("global_batch", [10])
def test_a_global_batch_is_computed_in_minibatches_for_each_update(folder: Path, global_batch: int) -> None:
    with TwoUpdatesJob(folder, records=150, epochs=2, global_batch=global_batch) as job:
        for _ in range(2):
            job.start_rank()
        job.wait_for_end()


@pytest.mark.first_cases(3)
@pytest.mark.parametrize(
    "point", ["compute", "reduce", "apply", "applied", "compute second", "reduce second", "apply second"]
)
def test_a_rank_is_killed_within_a_step(folder: Path, point: str) -> None:
    with TwoUpdatesJob(folder, records=400, seconds=0.002) as job:
        ranks = [job.start_rank() for _ in range(3)]
        job.wait_for_round(3)
        kill_at(job, ranks[1], point)
        job.wait_killed(ranks[1])
        job.wait_for_end()


def test_the_survivors_of_a_broken_step_put_their_state_back(folder: Path) -> None:
    """Between the reductions all ranks have made the first update; the next round begins with the step before."""
    with TwoUpdatesJob(folder, records=1000, seconds=0.002) as job:
        ranks = [job.start_rank() for _ in range(2)]
        job.wait_for_round(2)
        survivor = ranks[0].replica
        assert isinstance(survivor, TwoUpdatesReplica)
        restored: list[tuple[float, float]] = []
        restore = survivor.restore_statistics

        def restore_and_note() -> None:
            before = survivor.counts.sum()
            restore()
            made_records = sum(share.end - share.start for _, _, shares in ranks[0].made_steps for share in shares)
            restored.append((before - made_records, survivor.counts.sum() - made_records))

        survivor.restore_statistics = restore_and_note  # type: ignore[method-assign]
        kill_at(job, ranks[1], "compute second")
        job.wait_killed(ranks[1])
        job.wait_for_round(1)
        too_many, left = next(each for each in restored if each[0])
        # Of the step that broke.
        assert 4 <= too_many <= 8
        assert left == 0
        job.wait_for_end()


def test_the_master_knows_whose_main_thread_hangs_between_two_updates(folder: Path) -> None:
    with TwoUpdatesJob(folder, records=400, workers_min=3) as job:
        goes_on = threading.Event()

        def hang(rank: Rank) -> None:
            def wait(point: str) -> None:
                if point == "compute second" and rank.replica.updates == 5:
                    goes_on.wait(BOUND)

            rank.replica.fail_at = wait

        job.start_rank()
        job.start_rank()
        slow = job.start_rank(hang)
        job.wait(lambda: job.state.step_arrivals.find_late([rank.uid for rank in job.ranks]) == [slow.uid])
        goes_on.set()
        job.wait_for_end()


def test_a_worker_follows_a_round_and_joins(folder: Path) -> None:
    with TwoUpdatesJob(folder, records=2000, seconds=0.003) as job:
        first = [job.start_rank() for _ in range(2)]
        job.wait_for_round(2)
        job.wait_for_step(3)
        fetched: list[str] = []
        for rank in first:
            rank.replica.fail_at = lambda point: fetched.append(point) if point == "fetched" else None
        joined = job.start_rank()
        job.wait_for_round(3)
        job.wait_for_end()
        entry = next(e for e in job.journal if isinstance(e, WorldAnnounced) and joined.uid in e.members)
        # It had the newest state, of all updates that it has followed.
        assert joined.uid in entry.holders
        assert not fetched


def test_a_rank_without_records_makes_all_updates(folder: Path) -> None:
    # The lease of 16 records is of one rank; the other one adds zeros.
    with TwoUpdatesJob(folder, records=32, task_records=32, minibatch=4, epochs=3) as job:
        ranks = [job.start_rank() for _ in range(2)]
        job.wait_for_end()
        assert all(rank.replica.updates == 24 for rank in ranks if rank.replica.updates)


@pytest.mark.parametrize("poor", [0, 17])
def test_a_step_whose_second_gradient_is_not_finite_is_undone_on_all_ranks(folder: Path, poor: int) -> None:
    records = 96
    with TwoUpdatesJob(folder, records) as job:
        job.skip_nan = True

        def spoil(rank: Rank) -> None:
            assert isinstance(rank.replica, TwoUpdatesReplica)
            rank.replica.is_poor = lambda record: record == poor

        for _ in range(2):
            job.start_rank(spoil)
        job.wait(lambda: job.end is not None)
        for rank in job.ranks:
            rank.ended.wait(60)
            assert rank.error is None, rank.error
        replicas = [rank.replica for rank in job.ranks if rank.replica.updates]
        for replica in replicas:
            assert isinstance(replica, TwoUpdatesReplica)
            # Of the skipped step nothing is left, also not its first update.
            np.testing.assert_array_equal(replica.sums, replica.counts)
            assert replica.counts[poor] == 0
            assert records - 8 <= replica.counts.sum() < records
        assert len({replica.pack_state().tobytes() for replica in replicas}) == 1
        assert job.state.counters.updates_skipped == 1


def test_skipped_steps_are_counted_once_over_lost_ranks_and_masters(folder: Path) -> None:
    skipped_by_step: dict[int, bool] = {}

    def prepare(rank: Rank) -> None:
        assert isinstance(rank.replica, TwoUpdatesReplica)
        rank.replica.is_poor = lambda record: record % 40 == 7
        apply_step = rank.world.apply_step

        def apply_and_note(shares: StepShares, loss: float | None, **named: bool) -> None:
            apply_step(shares, loss, **named)
            if shares:
                # A step that broke on all ranks that had it is made again.
                skipped_by_step[rank.world.step] = named["is_skipped"]

        rank.world.apply_step = apply_and_note  # type: ignore[method-assign]

    with TwoUpdatesJob(folder, records=1200, seconds=0.002, workers=6) as job:
        job.skip_nan = True
        # One rank lives to the end: without any state, the steps would be made again from the start.
        for _ in range(3):
            job.start_rank(prepare)
        for at, fault in enumerate(("kill", "master", "kill", "leave"), 1):
            job.wait_for_step(12 * at)
            if fault == "master":
                job.stop_master()
                job.start_master()
            else:
                (job.kill if fault == "kill" else job.tell_to_leave)(job.ranks[at])
            job.start_rank(prepare)
        job.wait(lambda: job.end is not None)
        assert job.end is not None
        assert job.end.phase == "Done", job.end
        assert sum(skipped_by_step.values()) > 8
        assert job.state.counters.updates_skipped == sum(skipped_by_step.values())


def test_a_gradient_that_is_not_finite_ends_the_job_if_it_must(folder: Path) -> None:
    with TwoUpdatesJob(folder) as job:
        (rank,) = [job.start_rank(lambda rank: setattr(rank.replica, "is_poor", lambda record: record == 5))]
        rank.ended.wait(60)
        assert "sums" in str(rank.error)
        assert "not finite" in str(rank.error)
        assert "of rank 0" in str(rank.error)


def test_a_checkpoint_has_both_updates_of_its_steps(folder: Path) -> None:
    with TwoUpdatesJob(folder, records=400, seconds=0.002, durable=True, checkpoint_steps=7) as job:
        for _ in range(2):
            job.start_rank()
        job.wait_for_end()
        job.wait(lambda: job.state.checkpoint is not None)
        assert job.state.checkpoint is not None
        directory = cut_directory(job.checkpoints.directory, job.state.checkpoint.cut)
        manifest = load_manifest(directory)
        assert isinstance(manifest, CheckpointManifest)
        arrays, _ = read_shard(directory / manifest.shards[0].file)
        np.testing.assert_array_equal(arrays["sums"], arrays["counts"])
        assert manifest.step == int(arrays["updates"][0])


@pytest.mark.parametrize("wire_type", ["bfloat16"])
def test_compressed_gradients_need_a_float32_gradient_in_each_update(folder: Path, wire_type: str) -> None:
    with TwoUpdatesJob(folder) as job:
        job.gradient_compression = wire_type
        with pytest.raises(Exception, match="float32"):
            job.start_rank()
