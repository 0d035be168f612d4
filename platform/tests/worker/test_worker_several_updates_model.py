"""A GAN trained by ranks as threads, with the real loop, rings and replicas: kills, a joiner and the best weights.

Leases are granted in any order, so the process of Keras gets the records that the ledger says each step had.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from support.all_reduce_job import AllReduceJob, KilledError, Rank
from support.gan_model import ADVERSARIAL, make_records, pick, train_plainly, write_gan

from edl.api.job_spec import ModelSpec
from edl.api.journal_entries import WorldAnnounced
from edl.core.callback_decisions import EarlyStopping
from edl.core.ledger import EXPORT
from edl.worker.lease_client import LeasedTask
from edl.worker.record_stream import LoadedStep

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]

from edl.keras.model_contract import load_model_module  # noqa: E402
from edl.keras.several_updates_train_step import SeveralUpdatesReplica  # noqa: E402
from edl.worker.feed_pipeline import Minibatch  # noqa: E402

RECORDS, BATCH, MINIBATCH, EPOCHS = 180, 12, 3, 4
STEPS = EPOCHS * RECORDS // BATCH


class GanReplica(SeveralUpdatesReplica):
    """A replica with named points, as ``CountingReplica`` has them."""

    seconds = 0.0
    fail_at: Callable[[str], None] = staticmethod(lambda point: None)

    @property
    def counts(self) -> Any:
        """What the harness reports as an evaluation."""
        return np.array([int(self.model.g_optimizer.iterations)])

    def compute(self, *minibatch: Any, adds: bool = False) -> Any:
        self.fail_at("compute")
        time.sleep(self.seconds)
        return super().compute(*minibatch, adds=adds)

    def compute_update(self, number: int, minibatch: int) -> Any:
        self.fail_at("compute second")
        return super().compute_update(number, minibatch)

    def apply_next(self, total_weight: float, rate_factor: float | None = None) -> None:
        number = self._next
        self.fail_at("apply second" if number else "apply")
        super().apply_next(total_weight, rate_factor)
        self.fail_at("applied second" if number else "applied")

    def state_arrays(self, names: Any = None) -> Any:
        self.fail_at("copy")
        return super().state_arrays(names)

    def unpack_state(self, packed: Any) -> None:
        self.fail_at("fetched")
        super().unpack_state(packed)


class GanStream:
    """Gives the records of a lease."""

    def __init__(self, records: Any) -> None:
        self._records = records

    def add_task(self, task: LeasedTask) -> None:
        pass

    def drop_task(self, task: LeasedTask) -> None:
        pass

    def load_steps(self, task: LeasedTask) -> Iterator[LoadedStep]:
        for step in range(task.step_count):
            start, end = task.step_range(step)
            features, labels = pick(self._records, slice(start, end))
            yield LoadedStep(step, Minibatch(step, features, labels), end - start, 0)


class GanRanks:
    """Replicas that begin with the same state, for one job after the other: building one takes a second."""

    def __init__(self, folder: Path, count: int, dtype: str) -> None:
        self.folder, self.dtype = folder, dtype
        write_gan(folder, ADVERSARIAL, {'"float64"': f'"{dtype}"'})
        choice = ModelSpec(zoo=str(folder), definition="gan.custom_model", params={})
        module = load_model_module(choice, needs_metrics=False, may_have_train_step=True)
        x, y = make_records(1, dtype)
        self.replicas = [
            GanReplica(module, seed=0, rank_seed=rank, sample=x, first=(x, y, None)) for rank in range(count)
        ]
        self._initial = self.replicas[0].pack_state()
        self.initial_weights = self.replicas[0].model.get_weights()
        for replica in self.replicas:
            # Traces it, as a worker does before it joins.
            replica.take_step(x, y)

    def make_job(self, folder: Path, callbacks: tuple[Any, ...] = (), **settings: Any) -> GanJob:
        for replica in self.replicas:
            replica.fail_at, replica.seconds = (lambda point: None), 0.02
            replica.restore_statistics()
            replica.unpack_state(self._initial)
        job = GanJob(
            folder,
            RECORDS,
            callbacks=callbacks,
            **({"epochs": EPOCHS, "minibatch": MINIBATCH, "task_records": 36, "global_batch": BATCH} | settings),
        )
        job.make_stream = lambda: GanStream(make_records(RECORDS, self.dtype))
        job.make_replica = lambda index: self.replicas[index]
        job.find_updates = lambda replica: replica
        return job

    def train_plainly(self, steps: list[list[int]]) -> Any:
        """One process of Keras: the trained model."""
        records = make_records(RECORDS, self.dtype)
        return train_plainly(self.folder, self.initial_weights, [pick(records, each) for each in steps])[0]


class GanJob(AllReduceJob):
    """A job that trains the GAN."""

    def count_updates(self, arrays: Mapping[str, Any]) -> int:
        """The number of steps in a state: the iterations of the second optimizer."""
        return int(arrays["slot/g_optimizer/0"])

    def wait_for_done(self) -> list[Rank]:
        """Wait for the end; returns the remaining ranks, which have the same state."""
        self.hurry()
        self.wait(lambda: self.end is not None)
        assert self.end is not None
        assert self.end.phase == "Done", self.end
        remaining = self.living_ranks()
        for rank in remaining:
            rank.ended.wait(60)
            assert rank.error is None, rank.error
        assert len({rank.replica.digest() for rank in remaining}) == 1
        return remaining


@pytest.fixture(scope="module")
def gan(tmp_path_factory: pytest.TempPathFactory) -> GanRanks:
    return GanRanks(tmp_path_factory.mktemp("gan"), 4, "float64")


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="edl-") as path:
        yield Path(path)


def kill_at(job: AllReduceJob, rank: Rank, point: str) -> None:
    """Kill a rank when it is at this point of its next step."""

    def fail(reached: str) -> None:
        if reached == point:
            job.kill(rank, is_preempted=True)
            raise KilledError

    rank.replica.fail_at = fail
    job.wait_killed(rank)


def assert_trained(found: list[Any], expected: list[Any], bound: float) -> None:
    for weight, other in zip(found, expected, strict=True):
        difference = np.linalg.norm(np.asarray(weight, np.float64) - np.asarray(other, np.float64))
        assert difference <= bound * np.linalg.norm(np.asarray(other, np.float64))


def state_of(model: Any) -> list[Any]:
    """Weights and the variables of both optimizers."""
    slots = [*model.d_optimizer.variables, *model.g_optimizer.variables]
    return [*model.get_weights(), *(variable.numpy() for variable in slots)]


@pytest.mark.parametrize(
    "point",
    [
        "compute second",
        *(
            pytest.param(point, marks=pytest.mark.repetition)
            for point in ("applied second", "compute", "apply", "apply second")
        ),
    ],
)
def test_a_rank_is_killed_within_a_step_and_another_one_joins(gan: GanRanks, folder: Path, point: str) -> None:
    """The result is that of the model's own ``train_step`` on the records of the steps that count."""
    with gan.make_job(folder) as job:
        first = [job.start_rank() for _ in range(3)]
        job.wait_for_round(3)
        job.wait_for_step(4)
        kill_at(job, first[1], point)
        job.wait_for_round(2)
        joined = job.start_rank()
        job.wait_for_round(3)
        entry = next(e for e in job.journal if isinstance(e, WorldAnnounced) and joined.uid in e.members)
        assert joined.uid in entry.holders, "it has followed the others"
        assert job.state.step < STEPS - 2, "the last change came too late to test anything"
        remaining = job.wait_for_done()
        steps = [records for _, records in job.step_records()]
    assert remaining == [first[0], first[2], joined]
    assert [len(records) for records in steps] == [BATCH] * STEPS
    assert sorted(record for step in steps for record in step) == sorted([*range(RECORDS)] * EPOCHS)
    expected = state_of(gan.train_plainly(steps))
    for rank in remaining:
        assert_trained(state_of(rank.replica.model), expected, 1e-9)


EVERY, BEST = 5, 15
STOP = EarlyStopping("total", "min", patience=3, restore_best_weights=True)


@pytest.mark.repetition
def test_the_best_weights_are_those_of_their_step_with_ranks_killed_within_an_earlier_and_a_later_one(
    gan: GanRanks, folder: Path
) -> None:
    settings = {"evaluation_steps": EVERY, "validation": 32, "durable": True, "checkpoint_steps": 100, "export": True}
    with gan.make_job(folder, (STOP,), **settings) as job:
        # The evaluation of this step is the best one.
        job.metric = lambda step, total: float(abs(step - BEST))
        ranks = [job.start_rank() for _ in range(3)]
        job.wait_for_round(3)
        job.wait_for_step(EVERY + 1)
        kill_at(job, ranks[2], "compute second")
        job.wait(lambda: any(each.best_step == BEST for each in job.state.callbacks.progress))
        assert job.state.world is not None
        writer = next(rank for rank in ranks if rank.uid == job.state.world.members[0])
        kill_at(job, writer, "compute second")
        remaining = job.wait_for_done()
        assert job.state.step == BEST + 3 * EVERY
        assert [updates for kind, _, updates in job.exported if kind == EXPORT][-1:] == [BEST]
        saved = job.state.checkpoint
        assert saved is not None
        best = remaining[0].checkpoints.read(saved.cut)
        steps = [records for _, records in job.step_records()]
    *_, unused = gan.replicas
    unused.load_state(best)
    assert_trained(state_of(unused.model), state_of(gan.train_plainly(steps[:BEST])), 1e-9)


@pytest.mark.repetition
def test_compressed_gradients_of_both_updates_reach_nearly_the_same_with_equal_bits(folder: Path) -> None:
    ranks = GanRanks(folder / "zoo", 4, "float32")
    with ranks.make_job(folder) as job:
        job.gradient_compression = "bfloat16"
        first = [job.start_rank() for _ in range(3)]
        job.wait_for_round(3)
        job.wait_for_step(4)
        kill_at(job, first[1], "compute second")
        job.wait_for_round(2)
        job.start_rank()
        job.wait_for_round(3)
        remaining = job.wait_for_done()
        steps = [records for _, records in job.step_records()]
    expected = ranks.train_plainly(steps).get_weights()
    weights = remaining[0].replica.model.get_weights()
    assert_trained(weights, expected, 0.02)
    assert any((weight != other).any() for weight, other in zip(weights, expected, strict=True))
