import tensorflow as tf
from model_zoo.resnet50_subclass.resnet50_model import ConvBlock
from resnet50_subclass.resnet50_model import IdentityBlock, conv
from tensorflow.python.keras import layers

from elasticdl.python.common.constants import Mode


class CustomModel(tf.keras.Model):
    def __init__(self, num_classes=10, dtype="float32"):
        super(CustomModel, self).__init__(name="resnet50")
        self._conv = conv(8, (3, 3), strides=(2, 2))
        self._norm = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)
        self._pool = layers.MaxPooling2D((3, 3), strides=(2, 2), padding="same")
        self._blocks = [ConvBlock((3, 3), [8, 8, 16]), IdentityBlock((3, 3), [8, 8, 16])]
        self._average = layers.GlobalAveragePooling2D()
        self._head = layers.Dense(num_classes, kernel_initializer="random_normal")

    def call(self, inputs, training=False):
        x = self._pool(tf.nn.relu(self._norm(self._conv(inputs), training=training)))
        for block in self._blocks:
            x = block(x, training=training)
        return layers.Activation("softmax", dtype="float32")(self._head(self._average(x)))


def loss(labels, predictions):
    return tf.reduce_mean(
        input_tensor=tf.keras.losses.sparse_categorical_crossentropy(tf.reshape(labels, [-1]), predictions)
    )


def optimizer(lr=0.02):
    return tf.keras.optimizers.SGD(learning_rate=lr, momentum=0.9)


def eval_metrics_fn():
    return {"accuracy": tf.keras.metrics.SparseCategoricalAccuracy()}


def feed(dataset, mode, metadata):
    def parse(record):
        description = {"image": tf.io.FixedLenFeature([32, 32, 3], tf.float32)}
        if mode != Mode.PREDICTION:
            description["label"] = tf.io.FixedLenFeature([1], tf.int64)
        example = tf.io.parse_single_example(record, description)
        image = tf.cast(example["image"], tf.float32) / 255.0
        return image if mode == Mode.PREDICTION else (image, tf.cast(example["label"], tf.int32))

    return dataset.map(parse)
