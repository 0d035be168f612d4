"""A convolutional network in the style of VGG, written with Keras' functional API: three stages of two convolutions."""

import keras
from keras import layers
from model_zoo.cifar10.records import CLASSES, feed
from model_zoo.images.records import eval_metrics_fn, loss

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model(filters=32, dropout=0.3, momentum=0.9):
    image = keras.Input([32, 32, 3], name="image")
    x = image
    for stage in range(3):
        for _ in range(2):
            x = layers.Conv2D(filters << stage, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization(momentum=momentum)(x))
        x = layers.Dropout(dropout)(layers.MaxPooling2D()(x))
    return keras.Model(image, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))


def optimizer(learning_rate=0.001):
    return keras.optimizers.Adam(learning_rate)
