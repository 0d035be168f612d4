import tensorflow as tf

from elasticdl.python.common.constants import Mode


class CustomModel(tf.keras.Model):
    def __init__(self):
        super(CustomModel, self).__init__(name="mnist_model")
        self._reshape = tf.keras.layers.Reshape((28, 28, 1))
        self._conv = tf.keras.layers.Conv2D(4, kernel_size=(3, 3), activation="relu")
        self._norm = tf.keras.layers.BatchNormalization()
        self._pool = tf.keras.layers.MaxPooling2D(pool_size=(2, 2))
        self._flatten = tf.keras.layers.Flatten()
        self._head = tf.keras.layers.Dense(10)

    def call(self, inputs, training=False):
        x = self._conv(self._reshape(inputs["image"]))
        return self._head(self._flatten(self._pool(self._norm(x, training=training))))


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
