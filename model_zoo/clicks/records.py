"""What the click models share: records as `edl data clicks` writes them, loss and metrics."""

import keras
import tensorflow as tf

NUMBERS, IDS = 13, 26

_FEATURES = {
    "numbers": tf.io.FixedLenFeature([NUMBERS], tf.float32),
    "ids": tf.io.FixedLenFeature([IDS], tf.int64),
    "label": tf.io.FixedLenFeature([], tf.int64),
}
_AT_ONCE = 1024


def inputs():
    return {"numbers": keras.Input([NUMBERS], name="numbers"), "ids": keras.Input([IDS], dtype="int64", name="ids")}


def feed(dataset, mode, metadata):
    def parse(records):
        example = tf.io.parse_example(records, _FEATURES)
        features = {"numbers": example["numbers"], "ids": example["ids"]}
        return features if mode == "prediction" else (features, tf.cast(example["label"], tf.float32))

    # Many records are parsed by one operation: several times as fast as one by one.
    return dataset.batch(_AT_ONCE).map(parse).unbatch()


def loss(labels, predictions):
    return keras.losses.binary_crossentropy(keras.ops.reshape(labels, [-1, 1]), predictions, from_logits=True)


def eval_metrics_fn():
    return {"auc": keras.metrics.AUC(num_thresholds=1000, from_logits=True)}
