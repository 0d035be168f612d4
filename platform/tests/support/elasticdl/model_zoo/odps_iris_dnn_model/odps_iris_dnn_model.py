import tensorflow as tf


def custom_model():
    inputs = tf.keras.layers.Input(shape=(4, 1), name="input")
    x = tf.keras.layers.Flatten()(inputs)
    outputs = tf.keras.layers.Dense(3, name="output")(x)
    return tf.keras.Model(inputs=inputs, outputs=outputs, name="simple-model")


def loss(labels, predictions):
    labels = tf.reshape(labels, [-1])
    return tf.reduce_mean(
        input_tensor=tf.nn.sparse_softmax_cross_entropy_with_logits(logits=predictions, labels=labels)
    )


def optimizer(lr=0.1):
    return tf.optimizers.SGD(lr)


def eval_metrics_fn():
    return {
        "accuracy": lambda labels, predictions: tf.equal(
            tf.argmax(predictions, 1, output_type=tf.int32), tf.cast(tf.reshape(labels, [-1]), tf.int32)
        )
    }


def feed(dataset, mode, metadata):
    def parse(record):
        label_column = "class"
        record = tf.strings.to_number(record, tf.float32)

        def get_features_without_labels():
            label = metadata.column_names.index(label_column)
            features = [record[at] for at in range(len(metadata.column_names)) if at != label]
            return tf.reshape(tf.stack(features), (4, 1))

        features = get_features_without_labels()
        if mode == "prediction":
            return features
        labels = tf.reshape(record[metadata.column_names.index(label_column)], (1,))
        return features, tf.cast(labels, tf.int32)

    dataset = dataset.map(parse)
    return dataset.shuffle(buffer_size=200) if mode == "training" else dataset
