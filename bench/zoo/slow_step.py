"""A small dense model of which a step takes long and costs little: nearly all of it is sleep.

So several workers on few cores wait for each other only where the protocol has them wait.
"""

from __future__ import annotations

import keras
import tensorflow as tf
from many_rows import custom_data_reader, eval_metrics_fn, loss
from step_log import StepLog

__all__ = ["callbacks", "custom_data_reader", "custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]

STEP_SECONDS = 0.1
WIDTH = 256


def custom_model():
    return keras.Sequential(
        [
            keras.Input([WIDTH], name="wave"),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.Adam(0.001)


def feed(dataset, mode, metadata):
    def parse(record):
        number = tf.cast(tf.io.decode_raw(record, tf.int64)[0], tf.float32)
        return tf.sin(number * tf.range(WIDTH, dtype=tf.float32)), 1.0

    return dataset.map(parse)


def callbacks():
    return [StepLog(STEP_SECONDS)]
