"""The same model with an optimizer that keeps slots, for rows on parameter servers, and a callback that ends soon."""

from pathlib import Path

import keras
from recorded import Pace, custom_model, eval_metrics_fn, feed, loss

__all__ = ["callbacks", "custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def optimizer():
    return keras.optimizers.Adam(0.01)


def callbacks():
    patience = 1 if Path(__file__).with_name("impatient").exists() else 50
    return [
        Pace(),
        keras.callbacks.EarlyStopping("val_mse", mode="min", patience=patience, restore_best_weights=True),
    ]
