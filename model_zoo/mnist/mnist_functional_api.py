"""A convolutional network, written with Keras' functional API: batch normalization, dropout, an L2 regularizer."""

import keras
from model_zoo.mnist.records import eval_metrics_fn, feed, loss

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def custom_model(filters=16, dropout=0.25):
    image = keras.Input([784], name="image")
    x = keras.layers.Reshape([28, 28, 1])(image)
    x = keras.layers.Conv2D(filters, 3, kernel_regularizer=keras.regularizers.L2(1e-4))(x)
    # Before the activation: channels that ReLU has switched off have no variance to be divided by, and evaluations,
    # which use the moving one, then jump between good and useless. A shorter memory than Keras' 0.99 keeps up.
    x = keras.layers.BatchNormalization(momentum=0.9)(x)
    x = keras.layers.ReLU()(x)
    x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dropout(dropout)(x)
    return keras.Model(image, keras.layers.Dense(10)(x))


def optimizer(learning_rate=0.02):
    # No momentum: asynchronous workers bring their own (Mitliagkas et al., Asynchrony begets Momentum, 2016), and 0.9
    # on top of it diverges with two of them.
    return keras.optimizers.SGD(learning_rate)
