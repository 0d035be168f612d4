import numpy as np
import tensorflow as tf
from PIL import Image

from elasticdl.python.common.constants import Mode


def custom_model():
    inputs = tf.keras.Input(shape=(28, 28), name="image")
    x = tf.keras.layers.Reshape((28, 28, 1))(inputs)
    x = tf.keras.layers.Conv2D(4, kernel_size=(3, 3), activation="relu")(x)
    x = tf.keras.layers.BatchNormalization()(x)
    x = tf.keras.layers.MaxPooling2D(pool_size=(2, 2))(x)
    x = tf.keras.layers.Dropout(0.25)(x)
    outputs = tf.keras.layers.Dense(10)(tf.keras.layers.Flatten()(x))
    return tf.keras.Model(inputs=inputs, outputs=outputs, name="mnist_model")


def prepare_data_for_a_single_file(file_object, filename):
    image = np.array(Image.open(file_object))
    return tf.train.Example(
        features=tf.train.Features(
            feature={"image": tf.train.Feature(float_list=tf.train.FloatList(value=image.flatten()))}
        )
    ).SerializeToString()


def loss(labels, predictions):
    labels = tf.reshape(labels, [-1])
    return tf.reduce_mean(
        input_tensor=tf.nn.sparse_softmax_cross_entropy_with_logits(logits=predictions, labels=labels)
    )


def optimizer(lr=0.01):
    return tf.optimizers.SGD(lr)


def eval_metrics_fn():
    return {
        "accuracy": lambda labels, predictions: tf.equal(
            tf.argmax(predictions, 1, output_type=tf.int32), tf.cast(tf.reshape(labels, [-1]), tf.int32)
        )
    }


def feed(dataset, mode, metadata):
    def parse(record):
        description = {"image": tf.io.FixedLenFeature([28, 28], tf.float32)}
        if mode != Mode.PREDICTION:
            description["label"] = tf.io.FixedLenFeature([1], tf.int64)
        example = tf.io.parse_single_example(record, description)
        features = {"image": tf.math.divide(tf.cast(example["image"], tf.float32), 255.0)}
        return features if mode == Mode.PREDICTION else (features, tf.cast(example["label"], tf.int32))

    dataset = dataset.map(parse)
    return dataset.shuffle(buffer_size=64) if mode == Mode.TRAINING else dataset
