"""DeepFM (Guo et al., IJCAI 2017) on a click log: a weight for each id, products of their vectors, and a network.

With the default vocabulary both tables, 4 MB of weights and 64 MB of vectors, are above `ps.embedding_threshold` and
served as rows by the parameter servers.
"""

import keras
from keras import ops
from model_zoo.clicks.records import eval_metrics_fn, feed, inputs, loss

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model(vocabulary=1_000_000, dim=16, hidden=(256, 128, 64)):
    given = inputs()
    weights = keras.layers.Embedding(vocabulary, 1, name="weights")(given["ids"])
    vectors = keras.layers.Embedding(vocabulary, dim, name="vectors")(given["ids"])
    # The sum of the products of all pairs, without going through the pairs.
    pairs = (ops.square(ops.sum(vectors, axis=1)) - ops.sum(ops.square(vectors), axis=1)) / 2
    x = keras.layers.Concatenate()([given["numbers"], keras.layers.Flatten()(vectors)])
    for units in hidden:
        x = keras.layers.Dense(units, activation="relu")(x)
    logit = keras.layers.Dense(1)(x) + ops.sum(weights, axis=1) + ops.sum(pairs, axis=1, keepdims=True)
    return keras.Model(given, logit)


def optimizer(learning_rate=0.05):
    return keras.optimizers.Adagrad(learning_rate)
