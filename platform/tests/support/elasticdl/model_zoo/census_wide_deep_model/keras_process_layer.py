import tensorflow as tf
from tensorflow.python.ops import lookup_ops, math_ops


class NumericBucket(tf.keras.layers.Layer):
    def __init__(self, boundaries, **kwargs):
        super(NumericBucket, self).__init__(**kwargs)
        self.boundaries = boundaries

    def call(self, inputs):
        return tf.cast(math_ops._bucketize(inputs, boundaries=self.boundaries), tf.int64)


class CategoryHash(tf.keras.layers.Layer):
    def __init__(self, hash_bucket_size, **kwargs):
        super(CategoryHash, self).__init__(**kwargs)
        self.hash_bucket_size = hash_bucket_size

    def call(self, inputs):
        return tf.strings.to_hash_bucket_fast(inputs, self.hash_bucket_size)


class CategoryLookup(tf.keras.layers.Layer):
    def __init__(self, vocabulary_list, **kwargs):
        super(CategoryLookup, self).__init__(**kwargs)
        self.vocabulary_list = vocabulary_list

    def build(self, input_shape):
        self.table = lookup_ops.index_table_from_tensor(
            vocabulary_list=self.vocabulary_list, num_oov_buckets=1, dtype=tf.string
        )

    def call(self, inputs):
        return self.table.lookup(inputs)


class AddIdOffset(tf.keras.layers.Layer):
    def __init__(self, offsets, **kwargs):
        super(AddIdOffset, self).__init__(**kwargs)
        self.offsets = offsets

    def call(self, inputs):
        return tf.concat([ids + offset for ids, offset in zip(inputs, self.offsets)], axis=1)


class EmbeddingSum(tf.keras.layers.Layer):
    def __init__(self, input_dim, output_dim, **kwargs):
        super(EmbeddingSum, self).__init__(**kwargs)
        self.input_dim, self.output_dim = input_dim, output_dim

    def build(self, input_shape):
        self.embeddings = self.add_weight(
            shape=(self.input_dim, self.output_dim), initializer="uniform", name="embeddings"
        )

    def call(self, inputs):
        return tf.reduce_sum(tf.gather(self.embeddings, inputs), axis=1)
