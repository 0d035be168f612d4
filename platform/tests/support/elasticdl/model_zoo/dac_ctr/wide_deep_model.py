import tensorflow as tf
from model_zoo.dac_ctr.utils import lookup_embedding


def wide_deep_model(ids, count, numbers):
    linear = tf.reduce_sum(lookup_embedding(tf, ids, count, 1), axis=1)
    deep = tf.keras.layers.Flatten()(lookup_embedding(tf, ids, count, 4))
    deep = tf.keras.layers.Dense(8, activation="relu")(tf.concat([deep, numbers], axis=1))
    return tf.reduce_sum(tf.concat([linear, tf.keras.layers.Dense(1)(deep)], 1), axis=1, keepdims=True)
