import tensorflow as tf

NUMERIC = ("age", "hours_per_week")
TEXT = ("workclass", "education")


def get_feature_columns():
    columns = [tf.feature_column.numeric_column(name) for name in NUMERIC]
    for name in TEXT:
        ids = tf.feature_column.categorical_column_with_hash_bucket(name, hash_bucket_size=16)
        columns.append(tf.feature_column.embedding_column(ids, dimension=4))
    return columns


def get_feature_input_layers():
    layers = {name: tf.keras.layers.Input(name=name, shape=(1,), dtype=tf.float32) for name in NUMERIC}
    layers |= {name: tf.keras.layers.Input(name=name, shape=(1,), dtype=tf.string) for name in TEXT}
    return layers
