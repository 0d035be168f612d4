"""What the image classifiers share: records, `feed`, loss and metrics.

A record is an Example with `label` and `image`, an encoded file (JPEG or PNG) or the bytes of CIFAR-10. All images of
a data set have one size: whoever writes them crops them to it.
"""

import keras
import tensorflow as tf

_FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}


def image_feed(decode, shift):
    """A `feed` of images from -1 to 1; those to train on are mirrored at random, and shifted by up to `shift` pixels.

    `decode` makes a tensor of height, width and three channels, 0 to 255, of the bytes of a record.
    """

    def feed(dataset, mode, metadata):
        def parse(record):
            example = tf.io.parse_single_example(record, _FEATURES)
            image = tf.cast(decode(example["image"]), tf.float32) / 127.5 - 1.0
            if mode == "training":
                image = _vary(image, shift)
            return image if mode == "prediction" else (image, example["label"])

        return dataset.map(parse)

    return feed


def _vary(image, shift):
    around = tf.pad(image, [[shift, shift], [shift, shift], [0, 0]])
    moved = tf.image.random_crop(around, tf.shape(image))
    return tf.image.random_flip_left_right(tf.ensure_shape(moved, image.shape))


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}


def with_momentum(model, momentum):
    """The model, with another momentum of the moving values of all its BatchNormalization layers.

    The models of keras.applications have 0.99 or 0.999. Evaluations use the moving values, and with 0.999 these are
    useless for the first thousands of steps.
    """
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = momentum
    return model
