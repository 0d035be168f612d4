import tensorflow as tf
from tensorflow.python.keras import backend, layers, regularizers

L2_WEIGHT_DECAY = 1e-4


def conv(filters, size, strides=(1, 1)):
    return layers.Conv2D(
        filters,
        size,
        strides=strides,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        kernel_regularizer=regularizers.l2(L2_WEIGHT_DECAY),
    )


class IdentityBlock(tf.keras.Model):
    def __init__(self, kernel_size, filters):
        super(IdentityBlock, self).__init__(name="")
        axis = 1 if backend.image_data_format() == "channels_first" else 3
        self.convs = [conv(filters[0], (1, 1)), conv(filters[1], kernel_size), conv(filters[2], (1, 1))]
        self.norms = [layers.BatchNormalization(axis=axis, momentum=0.9, epsilon=1e-5) for _ in filters]

    def call(self, inputs, training=False):
        x = inputs
        for convolve, normalize in zip(self.convs, self.norms):
            x = tf.nn.relu(normalize(convolve(x), training=training))
        return tf.nn.relu(x + self.shortcut(inputs, training))

    def shortcut(self, inputs, training):
        return inputs


class ConvBlock(IdentityBlock):
    def __init__(self, kernel_size, filters):
        super(ConvBlock, self).__init__(kernel_size, filters)
        self.side = conv(filters[2], (1, 1))
        self.side_norm = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)

    def shortcut(self, inputs, training):
        return self.side_norm(self.side(inputs), training=training)
