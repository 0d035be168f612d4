"""A table that fills: each record names a hundred rows that no other record names. Says when each step was in.

The model of bench/checkpoint_stall.py. The file that ``EDL_BENCH_DIARY`` names gets two doubles for each step: its
number and unix seconds.
"""

from __future__ import annotations

import os
import struct
import time

import keras
import tensorflow as tf

from edl.core.shards import Source
from edl.data.reader import Metadata

EACH = 100
_LINE = struct.Struct("<dd")


class Numbers:
    """Records that are their own numbers."""

    metadata = Metadata("numbers")

    def __init__(self, origin, records):
        self.records = records

    def sources(self):
        return [Source("numbers", self.records)]

    def read(self, source, start, end, on_corrupt=None):
        return [number.to_bytes(8, "little") for number in range(start, end)]


def custom_data_reader(origin, records):
    return Numbers(origin, records)


def custom_model(rows, dim=16):
    ids = keras.Input([EACH], dtype="int64", name="ids")
    x = keras.layers.Embedding(rows, dim, name="rows")(ids)
    return keras.Model(ids, keras.layers.Dense(1)(keras.ops.sum(x, axis=1)))


def loss(labels, predictions):
    return keras.ops.square(predictions[:, 0] - labels)


def optimizer():
    return keras.optimizers.Adagrad(0.01)


def eval_metrics_fn():
    return {}


def feed(dataset, mode, metadata):
    def parse(record):
        first = tf.io.decode_raw(record, tf.int64)[0] * EACH
        return first + tf.range(EACH, dtype=tf.int64), 1.0

    return dataset.map(parse)


class Diary(keras.callbacks.Callback):
    def __init__(self, path):
        super().__init__()
        self.file = open(path, "ab", buffering=0)  # noqa: SIM115  until the process ends

    def on_train_batch_end(self, batch, logs=None):
        self.file.write(_LINE.pack(batch, time.time()))


def callbacks():
    return [Diary(os.environ["EDL_BENCH_DIARY"])]
