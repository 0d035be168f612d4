"""MobileNetV2 (Sandler et al., CVPR 2018) of keras.applications, from random weights, for images of 32 x 32.

It halves an image five times, so small images are enlarged first: to `size`.
"""

import keras
from model_zoo.cifar10.records import CLASSES, feed
from model_zoo.images.records import eval_metrics_fn, loss, with_momentum

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model(size=96, width=1.0, momentum=0.9):
    image = keras.Input([32, 32, 3], name="image")
    enlarged = keras.layers.Resizing(size, size)(image)
    network = keras.applications.MobileNetV2(
        input_tensor=enlarged, alpha=width, weights=None, classes=CLASSES, classifier_activation=None
    )
    return with_momentum(keras.Model(image, network.output), momentum)


def optimizer(learning_rate=0.003):
    return keras.optimizers.Adam(learning_rate)
