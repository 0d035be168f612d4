"""Which class does a text belong to? A small transformer: one or two encoder blocks over vectors of words.

Words are hashed, so there is no vocabulary to make before training, and two rare words may share a vector. The table of
words, 5.1 MB by default, is above `ps.embedding_threshold`: with parameter servers they serve its rows. The exported
model takes texts as they are.
"""

import keras
import tensorflow as tf
from keras import layers, ops

__all__ = ["HashedWords", "custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


@keras.saving.register_keras_serializable("model_zoo.text")
class HashedWords(layers.Layer):
    """The first `length` words of each text as numbers from 1 to `vocabulary - 1`; what follows its end is 0."""

    def __init__(self, vocabulary, length, **kwargs):
        super().__init__(**kwargs)
        self.vocabulary, self.length = vocabulary, length

    def call(self, texts):
        letters = tf.strings.regex_replace(tf.strings.lower(texts, encoding="utf-8"), r"[^\pL\pN']+", " ")
        words = tf.strings.split(letters)
        ids = tf.ragged.map_flat_values(
            lambda word: tf.strings.to_hash_bucket_fast(word, self.vocabulary - 1) + 1, words
        )
        return ids.to_tensor(shape=[None, self.length])

    def compute_output_spec(self, texts):
        return keras.KerasTensor([texts.shape[0], self.length], "int64")

    def get_config(self):
        return {**super().get_config(), "vocabulary": self.vocabulary, "length": self.length}


def encode(x, mask, heads, dropout):
    """An encoder block: words look at each other, then each alone goes through a network."""
    dim = x.shape[-1]
    attention = layers.MultiHeadAttention(heads, dim // heads, dropout=dropout)(x, x, attention_mask=mask)
    x = layers.LayerNormalization()(x + attention)
    inner = layers.Dense(dim)(layers.Dense(4 * dim, activation="gelu")(x))
    return layers.LayerNormalization()(x + layers.Dropout(dropout)(inner))


def custom_model(classes=4, vocabulary=20_000, length=128, dim=64, heads=4, blocks=2, dropout=0.1):
    text = keras.Input([], dtype="string", name="text")
    ids = HashedWords(vocabulary, length)(text)
    is_word = ops.not_equal(ids, 0)
    places = ops.cumsum(ops.ones_like(ids), axis=1) - 1
    x = layers.Embedding(vocabulary, dim, name="words")(ids) + layers.Embedding(length, dim, name="places")(places)
    for _ in range(blocks):
        x = encode(x, ops.expand_dims(is_word, 1), heads, dropout)
    # The mean over the words. A text may have none.
    weights = ops.cast(ops.expand_dims(is_word, 2), "float32")
    mean = ops.sum(x * weights, axis=1) / ops.maximum(ops.sum(weights, axis=1), 1.0)
    return keras.Model(text, layers.Dense(classes)(mean))


def feed(dataset, mode, metadata):
    label, text = (metadata.column_names.index(name) for name in ("label", "text"))

    def parse(row):
        return row[text] if mode == "prediction" else (row[text], tf.strings.to_number(row[label], tf.int64))

    return dataset.map(parse)


def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)


def optimizer(learning_rate=0.001):
    return keras.optimizers.Adam(learning_rate)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
