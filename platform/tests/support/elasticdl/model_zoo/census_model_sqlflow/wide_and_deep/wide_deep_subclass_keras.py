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

from elasticdl_preprocessing.layers import SparseEmbedding
from elasticdl_preprocessing.layers.concatenate_with_offset import ConcatenateWithOffset
from elasticdl_preprocessing.layers.discretization import Discretization
from elasticdl_preprocessing.layers.hashing import Hashing
from elasticdl_preprocessing.layers.index_lookup import IndexLookup
from elasticdl_preprocessing.layers.to_sparse import ToSparse
from elasticdl_preprocessing.utils.decorators import declare_model_inputs


def transform(inputs):
    ids = [
        Hashing(education.hash_bucket_size)(ToSparse()(inputs["education"])),
        IndexLookup(workclass.vocabulary_list)(ToSparse()(inputs["workclass"])),
        Discretization(age.boundaries)(ToSparse()(inputs["age"])),
        Discretization(hours.boundaries)(ToSparse()(inputs["hours_per_week"])),
    ]
    return ConcatenateWithOffset(group.id_offsets)(ids)


@declare_model_inputs("wide_embedding", "deep_embedding")
class WideDeepClassifier(tf.keras.Model):
    def __init__(self, hidden_units=(8, 4)):
        super(WideDeepClassifier, self).__init__()
        self.hidden = [tf.keras.layers.Dense(units, activation="relu") for units in hidden_units]
        self.last = tf.keras.layers.Dense(1)

    def call(self, inputs):
        wide_embedding, deep_embedding = inputs
        for layer in self.hidden:
            deep_embedding = layer(deep_embedding)
        x = tf.concat([wide_embedding, self.last(deep_embedding)], axis=1)
        logits = tf.reduce_sum(x, axis=1, keepdims=True)
        return logits, tf.sigmoid(logits)


def custom_model():
    inputs = get_input_layers()
    ids = transform(inputs)
    embeddings = [
        SparseEmbedding(input_dim=each.input_dim, output_dim=each.output_dim, combiner="sum")(ids)
        for each in (wide, deep)
    ]
    logits, probs = WideDeepClassifier()(embeddings)
    return tf.keras.Model(inputs=inputs, outputs={"logits": logits, "probs": probs})


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
