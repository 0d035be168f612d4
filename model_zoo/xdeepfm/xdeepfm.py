"""xDeepFM (Lian et al., KDD 2018) on a click log: a compressed interaction network beside a linear model and a network.

Each of its layers multiplies the rows of the layer before with the features' vectors, column by column, and compresses
all these products to a few rows. So products are of whole vectors, as in DeepFM, and of any degree, as in DCN.
"""

import keras
from keras import ops
from model_zoo.clicks.records import IDS, eval_metrics_fn, feed, inputs, loss

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model(vocabulary=1_000_000, dim=10, rows=(64, 64), hidden=(256, 128)):
    given = inputs()
    weights = keras.layers.Embedding(vocabulary, 1, embeddings_initializer="zeros", name="weights")(given["ids"])
    vectors = keras.layers.Embedding(vocabulary, dim, name="vectors")(given["ids"])
    sums, layer, height = [], vectors, IDS
    for number, count in enumerate(rows, 1):
        products = ops.expand_dims(layer, 2) * ops.expand_dims(vectors, 1)  # of each row with each feature
        pairs = ops.transpose(ops.reshape(products, [-1, height * IDS, dim]), [0, 2, 1])
        compressed = keras.layers.Dense(count, use_bias=False, name=f"interactions_{number}")(pairs)
        layer, height = ops.transpose(compressed, [0, 2, 1]), count
        sums.append(ops.sum(layer, axis=2))
    deep = keras.layers.Concatenate()([given["numbers"], keras.layers.Flatten()(vectors)])
    for units in hidden:
        deep = keras.layers.Dense(units, activation="relu")(deep)
    logit = keras.layers.Dense(1)(keras.layers.Concatenate()([*sums, deep])) + ops.sum(weights, axis=1)
    return keras.Model(given, logit)


def optimizer(learning_rate=0.05):
    return keras.optimizers.Adagrad(learning_rate)
