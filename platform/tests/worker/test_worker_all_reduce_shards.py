"""Checkpoints that several ranks write together: each has exactly the records that its ledger calls done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.all_reduce_job import Rank
from worker.test_worker_all_reduce_checkpoints import CheckedJob, await_orders
from worker.test_worker_all_reduce_checkpoints import folder as folder

from edl.api.errors import StorageError
from edl.api.journal_entries import CutCalledOff
from edl.core.events import StopRequested
from edl.core.ledger import TRAINING
from edl.storage.checkpoint_manifest import (
    CheckpointManifest,
    ShardInfo,
    cut_directory,
    load_manifest,
    verify_checkpoint,
)
from edl.storage.checkpoint_shards import shard_path
from edl.worker.allreduce import checkpoint_writer


class SharedJob(CheckedJob):
    """A job in which every rank, up to the limit, writes a shard."""

    def __init__(self, folder: Path, records: int = 400, **settings: Any) -> None:
        super().__init__(folder, records, **({"shard_bytes": 1} | settings))

    def start_ranks(self, count: int) -> list[Rank]:
        ranks = [self.start_rank() for _ in range(count)]
        self.wait_for_round(count)
        return ranks

    def called_off(self) -> list[str]:
        return [entry.reason for entry in self.journal if isinstance(entry, CutCalledOff)]


def test_all_ranks_write_their_shares_of_the_same_step_while_training_goes_on(folder: Path) -> None:
    with SharedJob(folder, records=9000, seconds=0.003, checkpoint_steps=40) as job:
        job.start_ranks(3)
        job.wait(lambda: list(job.shard_counts.values()).count(3) >= 4)
        assert job.end is None
        job.hurry()
        job.wait_for_end()
    assert job.checked[-1] == job.state.step
    assert set(job.shard_counts.values()) <= {1, 2, 3}


def test_shares_are_of_the_steps_that_are_due(folder: Path) -> None:
    with SharedJob(folder, records=1200, seconds=0.01, checkpoint_steps=40, workers_min=3) as job:
        for _ in range(3):
            # Rank 0 announces a checkpoint before the reduction of its step.
            job.start_rank(partial(await_orders, job, ahead=1))
        job.wait_for_end()
        last = job.state.step
    # The first one is asked for when the round has begun.
    _, *periodic, final = job.checked
    assert periodic == list(range(40, last, 40))
    assert {job.shard_counts[step] for step in periodic} == {3}
    assert final == last


@pytest.mark.repetition
def test_a_state_that_is_small_for_the_number_of_ranks_has_fewer_shards(folder: Path) -> None:
    # The two arrays with an element for each record are much larger than the others.
    with SharedJob(folder, records=9000, seconds=0.003, shard_bytes=72_000) as job:
        job.start_ranks(4)
        job.wait(lambda: list(job.shard_counts.values()).count(2) >= 3)
        job.hurry()
        job.wait_for_end()
    assert set(job.shard_counts.values()) <= {1, 2}


def test_with_a_global_batch_and_a_stop_the_checkpoint_has_every_step(folder: Path) -> None:
    with SharedJob(folder, records=4000, seconds=0.002, checkpoint_steps=1000, global_batch=10) as job:
        ranks = job.start_ranks(3)
        job.wait_for_step(20)
        job.handle(StopRequested("stopped by its user", 10.0))
        job.wait(lambda: job.end is not None)
        saved = job.state.checkpoint
        assert saved is not None
        assert saved.step == job.state.step >= 20
        assert job.shard_counts[saved.step] == 3
        assert {int(rank.replica.counts.sum()) for rank in ranks} == {job.state.ledgers[TRAINING].done_records}


@pytest.mark.parametrize("position", [0, *(pytest.param(each, marks=pytest.mark.repetition) for each in (1, 2))])
def test_a_writer_is_killed_between_its_copy_and_its_report(
    folder: Path, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim: list[Rank] = []
    write = checkpoint_writer.write_shard

    def write_or_die(directory: Path, index: int, arrays: Any, metadata: Any) -> Any:
        if victim and index == position:
            job.kill(victim.pop())
            raise StorageError("nobody hears of it")
        return write(directory, index, arrays, metadata)

    monkeypatch.setattr(checkpoint_writer, "write_shard", write_or_die)
    with SharedJob(folder, records=4000, seconds=0.003) as job:
        ranks = job.start_ranks(4)
        job.wait_for_checkpoint(7)
        assert job.state.world is not None
        uid = job.state.world.members[position]
        victim.append(next(rank for rank in ranks if rank.uid == uid))
        job.wait(lambda: not victim)
        killed_at = job.state.step
        job.wait_for_checkpoint(killed_at + 8)
        assert job.shard_counts[job.checked[-1]] == 3
        job.hurry()
        job.wait_for_end()
    # The others may tell of the loss before the cluster does.
    phrases = ("has ended", "has left the others", "the workers have changed")
    assert any(words in reason for reason in job.called_off() for words in phrases), job.called_off()
    assert job.checked[-1] == job.state.step


@pytest.mark.repetition
def test_a_worker_that_is_told_to_leave_writes_its_shard_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, holds = threading.Event(), threading.Event()
    write = checkpoint_writer.write_shard

    def write_slowly(directory: Path, index: int, arrays: Any, metadata: Any) -> Any:
        if index == 2 and holds.is_set():
            goes_on.wait(30.0)
        return write(directory, index, arrays, metadata)

    monkeypatch.setattr(checkpoint_writer, "write_shard", write_slowly)
    with SharedJob(folder, records=6000, seconds=0.003, checkpoint_steps=20) as job:
        ranks = job.start_ranks(3)
        job.wait_for_checkpoint(20)
        holds.set()
        job.wait(lambda: (pending := job.state.world_checkpoint) is not None and len(pending.copied_by) == 3)
        cut, before = job.state.world_checkpoint.number, list(job.called_off())
        assert job.state.world is not None
        last = next(rank for rank in ranks if rank.uid == job.state.world.members[2])
        job.tell_to_leave(last)
        job.wait_for_round(2)
        assert not last.ended.is_set()
        holds.clear()
        goes_on.set()
        job.wait(lambda: job.state.checkpoint is not None and job.state.checkpoint.cut == cut)
        job.wait(last.ended.is_set)
        assert job.called_off() == before
        job.hurry()
        job.wait_for_end()


def test_all_workers_are_lost_and_another_number_goes_on_from_the_shards(folder: Path) -> None:
    # The first checkpoint may be called off when the third worker joins; the next attempt begins a second later.
    with SharedJob(folder, records=6000, seconds=0.005) as job:
        first = job.start_ranks(3)
        job.wait_for_checkpoint(14)
        for rank in first:
            job.kill(rank)
        job.start_ranks(2)
        job.wait_for_end()
    assert 0 < job.state.counters.rolled_back < job.records
    assert job.checked[-1] == job.state.step


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.repetition) for seed in range(1, 4))])
def test_random_faults(folder: Path, seed: int) -> None:
    with SharedJob(folder, records=1600, seconds=0.002, workers=6) as job:
        job.run_with_faults(seed)


def remove_file(path: Path, written: ShardInfo) -> ShardInfo:
    path.unlink()
    return written


def cut_file(path: Path, written: ShardInfo) -> ShardInfo:
    path.write_bytes(path.read_bytes()[:-8])
    return written


def clear_file(path: Path, written: ShardInfo) -> ShardInfo:
    path.write_bytes(bytes(written.size))
    return written


def name_other_file(path: Path, written: ShardInfo) -> ShardInfo:
    first = path.with_name("ps-0.safetensors")
    return ShardInfo(first.name, first.stat().st_size if first.exists() else written.size, written.crc32)


def write_arrays_of_the_first(path: Path, written: ShardInfo) -> ShardInfo:
    first = path.with_name("ps-0.safetensors")
    while not first.exists():
        time.sleep(0.001)
    path.write_bytes(first.read_bytes())
    return replace(written, size=path.stat().st_size)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (remove_file, "is missing"),
        (cut_file, "bytes instead of"),
        (clear_file, "safetensors"),
        (name_other_file, "ps-0.safetensors"),
        (write_arrays_of_the_first, "as well"),
    ],
)
def test_a_rank_that_says_what_it_has_not_written_is_not_believed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lie: Callable[[Path, ShardInfo], ShardInfo], said: str
) -> None:
    lies, write = threading.Event(), checkpoint_writer.write_shard

    def write_and_lie(directory: Path, index: int, arrays: Any, metadata: Any) -> ShardInfo:
        written = write(directory, index, arrays, metadata)
        return lie(shard_path(directory, index), written) if index == 1 and lies.is_set() else written

    monkeypatch.setattr(checkpoint_writer, "write_shard", write_and_lie)
    with SharedJob(folder, records=6000, seconds=0.003) as job:
        job.start_ranks(2)
        job.wait_for_checkpoint(7)
        before = len(job.called_off())
        lies.set()
        job.wait(lambda: len(job.called_off()) > before)
        lies.clear()
        assert said in job.called_off()[before]
        assert job.state.checkpoint is not None
        manifest = load_manifest(cut_directory(job.checkpoints.directory, job.state.checkpoint.cut))
        assert isinstance(manifest, CheckpointManifest)
        assert verify_checkpoint(cut_directory(job.checkpoints.directory, manifest.cut), manifest) is None
        job.hurry()
