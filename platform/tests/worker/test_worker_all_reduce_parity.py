"""``strategy.global_batch``: any number of ranks trains as one process of Keras does on the same records.

The ranks are threads with the real loop, rings, leases and master. Leases are granted in any order, so the process of
Keras gets the records that the ledger says each step had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from support.all_reduce_job import AllReduceJob

from edl.worker.lease_client import LeasedTask
from edl.worker.record_stream import LoadedStep

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from edl.keras.model_contract import ModelModule  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402
from edl.worker.feed_pipeline import Minibatch  # noqa: E402

RECORDS, BATCH, STEPS = 250, 10, 100
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: keras.optimizers.SGD(0.05),
    "Momentum": lambda: keras.optimizers.SGD(0.02, momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "AdamW": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.01),
    "accumulation": lambda: keras.optimizers.AdamW(
        0.01, weight_decay=0.02, gradient_accumulation_steps=4, global_clipnorm=0.5
    ),
    "averages": lambda: keras.optimizers.SGD(
        0.05, momentum=0.9, nesterov=True, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=7, clipnorm=0.3
    ),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.05, 20, 0.9), clipvalue=0.1),
        initial_scale=1024.0,
        dynamic_growth_steps=13,
    ),
}
TOLERANCES = {"float64": 1e-9, "float32": 1e-4}
"""Of the norm of each variable."""


def squared_error(labels: Any, predictions: Any) -> Any:
    return tf.square(labels - predictions)


def summed_error(labels: Any, predictions: Any) -> Any:
    return tf.reduce_sum(tf.square(labels - predictions)) / 10


def perceptron(dtype: str) -> Any:
    return keras.Sequential(
        [
            keras.Input((3,), dtype=dtype),
            keras.layers.Dense(5, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.01), dtype=dtype),
            keras.layers.Dense(1, dtype=dtype),
        ]
    )


def make_data(dtype: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    generator = np.random.default_rng(7)
    x = generator.normal(size=(RECORDS, 3))
    y = np.sin(x @ np.array([[1.0], [-2.0], [0.5]])) + generator.normal(size=(RECORDS, 1)) * 0.1
    return x.astype(dtype), y.astype(dtype)


class ArrayStream:
    """Gives the records of a range as minibatches of arrays."""

    def __init__(self, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> None:
        self._x, self._y = x, y

    def add_task(self, task: LeasedTask) -> None:
        pass

    def drop_task(self, task: LeasedTask) -> None:
        pass

    def load_steps(self, task: LeasedTask) -> Iterator[LoadedStep]:
        for step in range(task.step_count):
            start, end = task.step_range(step)
            yield LoadedStep(step, Minibatch(step, self._x[start:end], self._y[start:end]), end - start, 0)


def make_module(make_model: Callable[[], Any], loss: Any, optimizer: Callable[[], Any]) -> ModelModule:
    return ModelModule(
        zoo=Path(__file__).parent,
        make_model=make_model,
        loss=loss,
        optimizer=optimizer,
        eval_metrics_fn=dict,
        feed=squared_error,
    )


class Ranks:
    """Replicas that begin with the same state, for one job after the other: building one takes a second."""

    def __init__(self, module: ModelModule, count: int = 4, seed: int = 3) -> None:
        self.module = module
        self.replicas = [ModelReplica(module, seed=seed, rank_seed=rank, sample=None) for rank in range(count)]
        self._initial = self.replicas[0].pack_state()
        self.initial_weights = self.replicas[0].model.get_weights()

    def start(self, job: AllReduceJob, dtype: str) -> None:
        x, y = make_data(dtype)
        job.make_stream = lambda: ArrayStream(x, y)
        job.make_replica = lambda index: self.replicas[index]
        for replica in self.replicas:
            replica.unpack_state(self._initial)


def train_densely(ranks: Ranks, dtype: str, steps: list[list[int]]) -> list[np.ndarray[Any, Any]]:
    """One process of Keras: a step for each list of records."""
    x, y = make_data(dtype)
    model, optimizer = ranks.module.make_model(), ranks.module.optimizer()
    model.set_weights(ranks.initial_weights)
    summed = ranks.module.loss is summed_error

    def train(features: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            losses = ranks.module.loss(labels, model(features, training=True))
            loss = losses if summed else tf.reduce_mean(losses)
            for own in model.losses:
                loss += tf.cast(own, loss.dtype)
            scaled = optimizer.scale_loss(loss)
        optimizer.apply(tape.gradient(scaled, [v.value for v in model.trainable_variables]), model.trainable_variables)

    optimizer.build(model.trainable_variables)
    step = tf.function(train, reduce_retracing=True)
    for records in steps:
        step(tf.constant(x[records]), tf.constant(y[records]))
    return list(model.get_weights())


def assert_equal_norms(found: list[np.ndarray[Any, Any]], expected: list[np.ndarray[Any, Any]], bound: float) -> None:
    for array, other in zip(found, expected, strict=True):
        difference = np.linalg.norm(array.astype(np.float64) - other.astype(np.float64))
        assert difference <= bound * np.linalg.norm(other.astype(np.float64))


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="edl-") as path:
        yield Path(path)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.repetition)])
@pytest.mark.parametrize("counts", [(3,), pytest.param((1, 2, 4), marks=pytest.mark.repetition)], ids=str)
@pytest.mark.parametrize(
    "name", ["Adam", *(pytest.param(name, marks=pytest.mark.repetition) for name in OPTIMIZERS if name != "Adam")]
)
def test_any_number_of_ranks_trains_as_one_process(name: str, counts: tuple[int, ...], dtype: str) -> None:
    ranks = Ranks(make_module(lambda: perceptron(dtype), squared_error, OPTIMIZERS[name]), max(counts))
    for workers in counts:
        with TemporaryDirectory(prefix="edl-") as path:
            check_against_keras(Path(path), ranks, dtype, workers)


@pytest.mark.repetition
def test_a_summed_loss_trains_as_in_one_process(folder: Path) -> None:
    ranks = Ranks(make_module(lambda: perceptron("float64"), summed_error, OPTIMIZERS["Momentum"]))
    check_against_keras(folder, ranks, "float64", 3)


def check_against_keras(folder: Path, ranks: Ranks, dtype: str, workers: int) -> None:
    with make_job(folder, workers_min=workers) as job:
        ranks.start(job, dtype)
        for _ in range(workers):
            job.start_rank()
        job.wait(lambda: job.end is not None)
        compare(job, ranks, dtype)


def make_job(folder: Path, **settings: Any) -> AllReduceJob:
    return AllReduceJob(
        folder, RECORDS, epochs=5, max_steps=STEPS, minibatch=4, task_records=32, global_batch=BATCH, **settings
    )


def compare(job: AllReduceJob, ranks: Ranks, dtype: str) -> None:
    assert job.end is not None
    assert job.end.phase == "Done", job.end
    steps = [records for _, records in job.step_records()]
    assert [len(records) for records in steps] == [BATCH] * STEPS
    expected = train_densely(ranks, dtype, steps)
    remaining = [rank for rank in job.ranks if not rank.is_killed]
    for rank in remaining:
        rank.ended.wait(60)
        assert rank.error is None
        assert_equal_norms(ranks.replicas[rank.index].model.get_weights(), expected, TOLERANCES[dtype])
    assert len({ranks.replicas[rank.index].digest() for rank in remaining}) == 1


@pytest.mark.parametrize("name", [pytest.param("Momentum", marks=pytest.mark.repetition), "AdamW"])
def test_a_rank_is_killed_and_another_one_joins(folder: Path, name: str) -> None:
    ranks = Ranks(make_module(lambda: perceptron("float64"), squared_error, OPTIMIZERS[name]))
    with make_job(folder) as job:
        ranks.start(job, "float64")
        started = [job.start_rank() for _ in range(3)]
        job.wait_for_round(3)
        job.wait_for_step(10)
        job.kill(started[1], is_preempted=True)
        job.wait_for_round(2)
        job.start_rank()
        job.wait_for_round(3)
        assert job.state.step < STEPS, "the last change came too late to test anything"
        job.wait(lambda: job.end is not None)
        compare(job, ranks, "float64")


SEEDS, WINDOW = range(5), 25


@pytest.mark.repetition
@pytest.mark.timeout(600)
def test_loss_curves_with_churn_are_within_the_noise_of_a_fixed_world() -> None:
    """Three times a worker is killed, without a cause that the cluster knows, and another one joins."""
    fixed, disturbed = [], []
    for seed in SEEDS:
        module = make_module(lambda: perceptron("float32"), squared_error, lambda: keras.optimizers.Adam(0.05))
        ranks = Ranks(module, 6, seed)
        fixed.append(loss_curve(ranks, seed, kills=()))
        disturbed.append(loss_curve(ranks, seed, kills=(15, 40, 65)))
    assert np.mean(fixed, 0)[-1] < 0.75 * np.mean(fixed, 0)[0], "nothing was learned"
    noise = 3 * np.sqrt((np.var(fixed, 0, ddof=1) + np.var(disturbed, 0, ddof=1)) / len(SEEDS))
    np.testing.assert_array_less(np.abs(np.mean(fixed, 0) - np.mean(disturbed, 0)), noise)


def loss_curve(ranks: Ranks, seed: int, kills: Sequence[int]) -> np.ndarray[Any, Any]:
    """Mean losses of some steps each."""
    with TemporaryDirectory(prefix="edl-") as path, make_job(Path(path), seed=seed, workers_min=2) as job:
        ranks.start(job, "float32")
        started = [job.start_rank() for _ in range(3)]
        for number, step in enumerate(kills, 1):
            job.wait_for_round(3)
            job.wait_for_step(step)
            job.kill(started[number])
            started.append(job.start_rank())
        job.wait(lambda: job.end is not None)
        assert job.end is not None
        assert job.end.phase == "Done", job.end
        losses = [started[0].losses.get(step) for step in range(1, STEPS + 1)]
    assert sum(loss is None for loss in losses) <= len(kills), "a step that another rank had applied"
    known = np.array([np.nan if loss is None else loss for loss in losses])
    return np.nanmean(known.reshape(-1, WINDOW), 1)
