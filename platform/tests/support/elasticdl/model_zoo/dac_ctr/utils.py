import itertools


def get_offsets(counts):
    return list(itertools.accumulate([0, *counts[:-1]]))


def lookup_embedding(tf, ids, input_dim, output_dim):
    return tf.keras.layers.Embedding(input_dim, output_dim)(ids)
