"""Models with one Embedding of as many rows as are asked for, made in the ways in which people make models.

For bench/embedding_build.py, which builds them and trains none.
"""

from __future__ import annotations

import keras

DIM = 16


def functional(rows):
    ids = keras.Input([26], dtype="int64", name="ids")
    x = keras.layers.Embedding(rows, DIM, name="huge")(ids)
    return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(x)))


def sequential(rows):
    layers = [keras.layers.Embedding(rows, DIM, name="huge"), keras.layers.Flatten(), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input([26], dtype="int64", name="ids"), *layers])


def nested(rows):
    ids = keras.Input([26], dtype="int64", name="ids")
    return keras.Model(ids, keras.layers.Dense(1)(sequential(rows)(ids)))


class HugeTableModel(keras.Model):
    def __init__(self, rows):
        super().__init__()
        self.huge = keras.layers.Embedding(rows, DIM, name="huge")
        self.flat, self.last = keras.layers.Flatten(), keras.layers.Dense(1)

    def call(self, ids, training=False):
        return self.last(self.flat(self.huge(ids)))


def loss(labels, predictions):
    return keras.ops.square(predictions[:, 0] - labels)


def optimizer():
    return keras.optimizers.Adagrad(0.01)


def eval_metrics_fn():
    return {}


def feed(dataset, mode, metadata):
    raise NotImplementedError("these models are built, not trained")
