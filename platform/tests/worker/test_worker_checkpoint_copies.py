"""When a rank copies its state, or its share, for a checkpoint: at exactly the step that is due."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.api.cluster_port import POD_GRACE_SECONDS
from edl.core.events import CheckpointOrder
from edl.storage.checkpoint_shards import shard_path
from edl.storage.safetensors_writer import read_array_file
from edl.worker.allreduce.checkpoint_copies import CheckpointCopies
from edl.worker.allreduce.checkpoint_writer import CheckpointWriter
from edl.worker.allreduce.leaving import MIN_LEAVE_SECONDS, wait_until_left


class SteppedRank:
    """A rank whose two variables have the number of its step, and the view that it has."""

    def __init__(self, rank: int, folder: Path, *, shard_bytes: int = 8) -> None:
        self.rank, self.step = rank, 0
        self.checkpoint: CheckpointOrder | None = None
        self.must_pause = False
        self.writer = CheckpointWriter(folder)
        self.copies = CheckpointCopies(self, self, self.writer, shard_bytes)
        self.copies.start_round(("w0", "w1"))

    rate_names: frozenset[str] = frozenset()

    def state_sizes(self) -> dict[str, int]:
        return {"a": 8, "b": 8}

    def state_arrays(self, names: Iterable[str] | None = None) -> Mapping[str, np.ndarray[Any, Any]]:
        return {name: np.array([self.step]) for name in (names or ("a", "b"))}

    def done_records(self) -> dict[int, int]:
        return {1: self.step}

    def request_report(self) -> None:
        pass


class ToldToGoRank(SteppedRank):
    """It is told to go while it copies, and so much memory is copied that the wait for the others is over before."""

    def __init__(self, folder: Path, *, shard_bytes: int, fails: bool = False) -> None:
        super().__init__(0, folder, shard_bytes=shard_bytes)
        self.fails, self.waits = fails, list[float]()

    def state_arrays(self, names: Iterable[str] | None = None) -> Mapping[str, np.ndarray[Any, Any]]:
        wait_until_left(self, self.writer, 0.1)
        if self.fails:
            raise MemoryError
        return super().state_arrays(names)

    def wait(self, seconds: float) -> bool:
        """The world that it does not leave."""
        self.waits.append(seconds)
        return False


@dataclass(frozen=True)
class Progress:
    """The copies of a rank: step of the copy and the steps in its arrays."""

    step: int
    arrays: dict[str, int]


def written(rank: SteppedRank, cut: int) -> Progress:
    thread = rank.writer._thread
    assert thread is not None
    thread.join(20.0)
    progress = rank.writer.progress
    assert progress is not None
    arrays = read_array_file(shard_path(rank.writer.directory(cut), rank.rank))[0]
    return Progress(progress.step, {name: int(array[0]) for name, array in arrays.items()})


def make_steps(ranks: list[SteppedRank], until: int) -> None:
    """Steps as the loop makes them: rank 0 announces before the reduction, and all copy behind it."""
    while ranks[0].step < until:
        for rank in ranks:
            rank.copies.copy_alone(rank, is_paused=False)
        cuts = {rank.copies.announce(rank, is_paused=False) for rank in ranks}
        for rank in ranks:
            rank.step += 1
            rank.copies.copy_share(max(cuts))


@pytest.mark.parametrize("heard_at", [0, 19, 20, 23])
def test_all_shares_are_of_the_step_that_is_due_or_of_the_first_one_after_rank_0_has_heard(
    tmp_path: Path, heard_at: int
) -> None:
    ranks = [SteppedRank(0, tmp_path), SteppedRank(1, tmp_path)]
    make_steps(ranks, heard_at)
    for rank in ranks:
        rank.checkpoint = CheckpointOrder(3, 20, when_paused=False)
    make_steps(ranks, 30)
    step = max(20, heard_at + 1)
    first, second = (written(rank, 3) for rank in ranks)
    assert first.step == second.step == step
    assert sorted([*first.arrays, *second.arrays]) == ["a", "b"]
    assert {*first.arrays.values(), *second.arrays.values()} == {step}


@pytest.mark.parametrize("heard_at", [0, 19, 20, 23])
def test_a_single_writer_copies_at_the_step_that_is_due_or_at_once(tmp_path: Path, heard_at: int) -> None:
    ranks = [SteppedRank(0, tmp_path, shard_bytes=1000), SteppedRank(1, tmp_path, shard_bytes=1000)]
    make_steps(ranks, heard_at)
    ranks[0].checkpoint = CheckpointOrder(3, 20, when_paused=False)
    make_steps(ranks, 30)
    step = max(20, heard_at)
    assert written(ranks[0], 3) == Progress(step, {"a": step, "b": step})
    assert ranks[1].writer.progress is None


@pytest.mark.parametrize(("shard_bytes", "step"), [(8, 1), (1000, 0)])
def test_a_worker_that_copies_its_state_may_use_its_grace_period_as_one_that_writes_it(
    tmp_path: Path, shard_bytes: int, step: int
) -> None:
    rank = ToldToGoRank(tmp_path, shard_bytes=shard_bytes)
    rank.checkpoint = CheckpointOrder(3, 0, when_paused=False)
    make_steps([rank], 2)
    assert 20.0 < sum(rank.waits) < POD_GRACE_SECONDS
    assert written(rank, 3).step == step


def test_a_worker_that_could_not_copy_its_state_does_not_use_its_grace_period(tmp_path: Path) -> None:
    rank = ToldToGoRank(tmp_path, shard_bytes=1000, fails=True)
    rank.checkpoint = CheckpointOrder(3, 0, when_paused=False)
    with pytest.raises(MemoryError):
        make_steps([rank], 2)
    rank.waits.clear()
    wait_until_left(rank, rank.writer, 0.1)
    assert sum(rank.waits) == MIN_LEAVE_SECONDS


def test_at_a_pause_nothing_is_announced_before_all_have_heard_of_it(tmp_path: Path) -> None:
    rank = SteppedRank(0, tmp_path)
    rank.checkpoint = CheckpointOrder(3, 0, when_paused=True)
    assert rank.copies.announce(rank, is_paused=False) == 0
    assert rank.copies.announce(rank, is_paused=True) == 0
    rank.must_pause = True
    assert rank.copies.announce(rank, is_paused=False) == 0
    assert rank.copies.announce(rank, is_paused=True) == 3
