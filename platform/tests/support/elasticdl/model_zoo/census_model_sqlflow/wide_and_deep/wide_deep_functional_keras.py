import tensorflow as tf
from model_zoo.census_model_sqlflow.wide_and_deep.feature_configs import (
    age,
    deep,
    education,
    get_input_layers,
    group,
    hours,
    wide,
    workclass,
)

from elasticdl.python.elasticdl.callbacks import LearningRateScheduler
from elasticdl_preprocessing.layers import SparseEmbedding
from elasticdl_preprocessing.layers.concatenate_with_offset import ConcatenateWithOffset
from elasticdl_preprocessing.layers.discretization import Discretization
from elasticdl_preprocessing.layers.hashing import Hashing
from elasticdl_preprocessing.layers.index_lookup import IndexLookup
from elasticdl_preprocessing.layers.to_sparse import ToSparse


def transform(inputs):
    ids = [
        Hashing(education.hash_bucket_size)(ToSparse()(inputs["education"])),
        IndexLookup(workclass.vocabulary_list)(ToSparse()(inputs["workclass"])),
        Discretization(age.boundaries)(ToSparse()(inputs["age"])),
        Discretization(hours.boundaries)(ToSparse()(inputs["hours_per_week"])),
    ]
    return ConcatenateWithOffset(group.id_offsets)(ids)


def head(wide_embedding, deep_embedding):
    deep = tf.keras.layers.Dense(8, activation="relu")(deep_embedding)
    deep = tf.keras.layers.Dense(1)(deep)
    logits = tf.reduce_sum(tf.concat([wide_embedding, deep], axis=1), axis=1, keepdims=True)
    return {"logits": logits, "probs": tf.sigmoid(logits)}


def custom_model():
    inputs = get_input_layers()
    ids = transform(inputs)
    wide_embedding = SparseEmbedding(input_dim=wide.input_dim, output_dim=wide.output_dim, combiner="sum")(ids)
    deep_embedding = SparseEmbedding(input_dim=deep.input_dim, output_dim=deep.output_dim)(ids)
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
