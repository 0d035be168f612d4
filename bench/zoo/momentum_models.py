"""A CNN of a million parameters and an MLP of ten, with Momentum, on random images of 28 x 28 pixels in memory."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from edl.core.record_ranges import RecordSource
from edl.data.reader import Metadata, Reader

RATE, MOMENTUM = 0.01, 0.9
SIDE, CLASSES = 28, 10
_IMAGES = 1024


def cnn():
    return keras.Sequential(
        [
            keras.Input([SIDE * SIDE], name="image"),
            keras.layers.Reshape([SIDE, SIDE, 1]),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(600, activation="relu"),
            keras.layers.Dense(CLASSES),
        ]
    )


def mlp():
    return keras.Sequential(
        [
            keras.Input([SIDE * SIDE], name="image"),
            keras.layers.Dense(2800, activation="relu"),
            keras.layers.Dense(2800, activation="relu"),
            keras.layers.Dense(CLASSES),
        ]
    )


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def optimizer():
    return keras.optimizers.SGD(RATE, momentum=MOMENTUM)


def eval_metrics_fn():
    return {}


def images(count, seed=0):
    """Pixels as bytes, and a class in the last byte of each row."""
    random = np.random.default_rng(seed)
    rows = random.integers(0, 256, [count, SIDE * SIDE + 1], np.uint8)
    rows[:, -1] %= CLASSES
    return rows


class ImageReader:
    """Goes round in a few images. Args: ``records``: how many records that makes."""

    metadata = Metadata("images")

    def __init__(self, records):
        self.records = records
        self.rows = [row.tobytes() for row in images(_IMAGES)]

    def sources(self):
        return [RecordSource("images", self.records)]

    def read(self, source, start, end, on_corrupt=None):
        return [self.rows[number % _IMAGES] for number in range(start, end)]


def custom_data_reader(origin, records) -> Reader:
    return ImageReader(records)


def feed(dataset, mode, metadata):
    def parse(records):
        rows = tf.io.decode_raw(records, tf.uint8)
        return tf.cast(rows[:, :-1], tf.float32) / 255, tf.cast(rows[:, -1], tf.int32)

    return dataset.batch(_IMAGES).map(parse).unbatch()
