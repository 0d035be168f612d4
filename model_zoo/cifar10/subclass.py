"""ConvMixer (Trockman and Kolter, 2022), written as a subclass of keras.Model with a list of blocks.

Patches become vectors; each block mixes them in space, with one filter for each channel and a shortcut, and then mixes
the channels. Registered with Keras, as mnist.mnist_subclass is.
"""

import keras
from keras import layers
from model_zoo.cifar10.records import CLASSES, feed
from model_zoo.images.records import eval_metrics_fn, loss

__all__ = ["ConvMixer", "eval_metrics_fn", "feed", "loss", "optimizer"]


@keras.saving.register_keras_serializable("model_zoo.cifar10")
class ConvMixer(keras.Model):
    def __init__(self, dim=128, depth=6, kernel=5, patch=2, momentum=0.9, **kwargs):
        super().__init__(**kwargs)
        self.config = {"dim": dim, "depth": depth, "kernel": kernel, "patch": patch, "momentum": momentum}
        self.patches = layers.Conv2D(dim, patch, strides=patch, activation="gelu")
        self.spatial = [layers.DepthwiseConv2D(kernel, padding="same", activation="gelu") for _ in range(depth)]
        self.channels = [layers.Conv2D(dim, 1, activation="gelu") for _ in range(depth)]
        self.normalizations = [layers.BatchNormalization(momentum=momentum) for _ in range(1 + 2 * depth)]
        self.pooling = layers.GlobalAveragePooling2D()
        self.classes = layers.Dense(CLASSES)

    def call(self, image, training=False):
        normalizations = iter(self.normalizations)
        x = next(normalizations)(self.patches(image), training=training)
        for spatial, channels in zip(self.spatial, self.channels, strict=True):
            x = next(normalizations)(spatial(x), training=training) + x
            x = next(normalizations)(channels(x), training=training)
        return self.classes(self.pooling(x))

    def get_config(self):
        return {**super().get_config(), **self.config}


def optimizer(learning_rate=0.003):
    return keras.optimizers.AdamW(learning_rate, weight_decay=0.005)
