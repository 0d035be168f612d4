"""Text to its index in a vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.preprocessing_layer import PreprocessingLayer, map_values, register


@register
class IndexLookup(PreprocessingLayer):
    """The index (int64) of each value in a vocabulary. Other values get an index behind it.

    Args:
        vocabulary: the terms, or a text file with one of them a line. A term that a list repeats has its first index.
        num_oov_tokens: number of indices for values that are not in the vocabulary. They are distributed by
            ``hash(value) % num_oov_tokens``. With 0 they get -1.
        **options: arguments of every Keras layer.

    Raises:
        ValueError: there is no vocabulary, or its file repeats a term.
    """

    def __init__(self, vocabulary: Sequence[Any] | str | None = None, num_oov_tokens: int = 1, **options: Any) -> None:
        super().__init__(**options)
        if vocabulary is None or not len(vocabulary):
            raise ValueError("vocabulary must be a list of terms or the name of a file, and is missing or empty")
        terms = _read_terms(vocabulary) if isinstance(vocabulary, str) else list(dict.fromkeys(vocabulary))
        self.vocabulary = terms
        self.num_oov_tokens = num_oov_tokens
        # Outside of the graph in which Keras may call this layer.
        with tf.init_scope():
            keys = tf.constant(terms)
            self._key_dtype = tf.int64 if keys.dtype.is_integer else keys.dtype
            initializer = tf.lookup.KeyValueTensorInitializer(
                tf.cast(keys, self._key_dtype), tf.range(len(terms), dtype=tf.int64)
            )
            self._table = (
                tf.lookup.StaticVocabularyTable(initializer, num_oov_tokens)
                if num_oov_tokens
                else tf.lookup.StaticHashTable(initializer, default_value=-1)
            )

    def call(self, inputs: Any) -> Any:
        """The indices."""
        return map_values(lambda values: self._table.lookup(_as_keys(values, self._key_dtype)), inputs)

    def vocab_size(self) -> int:
        """Number of indices: of terms and of other values."""
        return len(self.vocabulary) + self.num_oov_tokens

    def get_config(self) -> dict[str, Any]:
        """All arguments of the constructor. The vocabulary is a list, also if it was read from a file."""
        return {
            **super().get_config(),
            "vocabulary": list(self.vocabulary),
            "num_oov_tokens": self.num_oov_tokens,
        }


def _as_keys(values: Any, dtype: Any) -> Any:
    return values if values.dtype == dtype else tf.cast(values, dtype)


def _read_terms(path: str) -> list[str]:
    with tf.io.gfile.GFile(path) as file:
        terms = [line.strip() for line in file.read().splitlines()]
    repeated = [term for term, count in Counter(terms).items() if count > 1]
    if repeated:
        raise ValueError(f"the vocabulary in {path} repeats {', '.join(map(repr, repeated[:10]))}")
    return terms
