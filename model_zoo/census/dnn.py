"""A network on census rows: each word one-hot, each number scaled, two hidden layers."""

import keras
from model_zoo.census.records import eval_metrics_fn, feed, inputs, loss, scaled_numbers
from model_zoo.census.schema import WORDS

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model(hidden=(64, 32), dropout=0.1):
    given = inputs()
    words = [keras.layers.StringLookup(vocabulary=WORDS[name], output_mode="one_hot")(given[name]) for name in WORDS]
    x = keras.layers.Concatenate()([scaled_numbers(given), *words])
    for units in hidden:
        x = keras.layers.Dense(units, activation="relu")(x)
        x = keras.layers.Dropout(dropout)(x)
    return keras.Model(given, keras.layers.Dense(1)(x))


def optimizer(learning_rate=0.003):
    return keras.optimizers.Adam(learning_rate)
