import tensorflow as tf
from model_zoo.census_dnn_model.census_feature_columns import get_feature_columns, parse
from tensorflow.python.keras.metrics import accuracy


def custom_model():
    return tf.keras.models.Sequential(
        [
            tf.keras.layers.DenseFeatures(get_feature_columns()),
            tf.keras.layers.Dense(16, activation="relu"),
            tf.keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def loss(labels, predictions):
    labels = tf.expand_dims(tf.cast(labels, tf.float32), axis=1)
    return tf.reduce_mean(tf.keras.losses.binary_crossentropy(labels, predictions))


def optimizer(lr=0.01):
    return tf.keras.optimizers.Adam(learning_rate=lr)


def eval_metrics_fn():
    return {
        "accuracy": lambda labels, predictions: accuracy(
            tf.cast(labels, tf.int32), tf.cast(tf.round(tf.reshape(predictions, [-1])), tf.int32)
        )
    }


def feed(dataset, mode, metadata):
    dataset = dataset.map(parse)
    return dataset.map(lambda features, labels: features) if mode == "prediction" else dataset
