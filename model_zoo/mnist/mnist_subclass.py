"""The network of mnist_functional_api as a subclass of keras.Model.

Registered with Keras, so that a program that imports this module loads the exported `.keras` file; the SavedModel
loads anywhere.
"""

import keras
from model_zoo.mnist.records import eval_metrics_fn, feed, loss

__all__ = ["CustomModel", "eval_metrics_fn", "feed", "loss", "optimizer"]


@keras.saving.register_keras_serializable("model_zoo.mnist")
class CustomModel(keras.Model):
    def __init__(self, filters=16, dropout=0.25, **kwargs):
        super().__init__(**kwargs)
        self.filters = filters
        self.rate = dropout
        self.reshape = keras.layers.Reshape([28, 28, 1])
        self.convolution = keras.layers.Conv2D(filters, 3, kernel_regularizer=keras.regularizers.L2(1e-4))
        self.normalization = keras.layers.BatchNormalization(momentum=0.9)
        self.activation = keras.layers.ReLU()
        self.pooling = keras.layers.MaxPooling2D()
        self.flatten = keras.layers.Flatten()
        self.dropout = keras.layers.Dropout(dropout)
        self.classes = keras.layers.Dense(10)

    def call(self, image, training=False):
        x = self.convolution(self.reshape(image))
        x = self.pooling(self.activation(self.normalization(x, training=training)))
        return self.classes(self.dropout(self.flatten(x), training=training))

    def get_config(self):
        return {**super().get_config(), "filters": self.filters, "dropout": self.rate}


def optimizer(learning_rate=0.001):
    return keras.optimizers.Adam(learning_rate)
