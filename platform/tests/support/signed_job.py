"""A job in which every record signs the updates that it was part of.

Each record has a row of its own on every parameter server, zero until the record is trained on. Rows are updated by
Adam when they are named and stand still otherwise. So the row of a record that was in one update says so - its two
moments are those of one gradient - and says in which one, because the learning rate rises with every update and a first
step of Adam does not depend on the gradient's size. From a checkpoint alone follows which records every update was made
of, on every parameter server, and plain Keras can do the same updates again.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from support.job_folder import EXAMPLE_FEED, JobFolder, write_example_arrays, write_module
from support.job_process import JobProcess

from edl.core.partition import initial_placement, slot_of_row

WIDTH, HIDDEN, MINIBATCH = 4, 8, 8
RATE, BETA_1, BETA_2, EPSILON = 1e-5, 0.9, 0.999, 1e-7

ZOO = '''
"""A small regression whose records have rows of their own."""

import keras
import tensorflow as tf


class RisingRate(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return RATE * (tf.cast(step, tf.float32) + 1.0)

    def get_config(self):
        return {}


def custom_model(rows):
    x = keras.Input((WIDTH,), name="x")
    ids = keras.Input((IDS,), dtype="int32", name="ids")
    signature = keras.layers.Embedding(rows, 1, embeddings_initializer="zeros", name="signature")(ids)
    hidden = keras.layers.Dense(HIDDEN, activation="tanh", name="hidden")(x)
    out = keras.layers.Dense(1, name="out")(hidden)
    return keras.Model([x, ids], out + keras.ops.sum(signature, axis=1))


def loss(labels, predictions):
    return tf.reduce_mean(tf.square(predictions - labels))


def optimizer():
    return keras.optimizers.Adam(RisingRate())


def eval_metrics_fn():
    return {"error": keras.metrics.MeanAbsoluteError()}
'''


@dataclass(frozen=True)
class ShardSignatures:
    """What one parameter server's rows say.

    Attributes:
        updates: the records of each update, by its number from 1.
        odd: records whose row is not that of one update.
        absent: records that were in none.
    """

    updates: dict[int, list[int]]
    odd: list[int]
    absent: list[int]


@dataclass(frozen=True)
class SignedJob:
    """The job, and its records: ``x`` and ``y``, and ``ids`` by parameter server."""

    job_folder: JobFolder
    x: NDArray[np.float32]
    y: NDArray[np.float32]
    ids: NDArray[np.int64]

    @classmethod
    def make(cls, folder: Path, *, records: int, ps: int = 1, workers: int = 2, **fields: Any) -> SignedJob:
        """Write model, data and job file; ``fields`` are those of the job."""
        constants = {"WIDTH": WIDTH, "HIDDEN": HIDDEN, "RATE": RATE, "IDS": ps}
        zoo = write_module(folder, "signed", ZOO + EXAMPLE_FEED, constants)
        random = np.random.default_rng(5)
        x = random.normal(size=(records, WIDTH)).astype(np.float32)
        y = (3 + x[:, :1] * x[:, 1:2] + random.uniform(-0.5, 0.5, (records, 1))).astype(np.float32)
        ids = np.column_stack([list(islice(owned(part, ps), records)) for part in range(ps)])
        write_example_arrays(folder / "train.recordio", x, ids, y, chunk_limit=1 << 12)
        sections: dict[str, Any] = {
            "data": {"training": str(folder / "train.recordio")},
            "train": {"minibatch_size": MINIBATCH, "minibatches_per_task": 16},
            "strategy": {"mode": "sync", "grads_to_wait": workers},
            "checkpoint": {"every_steps": 10_000, "keep": 100},
            "ps": {"count": ps, "embedding_threshold": 64},
            "workers": {"max": workers},
            **fields,
        }
        params = {"rows": int(ids.max()) + 1}
        job_folder = JobFolder.make(folder, "signed", "signed.custom_model", zoo=zoo, params=params, **sections)
        return cls(job_folder, x, y, ids)

    def start(self, *options: str) -> JobProcess:
        return self.job_folder.run(*options)

    def signatures(self, cut: Path, part: int) -> ShardSignatures:
        """What the rows of one parameter server's shard say."""
        record = {int(row): index for index, row in enumerate(self.ids[:, part])}
        ids, values, first, second = _rows(cut / f"ps-{part}.safetensors")
        updates: dict[int, list[int]] = {}
        odd = []
        numbers = _numbers(values, first, second, most=len(record))
        for row, number in zip(ids.tolist(), numbers.tolist(), strict=True):
            if number:
                updates.setdefault(number, []).append(record[row])
            else:
                odd.append(record[row])
        absent = sorted(record.keys() - set(ids.tolist()))
        return ShardSignatures(dict(sorted(updates.items())), sorted(odd), [record[row] for row in absent])

    def in_keras(self, start: dict[str, Any], updates: dict[int, list[int]]) -> dict[str, NDArray[np.float32]]:
        """Train plain Keras from the values of ``start``, with the records of each update as one minibatch."""
        import keras
        import tensorflow as tf

        class RisingRate(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
            def __call__(self, step: Any) -> Any:
                return RATE * (tf.cast(step, tf.float32) + 1.0)

            def get_config(self) -> dict[str, Any]:
                return {}

        inputs = keras.Input((WIDTH,))
        hidden = keras.layers.Dense(HIDDEN, activation="tanh", name="hidden")(inputs)
        model = keras.Model(inputs, keras.layers.Dense(1, name="out")(hidden))
        for weight in model.weights:
            weight.assign(start[weight.path])
        model.compile(keras.optimizers.Adam(RisingRate()), loss="mse", jit_compile=False)  # XLA compiles each size anew
        for records in updates.values():
            model.train_on_batch(self.x[records], self.y[records])
        return {weight.path: np.asarray(weight) for weight in model.weights}


def owned(part: int, parts: int) -> Any:
    """Row ids of one parameter server, increasing."""
    slots = initial_placement(parts)
    return (row for row in count() if slots[slot_of_row(row)] == part)


def dense(cut: Path) -> dict[str, NDArray[np.float32]]:
    """The dense variables of a checkpoint, by name."""
    variables = {}
    for file in sorted(cut.glob("ps-*.safetensors")):
        with safe_open(file, framework="np") as arrays:
            for name in arrays.keys():  # noqa: SIM118  not a mapping
                if name.startswith("dense/"):
                    variables[name.removeprefix("dense/")] = arrays.get_tensor(name)
    return variables


def _rows(shard: Path) -> list[NDArray[Any]]:
    wanted = ("ids", "values", "slot/momentum", "slot/velocity")
    with safe_open(shard, framework="np") as arrays:
        names = [name for name in arrays.keys() if name.startswith("rows/")]  # noqa: SIM118
        table = next(name for name in names if name.endswith("/ids")).removesuffix("/ids")
        return [arrays.get_tensor(f"{table}/{name}").ravel() for name in wanted]


def _numbers(values: NDArray[Any], first: NDArray[Any], second: NDArray[Any], *, most: int) -> NDArray[np.int64]:
    """Number of the one update that each row was in, from 1; 0 where the row is not that of one update."""
    values, first, second = (array.astype(np.float64) for array in (values, first, second))
    once = np.isclose(second, (1 - BETA_2) * (first / (1 - BETA_1)) ** 2, rtol=1e-3)
    t = np.arange(1, most + 1, dtype=np.float64)
    scale = t * np.sqrt(1 - BETA_2**t) / (1 - BETA_1**t)  # increasing
    implied_scale = values / (-RATE * first / (np.sqrt(second) + EPSILON))
    after = np.clip(np.searchsorted(scale, implied_scale), 1, most - 1)
    nearest = np.where(implied_scale - scale[after - 1] < scale[after] - implied_scale, after - 1, after)
    return np.where(once & np.isclose(scale[nearest], implied_scale, rtol=1e-4), nearest + 1, 0)
