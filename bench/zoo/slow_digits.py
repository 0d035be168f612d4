"""The zoo's MLP with Momentum, whose loss is evaluated; a step under AllReduce sleeps for as long as it is told to."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import keras

from edl.keras.replica import ModelReplica

sys.path.append(str(Path(__file__).resolve().parents[2]))
from model_zoo.mnist.mlp import custom_model
from model_zoo.mnist.records import feed, loss

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]

STEP_SECONDS = float(os.environ.get("EDL_BENCH_STEP_SECONDS", "0"))
_compute = ModelReplica.compute


def _sleep_and_compute(self, *arguments, **options):
    time.sleep(STEP_SECONDS)
    return _compute(self, *arguments, **options)


setattr(ModelReplica, "compute", _sleep_and_compute)  # noqa: B010  a type checker refuses the assignment


def optimizer():
    return keras.optimizers.SGD(0.01, momentum=0.9)


def eval_metrics_fn():
    return {"loss": keras.metrics.SparseCategoricalCrossentropy(from_logits=True)}
