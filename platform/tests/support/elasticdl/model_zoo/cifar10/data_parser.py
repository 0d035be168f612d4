import tensorflow as tf

from elasticdl.python.common.constants import Mode


def parse_data(dataset, mode, side=32):
    def parse(record):
        description = {"image": tf.io.FixedLenFeature([side, side, 3], tf.float32)}
        if mode != Mode.PREDICTION:
            description["label"] = tf.io.FixedLenFeature([1], tf.int64)
        example = tf.io.parse_single_example(record, description)
        features = {"image": tf.math.divide(tf.cast(example["image"], tf.float32), 255.0)}
        return features if mode == Mode.PREDICTION else (features, tf.cast(example["label"], tf.int32))

    dataset = dataset.map(parse)
    return dataset.shuffle(buffer_size=64) if mode == Mode.TRAINING else dataset
