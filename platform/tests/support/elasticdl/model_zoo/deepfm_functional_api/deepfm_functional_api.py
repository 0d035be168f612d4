import tensorflow as tf
import tensorflow.keras.backend as K
from tensorflow.keras.layers import Add, Dense, Embedding, Flatten, Input

from elasticdl.python.common.constants import Mode
from elasticdl.python.data.reader.recordio_reader import RecordIODataReader
from elasticdl.python.elasticdl.callbacks import LearningRateScheduler, MaxStepsStopping


class ApplyMask(tf.keras.layers.Layer):
    def __init__(self, **kwargs):
        super(ApplyMask, self).__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs, mask=None):
        return inputs if mask is None else inputs * tf.expand_dims(tf.cast(mask, tf.float32), -1)


def custom_model(input_dim=500, embedding_dim=4, input_length=10):
    inputs = Input(shape=(input_length,), dtype=tf.int64, name="feature")
    embeddings = ApplyMask()(Embedding(input_dim, embedding_dim, mask_zero=True)(inputs))
    biases = ApplyMask()(Embedding(input_dim, 1, mask_zero=True)(inputs))
    summed = K.sum(embeddings, axis=1)
    second = 0.5 * K.sum(tf.square(summed) - K.sum(tf.square(embeddings), axis=1), axis=1, keepdims=True)
    first = K.sum(biases, axis=1)
    deep = Dense(1)(Dense(8, activation="relu")(Flatten()(embeddings)))
    logits = Add()([first, second, deep])
    probs = tf.reshape(tf.sigmoid(logits), shape=(-1,))
    return tf.keras.Model(inputs=inputs, outputs={"logits": logits, "probs": probs}, name="deepfm")


def loss(labels, predictions):
    labels = tf.cast(tf.reshape(labels, [-1]), tf.float32)
    logits = tf.reshape(predictions["logits"], [-1])
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(logits=logits, labels=labels))


def optimizer(lr=0.1):
    return tf.optimizers.SGD(lr)


def eval_metrics_fn():
    return {
        "logits": {
            "accuracy": lambda labels, predictions: tf.equal(
                tf.cast(tf.reshape(predictions, [-1]) > 0.0, tf.int32), tf.cast(tf.reshape(labels, [-1]), tf.int32)
            )
        },
        "probs": {"auc": tf.keras.metrics.AUC()},
    }


def feed(dataset, mode, metadata):
    def parse(record):
        description = {"feature": tf.io.FixedLenFeature([10], tf.int64)}
        if mode != Mode.PREDICTION:
            description["label"] = tf.io.FixedLenFeature([1], tf.int64)
        example = tf.io.parse_single_example(record, description)
        features = {"feature": example["feature"]}
        return features if mode == Mode.PREDICTION else (features, tf.cast(example["label"], tf.int32))

    return dataset.map(parse)


def callbacks():
    def schedule(model_version):
        return 0.1 if model_version < 2 else 0.01

    return [LearningRateScheduler(schedule), MaxStepsStopping(max_steps=50)]


def custom_data_reader(data_origin, records_per_task=None, **kwargs):
    return RecordIODataReader(data_dir=data_origin)
