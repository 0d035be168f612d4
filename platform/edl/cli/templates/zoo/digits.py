"""Handwritten digits, 28x28: a small network on records as `edl data mnist` writes them."""

import keras
import tensorflow as tf

FEATURES = {
    "image": tf.io.FixedLenFeature([28 * 28], tf.float32),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


def custom_model(hidden=128):
    """The network. Its arguments can be set in the job file, at model.params."""
    return keras.Sequential(
        [
            keras.Input([28 * 28], name="image"),
            keras.layers.Dense(hidden, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def loss(labels, predictions):
    """One loss per record."""
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def optimizer(learning_rate=0.05):
    """What the parameter servers apply gradients with."""
    return keras.optimizers.SGD(learning_rate)


def eval_metrics_fn():
    """The metrics of evaluations."""
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}


def feed(dataset, mode, metadata):
    """From records as they are in files to (features, label); mode is training, evaluation or prediction."""

    def parse(record):
        example = tf.io.parse_single_example(record, FEATURES)
        image = example["image"] / 255.0
        return image if mode == "prediction" else (image, example["label"])

    return dataset.map(parse)
