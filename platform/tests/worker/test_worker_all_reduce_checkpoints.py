"""Checkpoints of ranks that train together: each has exactly the records that its ledger calls done."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from support.all_reduce_job import BOUND, AllReduceJob, KilledError, Rank

from edl.api.errors import RetryableError, StorageError
from edl.api.run_events import WarningRaised
from edl.core.events import StopRequested, WorldReported, WorldView
from edl.core.ledger import TRAINING, Ledger
from edl.core.rank_state import RankPhase
from edl.core.world_rounds import RoundPhase
from edl.storage.checkpoint_manifest import (
    CheckpointManifest,
    SkippedCheckpoint,
    committed_cuts,
    cut_directory,
    load_manifest,
)
from edl.storage.checkpoint_shards import read_shard, shard_path
from edl.worker.allreduce import checkpoint_writer
from edl.worker.allreduce.step_message import StepMessage


@pytest.fixture
def folder():
    with TemporaryDirectory(prefix="edl-") as path:
        yield Path(path)


class CheckedJob(AllReduceJob):
    """A job that compares every checkpoint with its ledger, once it is committed."""

    def __init__(self, folder: Path, records: int = 400, **settings) -> None:
        self.checked: list[int] = []
        self.shard_counts: dict[int, int] = {}
        """By step."""
        self.mistakes: list[str] = []
        self.damaged: set[int] = set()
        self.hold_manifest: Callable[[], bool] = lambda: False
        """Whether the master's thread that writes manifests has to wait."""
        super().__init__(folder, records, **({"durable": True, "checkpoint_steps": 7} | settings))

    def check_saved(self, cut: int) -> None:
        while self.hold_manifest():
            time.sleep(0.001)
        self.checked.append(self._read_step(cut))

    def _read_step(self, cut: int) -> int:
        """The step of a checkpoint that has the right records; -1 if the checkpoint was removed."""
        directory = cut_directory(self.checkpoints.directory, cut)
        manifest = load_manifest(directory)
        if isinstance(manifest, SkippedCheckpoint):
            return -1
        try:
            assert isinstance(manifest, CheckpointManifest)
            arrays = {}
            for shard in manifest.shards:
                arrays |= read_shard(directory / shard.file)[0]
            self.shard_counts[manifest.step] = len(manifest.shards)
        except StorageError as error:
            # The master has removed it already, or the test has damaged it.
            if isinstance(load_manifest(directory), SkippedCheckpoint) or cut in self.damaged:
                return -1
            raise AssertionError(f"checkpoint {cut}") from error
        expected = np.full(self.records, 1.0)
        for start, end in pending_ranges(self.state.ledgers[TRAINING].empty_copy(), manifest.ledger):
            expected[start:end] = 0
        if not np.array_equal(arrays["counts"], expected) or int(arrays["updates"][0]) != manifest.step:
            self.mistakes.append(f"checkpoint {cut} of step {manifest.step}")
        return manifest.step

    def wait_for_checkpoint(self, step: int) -> None:
        """Wait until a checkpoint of a step from ``step`` on is on disk."""
        self.wait(lambda: self.state.checkpoint is not None and self.state.checkpoint.step >= step)

    def run_with_faults(self, seed: int) -> None:
        """Run to the end while ranks are killed, one or all, leave and come, and the master is replaced."""
        random = Random(seed)
        for _ in range(3):
            self.start_rank()
        self.wait_for_step(2)
        while self.end is None and len(self.ranks) < 14:
            living = self.training_ranks()
            fault = random.choice(("kill", "kill all", "leave", "join", "join", "master"))
            if fault == "kill" and living:
                self.kill(random.choice(living))
            elif fault == "kill all":
                for rank in living:
                    self.kill(rank)
                self.start_rank()
            elif fault == "leave" and len(living) > 1:
                self.tell_to_leave(random.choice(living))
            elif fault == "master":
                self.stop_master()
                self.start_master()
            if fault == "join" or not living:
                self.start_rank()
            reached = self.state.step + random.randint(0, 6)
            self.wait(
                lambda reached=reached: self.end is not None or self.state.step >= reached or not self.training_ranks()
            )
        if not self.training_ranks():
            self.start_rank()
        self.wait_for_end()

    def training_ranks(self) -> list[Rank]:
        """The ranks that train, or will."""
        return [rank for rank in self.ranks if not rank.is_killed and not rank.ended.is_set() and not rank.gate.closed]

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        assert not self.mistakes, self.mistakes


def pending_ranges(ledger: Ledger, snapshot) -> list[tuple[int, int]]:
    """The records that a ledger calls not done."""
    ledger.restore_snapshot(snapshot)
    ranges = []
    while (work := ledger.next_range(worker="w")) is not None:
        number = len(ranges) + 1
        ledger.grant_range(number, work, "w")
        ranges.append((work.start, work.end))
    return ranges


def must_copy_at(rank: Rank, step: int) -> bool:
    """Whether a rank has heard of the checkpoint of this step."""
    order = rank.world.view.checkpoint
    return order is not None and order.at_step == step


def await_orders(job: AllReduceJob, rank: Rank, *, ahead: int = 0) -> None:
    """Let a rank wait before each step at which a checkpoint is due, until rank 0 has heard of it.

    On a busy machine the checkpoint before may not be on disk yet. Then the next one is late.

    Args:
        ahead: so many steps earlier.
    """
    every, prepare = job.settings.checkpoint_steps, rank.loop._prepare

    def wait_and_prepare(*, wait: bool) -> StepMessage:
        # Also without records, when the rank computes nothing.
        step = rank.world.step + 1 + ahead
        if rank.world.rank == 0 and step % every == 0:
            job.wait(lambda: rank.is_killed or must_copy_at(rank, step))
        return prepare(wait=wait)

    rank.loop._prepare = wait_and_prepare


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("workers", [1, 3])
def test_checkpoints_are_taken_at_their_steps_while_training_goes_on(folder, workers):
    # A worker that joins in the step of a checkpoint would delay it: training begins with all.
    with CheckedJob(folder, records=400 * workers, seconds=0.01, checkpoint_steps=40, workers_min=workers) as job:
        for _ in range(workers):
            job.start_rank(partial(await_orders, job))
        job.wait_for_end()
        last = job.state.step
    # The first one is asked for when the round has begun.
    first, *periodic, final = job.checked
    assert first < 40
    assert periodic == list(range(40, last, 40))
    assert final == last


def test_a_checkpoint_of_which_rank_0_hears_late_is_taken_at_once_and_the_next_one_at_its_step(folder):
    with CheckedJob(folder, records=800, seconds=0.002, checkpoint_steps=40) as job:
        job.hold_manifest = lambda: job.ranks[0].world.step < 45 and not job.ranks[0].is_killed
        rank = job.start_rank()
        job.wait_for_checkpoint(0)
        await_orders(job, rank)
        job.wait_for_end()
    first, late, *periodic, _ = job.checked
    assert (first < 40, late >= 45) == (True, True)
    assert periodic == list(range((late // 40 + 1) * 40, job.state.step, 40))


@pytest.mark.repetition
@pytest.mark.parametrize("before", [1, 0])
def test_a_worker_that_joins_when_a_checkpoint_is_due_does_not_delay_it(folder, before):
    """Rank 0 confirms last, and after the answer hears nothing until it has made the step that is due.

    If the answer named the order of the round before, it would copy in vain, and again a step later.

    Args:
        before: steps from the boundary to the step of the checkpoint.
    """
    every, joined_at, answers = 10, [], []
    with CheckedJob(folder, records=2000, seconds=0.002, checkpoint_steps=every) as job:

        def await_joiner(first: Rank, point: str) -> None:
            step, others = first.world.step + 1, job.ranks[1:]
            is_followed = bool(others) and others[0].world.phase is RankPhase.CAUGHT_UP
            if point == "compute" and not joined_at and is_followed and (step + before) % every == 0:
                job.wait(lambda: first.is_killed or must_copy_at(first, step + before))
                joined_at.append(step)
                job.wait(lambda: first.is_killed or first.world.view.must_change)

        def delay_report(event: WorldReported) -> None:
            first, rounds = job.ranks[0], job.state.world
            if event.phase is RankPhase.CAUGHT_UP and not joined_at:
                raise RetryableError("the joiner's message is late")
            if event.worker == first.uid and event.phase is RankPhase.CONFIRMED and event.round.number == 2:
                job.changed.wait_for(lambda: first.is_killed or len(rounds.confirmed) >= 1, BOUND)

        def delay_answer(worker: str, view: WorldView) -> None:
            first, is_running = job.ranks[0], view.phase is RoundPhase.RUNNING and view.round.number == 2
            if worker == first.uid and is_running and answers and first.world.step <= joined_at[0] + before:
                raise RetryableError("an answer to rank 0 is late")
            if worker == first.uid and is_running:
                answers.append(view)

        job.before_report, job.before_answer = delay_report, delay_answer
        job.start_rank(lambda rank: setattr(rank.replica, "fail_at", partial(await_joiner, rank)))
        job.start_rank()
        job.wait_for_end()
    assert joined_at[0] + before in job.checked


@pytest.mark.repetition
def test_checkpoints_with_a_global_batch_have_the_records_of_their_ledger(folder):
    with CheckedJob(folder, records=1203, seconds=0.002, global_batch=10) as job:
        first = [job.start_rank() for _ in range(3)]
        job.wait_for_checkpoint(14)
        job.start_rank()
        job.wait_for_checkpoint(28)
        for rank in job.ranks:
            job.kill(rank, is_preempted=True)
        job.wait(lambda: all(rank.ended.is_set() for rank in first))
        job.start_rank()
        job.start_rank()
        job.wait_for_end()
    assert job.checked[-1] == job.state.step >= 121
    assert job.state.counters.rolled_back % 10 == 0


def test_all_workers_are_lost_and_training_goes_on_from_the_checkpoint(folder):
    with CheckedJob(folder, records=2000, seconds=0.005) as job:
        first = [job.start_rank() for _ in range(2)]
        job.wait_for_checkpoint(14)
        for rank in first:
            job.kill(rank)
        loads: list[str] = []

        def watch(rank: Rank) -> None:
            rank.replica.fail_at = lambda point: loads.append(point) if point == "load" else None

        job.start_rank(watch)
        job.start_rank(watch)
        job.wait_for_end()
    assert loads == ["load"]
    assert 0 < job.state.counters.rolled_back < job.records


def test_a_new_master_goes_on_from_the_checkpoint_with_other_workers(folder):
    with CheckedJob(folder, records=4000, seconds=0.005) as job:
        ranks = [job.start_rank() for _ in range(3)]
        job.wait_for_checkpoint(14)
        job.stop_master()
        for rank in ranks:
            job.kill(rank)
        job.start_master()
        job.hurry()
        job.start_rank()
        job.wait_for_end()


def test_the_writer_is_killed_while_it_writes(folder, monkeypatch):
    with CheckedJob(folder, records=2000, seconds=0.005) as job:
        ranks = [job.start_rank() for _ in range(2)]
        job.wait_for_checkpoint(7)

        def die(point: str) -> None:
            if point == "copy":
                job.kill(writer)
                raise KilledError

        members = job.state.world.members
        writer = next(rank for rank in ranks if rank.uid == members[0])
        writer.replica.fail_at = die
        job.wait_killed(writer)
        job.hurry()
        job.wait_for_end()
    assert job.checked[-1] == job.state.step


def test_a_damaged_checkpoint_is_replaced_by_the_one_before(folder):
    with CheckedJob(folder, records=4000, seconds=0.005) as job:
        ranks = [job.start_rank() for _ in range(2)]
        job.wait_for_checkpoint(14)
        job.stop_master()
        for rank in ranks:
            job.kill(rank)
        newest = committed_cuts(job.checkpoints.directory)[-1]
        job.damaged.add(newest)
        path = shard_path(cut_directory(job.checkpoints.directory, newest), 0)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        job.start_master()
        job.hurry()
        job.start_rank()
        job.wait_for_end()
        warnings = [event.message for event in job.events if isinstance(event, WarningRaised)]
        assert any(f"checkpoint {newest} cannot be used" in message for message in warnings)


def test_a_full_disk_pauses_training_until_there_is_room(folder, monkeypatch):
    from edl.core import world_checkpoints
    from edl.worker.allreduce import checkpoint_writer

    is_full = [False]
    write = checkpoint_writer.write_shard

    def write_if_room(directory, index, arrays, metadata):
        if is_full[0]:
            raise StorageError("cannot be written", where=str(directory)) from OSError(errno.ENOSPC, "full")
        return write(directory, index, arrays, metadata)

    monkeypatch.setattr(checkpoint_writer, "write_shard", write_if_room)
    monkeypatch.setattr(world_checkpoints, "RETRY_SAVING_SECONDS", 0.2)
    with CheckedJob(folder, records=800, seconds=0.002) as job:
        for _ in range(2):
            job.start_rank()
        job.wait_for_checkpoint(7)
        is_full[0] = True
        job.wait(lambda: job.state.world_pauses)
        paused_at = job.state.step
        job.wait(
            lambda: job.state.checkpoint_failure is not None and job.state.checkpoint_failure.paused_at is not None
        )
        is_full[0] = False
        job.wait_for_end()
    saved = job.state.checkpoint
    assert saved is not None
    # One interval after the checkpoint that was due.
    assert paused_at <= saved.step


def test_a_stop_writes_a_checkpoint_with_every_step(folder):
    with CheckedJob(folder, records=4000, seconds=0.002, checkpoint_steps=1000) as job:
        ranks = [job.start_rank() for _ in range(3)]
        job.wait_for_round(3)
        job.wait_for_step(20)
        job.wait_for_checkpoint(0)
        job.handle(StopRequested("stopped by its user", 10.0))
        job.wait(lambda: job.end is not None)
        assert job.end.phase == "Interrupted"
        assert job.state.checkpoint.step == job.state.step >= 20
        assert {int(rank.replica.counts.sum()) for rank in ranks} == {job.state.ledgers[TRAINING].done_records}


def test_a_stop_during_an_evaluation_writes_a_checkpoint_with_every_step(folder):
    with CheckedJob(
        folder,
        records=4000,
        seconds=0.002,
        checkpoint_steps=1000,
        validation=64,
        evaluation_steps=5,
        evaluation_workers=0,
    ) as job:
        for _ in range(2):
            job.start_rank()
        job.wait_for_checkpoint(0)
        job.wait(lambda: job.state.evaluation is not None and job.state.step >= 10)
        job.handle(StopRequested("stopped by its user", 10.0))
        job.wait(lambda: job.end is not None)
        assert job.state.checkpoint.step == job.state.step


def test_the_last_worker_that_is_told_to_leave_saves_the_newest_state(folder):
    """All workers are preempted: nothing is trained again when there is room for one of them."""
    with CheckedJob(folder, records=1600, seconds=0.002, checkpoint_steps=1000) as job:
        ranks = [job.start_rank() for _ in range(3)]
        job.wait_for_round(3)
        job.wait_for_step(20)
        for rank in ranks:
            job.tell_to_leave(rank)
        job.wait(lambda: all(rank.ended.is_set() for rank in ranks))
        newest = max(rank.world.step for rank in ranks)
        job.wait_for_checkpoint(newest)
        job.start_rank()
        job.wait_for_end()
        assert job.state.counters.rolled_back == 0


def test_the_last_worker_is_killed_while_it_saves_the_newest_state(folder, monkeypatch):
    """The newest checkpoint on disk counts, and what was trained behind it is trained again."""
    write = checkpoint_writer.write_shard

    def write_or_die(*arguments: Any) -> Any:
        pending = job.state.world_checkpoint
        if pending is not None and pending.is_last:
            last = next(rank for rank in ranks if rank.uid == pending.writer)
            # Otherwise another one saves the state.
            job.wait(lambda: all(rank.ended.is_set() for rank in ranks if rank is not last))
            job.kill(last)
            raise StorageError("nobody hears of it")
        return write(*arguments)

    monkeypatch.setattr(checkpoint_writer, "write_shard", write_or_die)
    with CheckedJob(folder, records=1600, seconds=0.002, checkpoint_steps=15) as job:
        ranks = [job.start_rank() for _ in range(3)]
        job.wait_for_round(3)
        job.wait_for_checkpoint(15)
        for rank in ranks:
            job.tell_to_leave(rank)
        job.wait(lambda: any(rank.is_killed for rank in ranks))
        saved, left = job.state.checkpoint, job.state.step
        job.start_rank()
        job.wait_for_end()
        assert job.state.counters.rolled_back > 0, (saved, left)


def test_a_worker_that_leaves_passes_its_state_on_to_the_one_that_comes(folder):
    with CheckedJob(folder, records=1600, seconds=0.002, checkpoint_steps=1000) as job:
        first = job.start_rank()
        job.wait_for_step(20)
        job.silent.add(first.uid)
        job.start_rank()
        job.wait(lambda: job.state.world.candidates)
        job.silent.clear()
        job.tell_to_leave(first)
        job.wait(first.ended.is_set)
        job.wait_for_end()
        assert job.state.counters.rolled_back == 0


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.repetition) for seed in range(1, 4))])
def test_random_faults(folder, seed):
    with CheckedJob(folder, records=1600, seconds=0.002, workers=6) as job:
        job.run_with_faults(seed)
