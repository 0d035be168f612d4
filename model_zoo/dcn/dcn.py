"""DCN-V2 (Wang et al., WWW 2021) on a click log: cross layers beside a network, each of which sees the other's input.

A cross layer multiplies the input with a linear function of what is before it, so that each layer raises the degree
of the products by one. DeepFM has products of two vectors only.
"""

import keras
from model_zoo.clicks.records import eval_metrics_fn, feed, inputs, loss

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model(vocabulary=1_000_000, dim=16, crosses=3, hidden=(256, 128)):
    given = inputs()
    vectors = keras.layers.Embedding(vocabulary, dim, name="vectors")(given["ids"])
    first = keras.layers.Concatenate()([given["numbers"], keras.layers.Flatten()(vectors)])
    crossed = first
    for _ in range(crosses):
        crossed = crossed + first * keras.layers.Dense(first.shape[-1])(crossed)
    deep = first
    for units in hidden:
        deep = keras.layers.Dense(units, activation="relu")(deep)
    return keras.Model(given, keras.layers.Dense(1)(keras.layers.Concatenate()([crossed, deep])))


def optimizer(learning_rate=0.001):
    return keras.optimizers.Adam(learning_rate)
