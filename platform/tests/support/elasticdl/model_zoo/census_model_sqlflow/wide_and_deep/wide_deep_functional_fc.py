import tensorflow as tf
from model_zoo.census_model_sqlflow.wide_and_deep.feature_configs import (
    age,
    deep,
    education,
    get_input_layers,
    hours,
    wide,
    workclass,
)

from elasticdl.python.elasticdl.callbacks import LearningRateScheduler
from elasticdl_preprocessing.feature_column import feature_column as fc


def make_columns():
    column = tf.feature_column
    ids = [
        column.categorical_column_with_hash_bucket(education.input, hash_bucket_size=education.hash_bucket_size),
        column.categorical_column_with_vocabulary_list(
            workclass.input, vocabulary_list=workclass.vocabulary_list, num_oov_buckets=1
        ),
        column.bucketized_column(column.numeric_column(age.input), boundaries=age.boundaries),
        column.bucketized_column(column.numeric_column(hours.input), boundaries=hours.boundaries),
    ]
    return fc.concatenated_categorical_column(categorical_columns=ids)


def head(wide_embedding, deep_embedding):
    deep = tf.keras.layers.Dense(8, activation="relu")(deep_embedding)
    deep = tf.keras.layers.Dense(1)(deep)
    logits = tf.reduce_sum(tf.concat([wide_embedding, deep], axis=1), axis=1, keepdims=True)
    return {"logits": logits, "probs": tf.sigmoid(logits)}


def custom_model():
    inputs = get_input_layers()
    ids = make_columns()
    column = tf.feature_column.embedding_column
    wide_embedding = tf.keras.layers.DenseFeatures([column(ids, dimension=wide.output_dim, combiner="sum")])(inputs)
    deep_embedding = tf.keras.layers.DenseFeatures([column(ids, dimension=deep.output_dim)])(inputs)
    return tf.keras.Model(inputs=inputs, outputs=head(wide_embedding, deep_embedding))


def loss(labels, predictions):
    labels = tf.cast(tf.reshape(labels, [-1]), tf.float32)
    logits = tf.reshape(predictions["logits"], [-1])
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))


def optimizer(lr=0.01):
    return tf.keras.optimizers.Adam(learning_rate=lr)


def eval_metrics_fn():
    return {
        "logits": {
            "accuracy": lambda labels, predictions: tf.equal(
                tf.cast(tf.reshape(predictions, [-1]) > 0.0, tf.int32), tf.cast(tf.reshape(labels, [-1]), tf.int32)
            )
        },
        "probs": {"auc": tf.keras.metrics.AUC()},
    }


def callbacks():
    def schedule(model_version):
        return 0.01 if model_version < 3 else 0.005

    return [LearningRateScheduler(schedule)]
