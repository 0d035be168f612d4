"""Wide & Deep (Cheng et al., DLRS 2016) on census rows, with Keras' preprocessing layers.

Wide: a weight for each word, for each decade of age, and for each pair of such (crossed features, hashed). Deep: a
vector for each word and the scaled numbers, in a network. All words have one table and all pairs another, which are on
parameter servers where they are above `ps.embedding_threshold`.
"""

import keras
from keras import layers, ops
from model_zoo.census.records import eval_metrics_fn, feed, inputs, loss, scaled_numbers
from model_zoo.census.schema import WORDS

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]

AGES = [20, 30, 40, 50, 60, 70]
CROSSES = [("education", "occupation"), ("education", "age"), ("marital_status", "age"), ("sex", "occupation")]


def custom_model(dim=8, bins=1000, hidden=(64, 32)):
    given = inputs()
    terms = {**given, "age": layers.Discretization(AGES, output_mode="int")(given["age"])}
    # Ids of all columns in one table: those of a column begin where those of the column before it end.
    ids, size = [], 0
    for name, words in WORDS.items():
        ids.append(layers.StringLookup(vocabulary=words)(given[name]) + size)
        size += len(words) + 1
    ids.append(terms["age"] + size)
    words = layers.Concatenate()(ids)
    crosses = [
        layers.HashedCrossing(bins)((terms[first], terms[second])) + bins * number
        for number, (first, second) in enumerate(CROSSES)
    ]
    pairs = layers.Concatenate()(crosses)
    wide = ops.sum(layers.Embedding(size + len(AGES) + 1, 1, name="wide_words")(words), axis=1)
    wide = wide + ops.sum(layers.Embedding(bins * len(CROSSES), 1, name="wide_pairs")(pairs), axis=1)
    deep = layers.Flatten()(layers.Embedding(size + len(AGES) + 1, dim, name="deep_words")(words))
    deep = layers.Concatenate()([scaled_numbers(given), deep])
    for units in hidden:
        deep = layers.Dense(units, activation="relu")(deep)
    return keras.Model(given, layers.Dense(1)(deep) + wide)


def optimizer(learning_rate=0.05):
    return keras.optimizers.Adagrad(learning_rate)
