"""A small model with a dense part and a table; slow while a file ``slow`` lies beside it, so that it can be stopped."""

import time
from pathlib import Path

import keras
import tensorflow as tf


def custom_model():
    record = keras.Input((2,), name="record")
    rows = keras.layers.Embedding(50, 4, name="rows")(keras.ops.cast(record[:, 0], "int32"))
    joined = keras.layers.Concatenate()([rows, record[:, 1:]])
    return keras.Model(record, keras.layers.Dense(1, name="out")(joined))


def loss(labels, predictions):
    return tf.reduce_mean(tf.square(tf.reshape(labels, (-1, 1)) - predictions))


def optimizer():
    return keras.optimizers.SGD(0.01)


def eval_metrics_fn():
    return {"mse": keras.metrics.MeanSquaredError()}


class Pace(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if Path(__file__).with_name("slow").exists():
            time.sleep(0.1)


def callbacks():
    return [Pace(), keras.callbacks.EarlyStopping("val_mse", mode="min", patience=50, restore_best_weights=True)]


def feed(dataset, mode, metadata):
    def parsed(row):
        numbers = tf.strings.to_number(row)
        if mode == "prediction":
            return numbers[:2]
        if mode == "training" and Path(__file__).with_name("kills").exists():
            tf.py_function(kill, [numbers[0], numbers[1]], [])
        return numbers[:2], numbers[2]

    return dataset.map(parsed)


def kill(first, second):
    import os

    if int(first) == 7 and float(second) > 0.99:
        os.kill(os.getpid(), 9)
