"""ResNet-50 (He et al., CVPR 2016) of keras.applications, from random weights, for a folder of images.

`size` and `classes` are those of the data: see `make_data`. Under AllReduce 102 MB of gradients go from worker to
worker in each step.
"""

import keras
import tensorflow as tf
from model_zoo.images.records import eval_metrics_fn, image_feed, loss, with_momentum

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model(classes=1000, size=224, momentum=0.9):
    network = keras.applications.ResNet50(
        input_shape=(size, size, 3), weights=None, classes=classes, classifier_activation=None
    )
    return with_momentum(network, momentum)


def _decode(file):
    return tf.ensure_shape(tf.io.decode_image(file, channels=3, expand_animations=False), [None, None, 3])


feed = image_feed(_decode, shift=8)


def optimizer(learning_rate=0.001):
    return keras.optimizers.Adam(learning_rate)
