import tensorflow as tf
from model_zoo.cifar10.data_parser import parse_data

from elasticdl.python.common.constants import Mode
from elasticdl.python.elasticdl.callbacks import LearningRateScheduler


def custom_model():
    inputs = tf.keras.layers.Input(shape=(32, 32, 3), name="image")
    base = tf.keras.applications.ResNet50(input_shape=(32, 32, 3), include_top=False, weights=None)
    x = tf.keras.layers.GlobalAveragePooling2D()(base(inputs))
    return tf.keras.Model(inputs=inputs, outputs=tf.keras.layers.Dense(10)(x), name="cifar10_resnet50")


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
    assert mode in (Mode.TRAINING, Mode.EVALUATION, Mode.PREDICTION)
    return parse_data(dataset, mode)


def callbacks():
    return [LearningRateScheduler(lambda model_version: 0.01 if model_version < 2 else 0.001)]
