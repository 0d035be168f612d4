"""What the CIFAR-10 models share: records as `make_data` writes them."""

import tensorflow as tf
from model_zoo.cifar10.schema import CHANNELS, SIDE
from model_zoo.images.records import image_feed

CLASSES = 10


def _decode(pixels):
    # In the published order: all red values, then the green and the blue ones.
    planes = tf.reshape(tf.io.decode_raw(pixels, tf.uint8), [CHANNELS, SIDE, SIDE])
    return tf.transpose(planes, [1, 2, 0])


feed = image_feed(_decode, shift=4)
