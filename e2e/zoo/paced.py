"""Digits, at a speed that the test chooses: `E2E_STEP_SECONDS` is slept after each step.

A job that sleeps lasts as long on a fast machine as on a slow one, and leaves the processors to the jobs beside it.
Once the file `E2E_HURRY` is there it sleeps `E2E_HURRY_SECONDS`: the test has seen what it wanted. The learning rate is
low on purpose: at the end the loss still falls steadily, so that lost updates would show.
"""

import os
import time

import keras
from model_zoo.mnist.records import feed, loss

__all__ = ["callbacks", "custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model(hidden=32):
    layers = [keras.Input([784], name="image"), keras.layers.Dense(hidden, activation="relu"), keras.layers.Dense(10)]
    return keras.Sequential(layers)


def optimizer():
    return keras.optimizers.SGD(0.005)


def eval_metrics_fn():
    return {
        "accuracy": keras.metrics.SparseCategoricalAccuracy(),
        "loss": keras.metrics.SparseCategoricalCrossentropy(from_logits=True),
    }


class PaceCallback(keras.callbacks.Callback):
    """Says when each step was in, and sleeps."""

    def on_train_batch_end(self, batch, logs=None):
        print(f"E2E step at={time.time():.3f}", flush=True)
        hurried = os.path.exists(os.environ["E2E_HURRY"])
        time.sleep(float(os.environ["E2E_HURRY_SECONDS" if hurried else "E2E_STEP_SECONDS"]))


def callbacks():
    return [PaceCallback()]
