import tensorflow as tf
from model_zoo.dac_ctr.dcn_model import dcn_model
from model_zoo.dac_ctr.deepfm_model import deepfm_model
from model_zoo.dac_ctr.feature_config import CATEGORIES, LABEL, NUMERIC
from model_zoo.dac_ctr.feature_transform import transform_feature
from model_zoo.dac_ctr.wide_deep_model import wide_deep_model
from model_zoo.dac_ctr.xdeepfm_model import xdeepfm_model

MODELS = {"deepfm": deepfm_model, "dcn": dcn_model, "xdeepfm": xdeepfm_model, "wide_deep": wide_deep_model}


def custom_model(model_name="deepfm"):
    inputs = {name: tf.keras.layers.Input(name=name, shape=(1,), dtype=tf.float32) for name in NUMERIC}
    inputs |= {name: tf.keras.layers.Input(name=name, shape=(1,), dtype=tf.string) for name in CATEGORIES}
    logits = MODELS[model_name](*transform_feature(inputs))
    return tf.keras.Model(inputs=inputs, outputs={"logits": logits, "probs": tf.sigmoid(logits)})


def loss(labels, predictions):
    labels = tf.cast(tf.reshape(labels, [-1]), tf.float32)
    logits = tf.reshape(predictions["logits"], [-1])
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))


def optimizer(lr=0.01):
    return tf.keras.optimizers.Adam(learning_rate=lr)


def eval_metrics_fn():
    return {"probs": {"auc": tf.keras.metrics.AUC()}}


def feed(dataset, mode, metadata):
    def parse(record):
        description = {name: tf.io.FixedLenFeature((1,), tf.float32) for name in NUMERIC}
        description |= {name: tf.io.FixedLenFeature((1,), tf.string) for name in CATEGORIES}
        description[LABEL] = tf.io.FixedLenFeature([], tf.int64)
        features = tf.io.parse_single_example(record, description)
        label = features.pop(LABEL)
        return features if mode == "prediction" else (features, label)

    return dataset.map(parse)
