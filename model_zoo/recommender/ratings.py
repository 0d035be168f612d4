"""Would this user like this item: two Embeddings and a dot product, as click-through models begin.

With the default 200,000 users and 16 columns the table of users (12.8 MB) is above `ps.embedding_threshold` and served
as rows by the parameter servers; the small table of items stays dense. Nothing here says so.
"""

import keras
import tensorflow as tf

_FEATURES = {
    "user": tf.io.FixedLenFeature([], tf.int64),
    "item": tf.io.FixedLenFeature([], tf.int64),
    "liked": tf.io.FixedLenFeature([], tf.float32),
}


def custom_model(users=200_000, items=1_000, dim=16):
    user = keras.Input([], dtype="int64", name="user")
    item = keras.Input([], dtype="int64", name="item")
    taste = keras.layers.Embedding(users, dim, name="users")(user)
    kind = keras.layers.Embedding(items, dim, name="items")(item)
    x = keras.layers.Concatenate()([taste, kind, taste * kind])
    x = keras.layers.Dense(16, activation="relu")(x)
    return keras.Model({"user": user, "item": item}, keras.layers.Dense(1)(x))


def loss(labels, predictions):
    return keras.losses.binary_crossentropy(labels[:, None], predictions, from_logits=True)


def optimizer(learning_rate=0.1):
    return keras.optimizers.Adagrad(learning_rate)


def eval_metrics_fn():
    return {
        "accuracy": keras.metrics.BinaryAccuracy(threshold=0.0),
        "auc": keras.metrics.AUC(from_logits=True),
    }


def feed(dataset, mode, metadata):
    def parse(record):
        example = tf.io.parse_single_example(record, _FEATURES)
        features = {"user": example["user"], "item": example["item"]}
        return features if mode == "prediction" else (features, example["liked"])

    return dataset.map(parse)
