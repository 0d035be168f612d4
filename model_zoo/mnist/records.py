"""What the MNIST models share: records as `edl data mnist` writes them, loss and metrics."""

import keras
import tensorflow as tf

_FEATURES = {
    "image": tf.io.FixedLenFeature([28 * 28], tf.float32),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


def feed(dataset, mode, metadata):
    def parse(record):
        example = tf.io.parse_single_example(record, _FEATURES)
        image = example["image"] / 255.0
        return image if mode == "prediction" else (image, example["label"])

    return dataset.map(parse)


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
