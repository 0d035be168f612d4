import tensorflow as tf
from deepctr.layers.interaction import FM
from model_zoo.dac_ctr.utils import lookup_embedding


def deepfm_model(ids, count, numbers):
    linear = tf.reduce_sum(lookup_embedding(tf, ids, count, 1), axis=1)
    embeddings = lookup_embedding(tf, ids, count, 4)
    crossed = tf.keras.layers.Dense(1)(FM()(embeddings))
    deep = tf.concat([tf.keras.layers.Flatten()(embeddings), numbers], axis=1)
    deep = tf.keras.layers.Dense(1)(tf.keras.layers.Dense(8, activation="relu")(deep))
    return tf.keras.layers.Add()([linear, crossed, deep])
