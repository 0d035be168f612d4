import tensorflow as tf

from elasticdl.python.elasticdl.feature_column import feature_column

NUMERIC = ("trestbps", "chol", "thalach", "oldpeak")


def get_feature_columns():
    columns = [tf.feature_column.numeric_column(name) for name in NUMERIC]
    age = tf.feature_column.bucketized_column(tf.feature_column.numeric_column("age"), boundaries=[30, 45, 60])
    thal = tf.feature_column.categorical_column_with_hash_bucket("thal", hash_bucket_size=8)
    return [*columns, age, feature_column.embedding_column(thal, dimension=4)]


def custom_model():
    inputs = {name: tf.keras.layers.Input(name=name, shape=(1,), dtype=tf.float32) for name in NUMERIC}
    inputs["age"] = tf.keras.layers.Input(name="age", shape=(1,), dtype=tf.int64)
    inputs["thal"] = tf.keras.layers.Input(name="thal", shape=(1,), dtype=tf.string)
    x = tf.keras.layers.DenseFeatures(get_feature_columns())(inputs)
    x = tf.keras.layers.Dense(16, activation="relu")(x)
    outputs = tf.keras.layers.Dense(1, activation="sigmoid")(x)
    return tf.keras.Model(inputs=inputs, outputs=outputs)


def loss(labels, predictions):
    return tf.reduce_mean(tf.keras.losses.binary_crossentropy(tf.reshape(labels, (-1, 1)), predictions))


def optimizer(lr=1e-6):
    return tf.optimizers.SGD(learning_rate=lr)


def eval_metrics_fn():
    return {
        "accuracy": lambda labels, predictions: tf.equal(
            tf.cast(tf.reshape(predictions, [-1]) > 0.5, tf.int32), tf.cast(tf.reshape(labels, [-1]), tf.int32)
        )
    }


def feed(dataset, mode, metadata):
    def parse(record):
        description = {name: tf.io.FixedLenFeature((), tf.float32) for name in NUMERIC}
        description["age"] = tf.io.FixedLenFeature((), tf.int64)
        description["thal"] = tf.io.FixedLenFeature((), tf.string)
        description["target"] = tf.io.FixedLenFeature((), tf.int64)
        example = tf.io.parse_single_example(record, description)
        label = example.pop("target")
        return {name: tf.expand_dims(value, -1) for name, value in example.items()}, label

    return dataset.map(parse)
