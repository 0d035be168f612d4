import tensorflow as tf
from model_zoo.census_wide_deep_model.feature_config import BOUNDARIES, FEATURES
from model_zoo.census_wide_deep_model.feature_info_util import BUCKETIZE, HASH
from model_zoo.census_wide_deep_model.keras_process_layer import (
    AddIdOffset,
    CategoryHash,
    CategoryLookup,
    EmbeddingSum,
    NumericBucket,
)

from elasticdl.python.elasticdl.callbacks import LearningRateScheduler


def transform(info, inputs):
    if info.kind == BUCKETIZE:
        return NumericBucket(info.parameter)(inputs)
    return (CategoryHash if info.kind == HASH else CategoryLookup)(info.parameter)(inputs)


def custom_model():
    inputs = {info.input: tf.keras.layers.Input(name=info.input, shape=(1,), dtype=info.dtype) for info in FEATURES}
    ids = AddIdOffset(BOUNDARIES[:-1])([transform(info, inputs[info.input]) for info in FEATURES])
    wide = EmbeddingSum(BOUNDARIES[-1], 1)(ids)
    deep = tf.keras.layers.Dense(8, activation="relu")(EmbeddingSum(BOUNDARIES[-1], 4)(ids))
    logits = tf.reduce_sum(tf.concat([wide, tf.keras.layers.Dense(1)(deep)], 1), axis=1, keepdims=True)
    return tf.keras.Model(inputs=inputs, outputs={"logits": logits, "probs": tf.sigmoid(logits)})


def loss(labels, predictions):
    labels = tf.cast(tf.reshape(labels, [-1]), tf.float32)
    logits = tf.reshape(predictions["logits"], [-1])
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))


def optimizer(lr=0.01):
    return tf.keras.optimizers.Adam(learning_rate=lr)


def eval_metrics_fn():
    return {
        "logits": {
            "accuracy": lambda labels, predictions: tf.equal(
                tf.cast(tf.reshape(predictions, [-1]) > 0.0, tf.int32), tf.cast(tf.reshape(labels, [-1]), tf.int32)
            )
        },
        "probs": {"auc": tf.keras.metrics.AUC()},
    }


def callbacks():
    def schedule(model_version):
        return 0.01 if model_version < 3 else 0.005

    return [LearningRateScheduler(schedule)]


def feed(dataset, mode, metadata):
    def parse(record):
        description = {info.input: tf.io.FixedLenFeature((1,), info.dtype) for info in FEATURES}
        if mode != "prediction":
            description["label"] = tf.io.FixedLenFeature([], tf.int64)
        features = tf.io.parse_single_example(record, description)
        if mode == "prediction":
            return features
        label = features.pop("label")
        return features, label

    return dataset.map(parse)
