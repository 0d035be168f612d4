import tensorflow as tf

from elasticdl.python.elasticdl.feature_column import feature_column

NUMERIC = ("age", "hours_per_week")
TEXT = ("workclass", "education")


def get_feature_columns():
    columns = [tf.feature_column.numeric_column(name) for name in NUMERIC]
    for name in TEXT:
        ids = tf.feature_column.categorical_column_with_hash_bucket(name, hash_bucket_size=16)
        columns.append(feature_column.embedding_column(ids, dimension=4))
    return columns


def get_feature_input_layers():
    layers = {name: tf.keras.layers.Input(name=name, shape=(1,), dtype=tf.float32) for name in NUMERIC}
    layers |= {name: tf.keras.layers.Input(name=name, shape=(1,), dtype=tf.string) for name in TEXT}
    return layers


def parse(record):
    description = {name: tf.io.FixedLenFeature([], tf.float32) for name in NUMERIC}
    description |= {name: tf.io.FixedLenFeature([], tf.string) for name in TEXT}
    description["label"] = tf.io.FixedLenFeature([], tf.int64)
    features = tf.io.parse_single_example(record, description)
    labels = features.pop("label")
    return {name: tf.expand_dims(value, -1) for name, value in features.items()}, labels
