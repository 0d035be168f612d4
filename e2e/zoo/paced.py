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
    """Says when each step was in, and sleeps: ``seconds``, or ``hurried_seconds`` once ``hurry_file`` is there."""

    def __init__(self, seconds, hurry_file, hurried_seconds):
        super().__init__()
        self.seconds, self.hurry_file, self.hurried_seconds = seconds, hurry_file, hurried_seconds

    def on_train_batch_end(self, batch, logs=None):
        print(f"E2E step at={time.time():.3f}", flush=True)
        time.sleep(self.hurried_seconds if os.path.exists(self.hurry_file) else self.seconds)


def callbacks():
    pace = os.environ
    return [PaceCallback(float(pace["E2E_STEP_SECONDS"]), pace["E2E_HURRY"], float(pace["E2E_HURRY_SECONDS"]))]
