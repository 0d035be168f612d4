"""ResNet-20 for CIFAR-10, as in section 4.2 of He et al. (CVPR 2016): 0.27 million weights.

Three stages of three blocks. Where a stage halves the image, its shortcut takes every second pixel and has zeros for
the new channels, so that shortcuts have no weights (option A).
"""

import keras
from keras import layers, ops
from model_zoo.cifar10.records import CLASSES, feed
from model_zoo.images.records import eval_metrics_fn, loss

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model(blocks=3, filters=16, momentum=0.9):
    def convolve(x, width, stride=1):
        x = layers.Conv2D(
            width,
            3,
            stride,
            padding="same",
            use_bias=False,
            kernel_initializer="he_normal",
            kernel_regularizer=keras.regularizers.L2(1e-4),
        )(x)
        return layers.BatchNormalization(momentum=momentum)(x)

    image = keras.Input([32, 32, 3], name="image")
    x = layers.ReLU()(convolve(image, filters))
    for stage in range(3):
        width = filters << stage
        for block in range(blocks):
            halves = stage > 0 and block == 0
            shortcut = ops.pad(x[:, ::2, ::2], [[0, 0]] * 3 + [[width // 4] * 2]) if halves else x
            inner = layers.ReLU()(convolve(x, width, 2 if halves else 1))
            x = layers.ReLU()(convolve(inner, width) + shortcut)
    return keras.Model(image, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))


def optimizer(learning_rate=0.1):
    # Steps of the paper: 64,000 of 128 images in all. With parameter servers use strategy.mode sync: asynchronous
    # workers bring a momentum of their own, and 0.9 on top of it is too much.
    rates = [learning_rate, learning_rate / 10, learning_rate / 100]
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([32_000, 48_000], rates)
    return keras.optimizers.SGD(schedule, momentum=0.9)
