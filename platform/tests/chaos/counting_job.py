"""A job that counts: each record that is applied adds exactly 1 to elements of its own.

Record r owns element r of four dense variables and row r of one table. The loss is the negative sum of the batch's
elements, so the gradient of each is -1, whatever their values are and whoever pushed before.

* Asynchronous modes and AllReduce use SGD with a learning rate of 1. An element counts the applications of its record.
* In sync mode an update is the *mean* of the pushes of a round, so a gradient is -1/k with k unknown. Adagrad that
  starts from an empty accumulator makes 1 of the first gradient of an element whatever its size, and never again:
  a record that was applied twice shows as a value that is not 1. Such a job has one epoch.

The model sleeps after each step, until the file ``hurry`` appears, so that faults meet a job at work on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.job_folder import JobFolder, write_examples, write_module

DENSE = ("dense_a", "dense_b", "dense_c", "dense_d")
TABLE = "rows"
MINIBATCH = 16
MODES: dict[str, dict[str, Any]] = {
    "async": {"ps": 2, "strategy": {"mode": "async"}},
    "sync": {"ps": 2, "strategy": {"mode": "sync", "grads_to_wait": 2}},
    "overlap": {"ps": 2, "strategy": {"mode": "async", "overlap": True}},
    "one-ps": {"ps": 1, "strategy": {"mode": "async"}},
    "all-reduce": {"ps": 0, "strategy": {"name": "AllReduce"}},
    "global-batch": {"ps": 0, "strategy": {"name": "AllReduce", "global_batch": 40}},
}

ZOO = '''
"""Counts how often each record is applied."""

import os
import time

import keras
import tensorflow as tf


def custom_model(records, table_width):
    record = keras.Input((1,), dtype="int32", name="record")
    dense = [keras.layers.Embedding(records, 1, embeddings_initializer="zeros", name=name)(record) for name in DENSE]
    rows = keras.layers.Embedding(records, table_width, embeddings_initializer="zeros", name=TABLE)(record)
    return keras.Model(record, keras.layers.Concatenate()([*dense, rows]))


def loss(labels, predictions):
    return -tf.reduce_sum(predictions)


def optimizer():
    if SYNC:
        return keras.optimizers.Adagrad(1.0, initial_accumulator_value=0.0, epsilon=1e-30)
    return keras.optimizers.SGD(1.0)


def eval_metrics_fn():
    return {}


class PaceCallback(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if not os.path.exists(HURRY):
            time.sleep(STEP_SECONDS)


def callbacks():
    return [PaceCallback()]


def feed(dataset, mode, metadata):
    def parsed(record):
        found = tf.io.parse_single_example(record, {"record": tf.io.FixedLenFeature((1,), tf.int64)})
        return tf.cast(found["record"], tf.int32), tf.zeros((1,))

    return dataset.map(parsed)
'''
TABLE_WIDTH = 2


@dataclass(frozen=True)
class CountingJob:
    """The job, and what it counts.

    Attributes:
        records: of one epoch; record r is the r-th of the only source.
        epochs: how often each is to be applied.
        ps: parameter servers; 0: none, under AllReduce.
    """

    job_folder: JobFolder
    mode: str
    records: int
    epochs: int
    ps: int

    @classmethod
    def make(cls, folder: Path, mode: str, *, steps: int, step_seconds: float, workers: int = 3) -> CountingJob:
        """Write model, data and job file; the job has about ``steps`` minibatches."""
        sync = mode == "sync"
        records = (steps if sync else 800) * MINIBATCH
        epochs = 1 if sync else max(1, steps // 800)
        constants = {
            "DENSE": DENSE,
            "TABLE": TABLE,
            "SYNC": sync,
            "STEP_SECONDS": step_seconds,
            "HURRY": str(folder / "hurry"),
        }
        zoo = write_module(folder, "counting", ZOO, constants)
        examples = ({"record": [number]} for number in range(records))
        training = write_examples(folder / "train.recordio", examples, chunk_limit=1 << 14)
        dense_bytes = records * np.dtype(np.float32).itemsize
        sections: dict[str, Any] = {
            "data": {"training": str(training)},
            "train": {"epochs": epochs, "minibatch_size": MINIBATCH, "minibatches_per_task": 16},
            "strategy": MODES[mode]["strategy"],
            "checkpoint": {"every_steps": 100, "keep": 3},
            "workers": {"max": workers},
        }
        ps = MODES[mode]["ps"]
        if ps:
            # Only the table is above the threshold: it is twice as wide as a dense variable.
            sections["ps"] = {"count": ps, "embedding_threshold": dense_bytes + dense_bytes // 2}
        params = {"records": records, "table_width": TABLE_WIDTH}
        job_folder = JobFolder.make(folder, "counting", "counting.custom_model", zoo=zoo, params=params, **sections)
        return cls(job_folder, mode, records, epochs, ps)

    def hurry(self) -> None:
        """Let the model sleep no more."""
        (self.job_folder.folder / "hurry").touch()
