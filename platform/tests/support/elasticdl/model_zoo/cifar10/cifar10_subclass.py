import tensorflow as tf
from model_zoo.cifar10.data_parser import parse_data

from elasticdl.python.common.constants import Mode


class CustomModel(tf.keras.Model):
    def __init__(self, channel_last=True):
        super(CustomModel, self).__init__(name="cifar10_model")
        self._conv = tf.keras.layers.Conv2D(8, kernel_size=(3, 3), padding="same", activation=None)
        self._norm = tf.keras.layers.BatchNormalization(epsilon=1e-06, axis=-1 if channel_last else 1, momentum=0.9)
        self._relu = tf.keras.layers.Activation(tf.nn.relu)
        self._pool = tf.keras.layers.MaxPooling2D(pool_size=(2, 2))
        self._flatten = tf.keras.layers.Flatten()
        self._head = tf.keras.layers.Dense(10, name="output")

    def call(self, inputs, training=False):
        x = self._conv(inputs["image"])
        x = self._norm(x, training=training)
        return self._head(self._flatten(self._pool(self._relu(x))))


def loss(labels, predictions):
    labels = tf.reshape(labels, [-1])
    return tf.reduce_mean(
        input_tensor=tf.nn.sparse_softmax_cross_entropy_with_logits(logits=predictions, labels=labels)
    )


def optimizer(lr=0.01):
    return tf.optimizers.SGD(lr)


def eval_metrics_fn():
    return {
        "accuracy": lambda labels, predictions: tf.equal(
            tf.argmax(predictions, 1, output_type=tf.int32), tf.cast(tf.reshape(labels, [-1]), tf.int32)
        )
    }


def feed(dataset, mode, metadata):
    return parse_data(dataset, mode if mode == Mode.PREDICTION else Mode.TRAINING)
