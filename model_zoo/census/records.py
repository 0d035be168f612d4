"""What the census models share: the columns of the UCI data set *Adult*, `feed`, preprocessing, loss and metrics.

Who earns more than 50,000 dollars a year? Rows of a CSV file, of which eight cells are words and six are numbers.
"""

import keras
import tensorflow as tf
from model_zoo.census.schema import COLUMNS, NUMBERS, WORDS


def inputs():
    words = {name: keras.Input([1], dtype="string", name=name) for name in WORDS}
    return {**words, **{name: keras.Input([1], name=name) for name in NUMBERS}}


def scaled_numbers(given):
    """All numbers with a mean of about 0 and a variance of about 1. Capital gains and losses are logarithms first."""
    columns = []
    for name, (mean, deviation, is_wide) in NUMBERS.items():
        number = keras.ops.log1p(given[name]) if is_wide else given[name]
        columns.append(keras.layers.Normalization(mean=mean, variance=deviation**2)(number))
    return keras.layers.Concatenate()(columns)


def feed(dataset, mode, metadata):
    places = {name: COLUMNS.index(name) for name in COLUMNS}

    def parse(row):
        features = {name: row[places[name], tf.newaxis] for name in WORDS}
        features |= {name: tf.strings.to_number(row[places[name], tf.newaxis]) for name in NUMBERS}
        return features if mode == "prediction" else (features, tf.cast(row[places["income"]] == ">50K", tf.float32))

    return dataset.map(parse)


def loss(labels, predictions):
    return keras.losses.binary_crossentropy(keras.ops.reshape(labels, [-1, 1]), predictions, from_logits=True)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.BinaryAccuracy(threshold=0.0), "auc": keras.metrics.AUC(from_logits=True)}
