"""A table that fills: each record names a hundred rows that no other record names."""

from __future__ import annotations

import keras
import tensorflow as tf
from step_log import StepLog

from edl.core.shuffle import RecordSource
from edl.data.reader import Metadata, Reader

EACH = 100


class NumberReader:
    """Records that are their own numbers."""

    metadata = Metadata("numbers")

    def __init__(self, origin, records):
        self.records = records

    def sources(self):
        return [RecordSource("numbers", self.records)]

    def read(self, source, start, end, on_corrupt=None):
        return [number.to_bytes(8, "little") for number in range(start, end)]


def custom_data_reader(origin, records) -> Reader:
    return NumberReader(origin, records)


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


def callbacks():
    return [StepLog()]
