import tensorflow as tf
from model_zoo.cifar10.data_parser import parse_data

from elasticdl.python.common.constants import Mode
from elasticdl.python.common.log_utils import default_logger as logger
from elasticdl.python.data.odps_io import ODPSWriter, is_odps_configured
from elasticdl.python.elasticdl.callbacks import LearningRateScheduler
from elasticdl.python.worker.prediction_outputs_processor import BasePredictionOutputsProcessor


def custom_model():
    inputs = tf.keras.layers.Input(shape=(32, 32, 3), name="image")
    x = tf.keras.layers.Conv2D(8, kernel_size=(3, 3), padding="same", use_bias=True, activation=None)(inputs)
    x = tf.keras.layers.BatchNormalization(epsilon=1e-06, axis=-1, momentum=0.9)(x)
    x = tf.keras.layers.Activation("relu")(x)
    x = tf.keras.layers.MaxPooling2D(pool_size=(2, 2))(x)
    x = tf.keras.layers.Dropout(0.2)(x)
    outputs = tf.keras.layers.Dense(10, name="output")(tf.keras.layers.Flatten()(x))
    return tf.keras.Model(inputs=inputs, outputs=outputs, name="cifar10_model")


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
    return parse_data(dataset, mode)


def callbacks():
    def schedule(model_version):
        return 0.1 if model_version < 2 else 0.01

    return [LearningRateScheduler(schedule)]


class PredictionOutputsProcessor(BasePredictionOutputsProcessor):
    def __init__(self):
        if is_odps_configured():
            self.odps_writer = ODPSWriter("project", "id", "key", "endpoint", "table")
        else:
            logger.info("No table: predictions stay in %s", Mode.PREDICTION)

    def process(self, predictions, worker_id):
        logger.info("%d: %s", worker_id, predictions.numpy().tolist()[0])
