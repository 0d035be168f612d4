"""The smallest model that learns digits: 784-128-10 with ReLU and plain SGD. What the benchmark trains."""

import keras
from model_zoo.mnist.records import eval_metrics_fn, feed, loss

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model(hidden=128):
    return keras.Sequential(
        [keras.Input([784], name="image"), keras.layers.Dense(hidden, activation="relu"), keras.layers.Dense(10)]
    )


def optimizer(learning_rate=0.1):
    return keras.optimizers.SGD(learning_rate)
