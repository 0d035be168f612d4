import tensorflow as tf
from deepctr.feature_column import DenseFeat, SparseFeat, get_feature_names
from deepctr.models import WDL

NUMERIC = ["I1", "I2"]
CATEGORIES = ["C1", "C2", "C3"]


def custom_model():
    columns = [
        SparseFeat(name, vocabulary_size=32, embedding_dim=4, use_hash=True, dtype="string") for name in CATEGORIES
    ]
    columns += [DenseFeat(name, 1) for name in NUMERIC]
    assert sorted(get_feature_names(columns)) == sorted(CATEGORIES + NUMERIC)
    return WDL(columns, columns, dnn_hidden_units=(8,), task="binary")


def loss(labels, predictions):
    labels = tf.cast(tf.reshape(labels, (-1, 1)), tf.float32)
    return tf.reduce_mean(tf.keras.losses.binary_crossentropy(labels, predictions))


def optimizer(lr=0.01):
    return tf.keras.optimizers.Adam(learning_rate=lr)


def eval_metrics_fn():
    return {"auc": tf.keras.metrics.AUC()}


def feed(dataset, mode, metadata):
    def parse(record):
        description = {name: tf.io.FixedLenFeature((1,), tf.float32) for name in NUMERIC}
        description |= {name: tf.io.FixedLenFeature((1,), tf.string) for name in CATEGORIES}
        description["label"] = tf.io.FixedLenFeature([], tf.int64)
        features = tf.io.parse_single_example(record, description)
        label = features.pop("label")
        return features if mode == "prediction" else (features, label)

    return dataset.map(parse)
