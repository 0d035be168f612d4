"""Wide & Deep (Cheng et al., DLRS 2016) on a click log: a linear model of all features beside a network over vectors.

With the default vocabulary both tables are above `ps.embedding_threshold` and served as rows by the parameter servers.
"""

import keras
from keras import ops
from model_zoo.clicks.records import eval_metrics_fn, feed, inputs, loss

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model(vocabulary=1_000_000, dim=16, hidden=(256, 128, 64)):
    given = inputs()
    wide = keras.layers.Embedding(vocabulary, 1, embeddings_initializer="zeros", name="wide")(given["ids"])
    vectors = keras.layers.Embedding(vocabulary, dim, name="vectors")(given["ids"])
    x = keras.layers.Concatenate()([given["numbers"], keras.layers.Flatten()(vectors)])
    for units in hidden:
        x = keras.layers.Dense(units, activation="relu")(x)
    logit = keras.layers.Dense(1)(x) + keras.layers.Dense(1)(given["numbers"]) + ops.sum(wide, axis=1)
    return keras.Model(given, logit)


def optimizer(learning_rate=0.05):
    return keras.optimizers.Adagrad(learning_rate)
