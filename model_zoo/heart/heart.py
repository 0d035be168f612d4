"""Heart disease from 13 columns of a CSV file: bins, one-hot codes, a word that is looked up, and scaled numbers.

Every preprocessing step is a layer of the model, so the exported model takes patients as they are in the file.
"""

import keras
import tensorflow as tf
from keras import layers
from model_zoo.heart.schema import CODES, COLUMNS, NUMBERS, THAL


def custom_model(hidden=(16, 16), dropout=0.2):
    numbers = {name: keras.Input([1], name=name) for name in NUMBERS}
    codes = {name: keras.Input([1], dtype="int64", name=name) for name in CODES}
    thal = keras.Input([1], dtype="string", name="thal")
    columns = [layers.Normalization(mean=mean, variance=sd**2)(numbers[name]) for name, (mean, sd) in NUMBERS.items()]
    decades = layers.Discretization([35, 40, 45, 50, 55, 60, 65], output_mode="one_hot")(numbers["age"])
    # A code above those that are known is an unknown one, which IntegerLookup maps to index 0.
    flags = [
        layers.IntegerLookup(vocabulary=list(range(count)), output_mode="one_hot")(codes[name])
        for name, count in CODES.items()
    ]
    test = layers.StringLookup(vocabulary=THAL, output_mode="one_hot")(thal)
    x = layers.Concatenate()([*columns, decades, *flags, test])
    for units in hidden:
        x = layers.Dropout(dropout)(layers.Dense(units, activation="relu")(x))
    return keras.Model({**numbers, **codes, "thal": thal}, layers.Dense(1)(x))


def feed(dataset, mode, metadata):
    def parse(row):
        cells = {name: row[at, tf.newaxis] for at, name in enumerate(COLUMNS)}
        features = {name: tf.strings.to_number(cells[name]) for name in NUMBERS}
        features |= {name: tf.strings.to_number(cells[name], tf.int64) for name in CODES}
        features["thal"] = cells["thal"]
        return features if mode == "prediction" else (features, tf.strings.to_number(cells["target"]))

    return dataset.map(parse)


def loss(labels, predictions):
    return keras.losses.binary_crossentropy(labels, predictions, from_logits=True)


def optimizer(learning_rate=0.01):
    return keras.optimizers.Adam(learning_rate)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.BinaryAccuracy(threshold=0.0), "auc": keras.metrics.AUC(from_logits=True)}
