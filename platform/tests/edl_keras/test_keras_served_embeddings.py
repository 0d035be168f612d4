"""Embeddings are served wherever they are in a model, with the numbers of plain Keras, or refused by name."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.repetition import repetition

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),  # Keras'
]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from edl_keras.embedding_harness import check_step, network_of, rows_for  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.api.tables import TableSpec  # noqa: E402
from edl.keras.row_binding import UnsupportedEmbeddingError  # noqa: E402
from edl.layers import Embedding as AnyId  # noqa: E402

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 50, (12, 5))
LABELS = RNG.random((12, 1), np.float32)
Layers = keras.layers


@cache
def vocabulary() -> Any:
    """A tensor that is made outside of the graphs that read it."""
    with tf.init_scope():
        return tf.range(50, dtype=tf.int64)


# ---------------------------------------------------------------- models in which an Embedding is served


class DoubledEmbedding(keras.layers.Embedding):  # type: ignore[misc]
    """A user's subclass with a call and a variable of its own."""

    def build(self, input_shape: Any = None) -> None:
        super().build(input_shape)
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, inputs: Any) -> Any:
        return 2 * self.scale * super().call(inputs)


class EmbeddingTower(keras.layers.Layer):  # type: ignore[misc]
    """An Embedding inside of a user's layer, in a list."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.parts = [Layers.Embedding(50, 3), Layers.Flatten(), Layers.Dense(2)]

    def call(self, inputs: Any) -> Any:
        for part in self.parts:
            inputs = part(inputs)
        return inputs

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (input_shape[0], 2)


class TwoWidthModel(keras.Model):  # type: ignore[misc]
    """Control flow in Python, two widths, one layer called twice, one behind a table that is small."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = Layers.Embedding(50, 4)
        self.wide = Layers.Embedding(50, 1, embeddings_initializer="zeros")
        self.out = Layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        total = tf.reduce_sum(self.wide(inputs), 1)
        for column in (0, 3):
            total += self.out(self.deep(inputs[:, column]))
        return total if training else total + 0.0


def sequential(*layers: Any) -> Any:
    return keras.Sequential([*layers, Layers.Flatten(), Layers.Dense(1)])


def functional(layer: Any) -> Any:
    ids = keras.Input([5], dtype="int64")
    return keras.Model(ids, Layers.Dense(1)(Layers.Flatten()(layer(ids))))


def used_twice() -> Any:
    a, b = keras.Input([5], dtype="int64"), keras.Input([5], dtype="int64")
    shared = Layers.Embedding(50, 4, mask_zero=True, embeddings_initializer="normal")
    pooled = [Layers.GlobalAveragePooling1D()(shared(each)) for each in (a, b)]
    ids = keras.Input([5], dtype="int64")
    twice = keras.Model([a, b], Layers.Dense(1)(pooled[0] * pooled[1]))
    return keras.Model(ids, twice([ids, 49 - ids]))


def with_activity() -> Any:
    return functional(Layers.Embedding(50, 4, activity_regularizer="l2"))


KINDS = {
    "functional": lambda: functional(Layers.Embedding(50, 4)),
    "sequential": lambda: sequential(keras.Input([5]), Layers.Embedding(50, 4)),
    "sequential without an Input": lambda: sequential(Layers.Embedding(50, 4)),
    "subclassed": TwoWidthModel,
    "nested": lambda: sequential(keras.Input([5]), sequential(keras.Input([5]), Layers.Embedding(50, 4))),
    "inside of a layer": lambda: functional(EmbeddingTower()),
    "a model in a model, used twice": used_twice,
    "a user's subclass": lambda: functional(DoubledEmbedding(50, 4)),
    "mask_zero": lambda: keras.Sequential(
        [keras.Input([5]), Layers.Embedding(50, 4, mask_zero=True), Layers.GlobalAveragePooling1D(), Layers.Dense(1)]
    ),
    "an activity regularizer": with_activity,
    "a ReversibleEmbedding that is not reversed": lambda: functional(Layers.ReversibleEmbedding(50, 4)),
}


REPEATED = ("sequential without an Input", "nested", "a user's subclass")


@pytest.mark.parametrize("kind", [repetition(kind) if kind in REPEATED else kind for kind in KINDS])
@pytest.mark.first_cases(3)
def test_a_step_has_the_gradients_of_plain_keras(kind: str) -> None:
    network = network_of(KINDS[kind], IDS)
    assert network.tables
    assert all("embedding" not in spec.name or spec.size < 50 for spec in network.variables), "none of it is dense"
    check_step(network, IDS, LABELS)


def test_a_model_with_inputs_needs_no_sample() -> None:
    for kind in ("functional", "sequential", "nested", "inside of a layer"):
        assert network_of(KINDS[kind]).tables


def test_a_vocabulary_before_the_table() -> None:
    words = np.array([["a", "b"], ["c", "a"], ["z", "b"]])

    def model() -> Any:
        text = keras.Input([2], dtype="string")
        ids = Layers.StringLookup(vocabulary=["a", "b", "c"])(text)
        return keras.Model(text, Layers.Dense(1)(Layers.Flatten()(Layers.Embedding(4, 3)(ids))))

    network = network_of(model)
    assert set(network.unique_ids(tf.constant(words))[network.tables[0].name]) == {0, 1, 2, 3}
    check_step(network, tf.constant(words), LABELS[:3])


def test_integer_vocabulary_in_a_subclass() -> None:
    class VocabularyLookup(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.lookup = Layers.IntegerLookup(vocabulary=[1000, 2000, 3000])
            self.table, self.out = Layers.Embedding(4, 3), Layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.out(self.table(self.lookup(inputs)))

    check_step(network_of(VocabularyLookup, np.array([1000, 5])), np.array([3000, 1000, 77]), LABELS[:3])


def test_rows_may_come_in_another_order_than_they_were_asked_for() -> None:
    network = network_of(KINDS["functional"], IDS)
    (name,) = (table.name for table in network.tables)
    rows = rows_for(network, IDS)
    step = network.train(network.initial_values(), rows, IDS, LABELS)
    back = {name: type(rows[name])(np.array(rows[name].ids)[::-1].copy(), rows[name].values[::-1].copy())}
    again = network.train(network.initial_values(), back, IDS, LABELS)
    assert again.loss == pytest.approx(step.loss, rel=1e-6)
    np.testing.assert_allclose(again.row_gradients[name][::-1], step.row_gradients[name], rtol=1e-5, atol=1e-8)


def test_ids_are_found_on_one_thread_while_another_trains() -> None:
    network = network_of(TwoWidthModel, IDS)
    rows, unique_ids = rows_for(network, IDS), []
    other = threading.Thread(
        target=lambda: unique_ids.extend(network.unique_ids(IDS.astype(np.int32)) for _ in range(20))
    )
    other.start()
    losses = {network.train(network.initial_values(), rows, IDS, LABELS).loss for _ in range(20)}
    other.join()
    assert len(losses) == 1
    for ids in unique_ids:
        np.testing.assert_array_equal(
            ids["two_width_model/embedding/embeddings"], np.array(rows["two_width_model/embedding/embeddings"].ids)
        )


@pytest.mark.parametrize("wrong", [50, -1])
def test_ids_outside_of_the_table_are_named(wrong: int) -> None:
    network = network_of(KINDS["functional"], IDS)
    with pytest.raises(BadInputError, match=f"id {wrong} .*'embedding/embeddings'"):
        network.unique_ids(np.full((2, 5), wrong))


# ---------------------------------------------------------------- what is refused


class TiedEmbedding(keras.Model):  # type: ignore[misc]
    """The table projects the output back to ids."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Layers.Embedding(50, 4)

    def call(self, inputs: Any) -> Any:
        return self.table(inputs)[:, 0] @ tf.transpose(self.table.embeddings)


class OwnBuild(keras.layers.Embedding):  # type: ignore[misc]
    def build(self, input_shape: Any = None) -> None:
        self._embeddings = self.add_weight(shape=(self.input_dim, self.output_dim), name="embeddings")
        self.built = True


class LookupVariant(keras.Model):  # type: ignore[misc]
    """Looks ids up in the way that ``how(table, ids, training)`` says."""

    def __init__(self, how: Any) -> None:
        super().__init__()
        self.how = how
        self.table, self.scores, self.out = Layers.Embedding(50, 4), Layers.Dense(5), Layers.Dense(1)

    def call(self, inputs: Any, training: bool = False) -> Any:
        scores = self.scores(tf.cast(inputs, tf.float32))
        return self.out(self.how(self, inputs, scores, training))


def in_a_loop(model: Any, ids: Any, scores: Any, training: bool) -> Any:
    return tf.map_fn(model.table, ids, fn_output_signature=tf.float32)[:, 0]


def in_a_function(model: Any, ids: Any, scores: Any, training: bool) -> Any:
    return tf.function(model.table)(ids)[:, 0]


def with_computed(model: Any, ids: Any, scores: Any, training: bool) -> Any:
    return model.table(tf.argmax(scores, -1))


def with_looked_up(model: Any, ids: Any, scores: Any, training: bool) -> Any:
    return model.table(tf.argmax(model.table(ids)[:, 0], -1))


def with_drawn(model: Any, ids: Any, scores: Any, training: bool) -> Any:
    return model.table(tf.random.uniform([12], maxval=50, dtype=tf.int64))


def with_mode(model: Any, ids: Any, scores: Any, training: bool) -> Any:
    return model.table(ids[:, 0] if training else ids[:, 1])


def pretrained() -> Any:
    model = KINDS["functional"]()
    model.layers[1].set_weights([np.ones((50, 4))])
    return model


def same_names() -> Any:
    layers = [Layers.Embedding(50, 4, name="same"), Layers.Embedding(50, 4, name="same")]

    class TwoLookups(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tables, self.out = layers, Layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.out(sum(table(inputs)[:, 0] for table in self.tables))

    return TwoLookups()


REFUSED = {
    "Orthogonal cannot be computed row by row": lambda: functional(
        Layers.Embedding(50, 4, embeddings_initializer="orthogonal")
    ),
    "it has embeddings_regularizer": lambda: functional(Layers.Embedding(50, 4, embeddings_regularizer="l2")),
    "it has lora_rank": lambda: functional(Layers.Embedding(50, 4, lora_rank=2)),
    "it is not trainable": lambda: functional(Layers.Embedding(50, 4, trainable=False)),
    "sets its values": pretrained,
    "its values": lambda: functional(Layers.Embedding(50, 4, weights=np.ones((50, 4)))),
    "uses the table as a whole": TiedEmbedding,
    "build\\(\\)": lambda: functional(OwnBuild(50, 4)),
    "a loop": lambda: LookupVariant(in_a_loop),
    "a tf.function": lambda: LookupVariant(in_a_function),
    "depend on variables of the model": lambda: LookupVariant(with_computed),
    "depend on rows that were looked up": lambda: LookupVariant(with_looked_up),
    "depend on more than the features: on a RandomUniformInt": lambda: LookupVariant(with_drawn),
    "different ids in training and in evaluation": lambda: LookupVariant(with_mode),
}


@pytest.mark.parametrize("said", REFUSED)
@pytest.mark.first_cases(5)
def test_what_cannot_be_served_is_refused_by_name_and_can_be_dense(said: str) -> None:
    with pytest.raises(UnsupportedEmbeddingError, match=rf"the Embedding '[^']+' \(50 x 4\) .*{said}") as caught:
        network_of(REFUSED[said], IDS)
    assert "ps.embedding_threshold above 800" in str(caught.value)
    assert network_of(REFUSED[said], IDS, threshold=801).tables == ()


@pytest.mark.parametrize(
    ("options", "said", "remedy"),
    [
        ({"embeddings_constraint": "non_neg"}, "it has embeddings_constraint", "remove the constraint"),
        ({"dtype": "float64"}, "its table is float64", "remove its dtype"),
        ({"dtype": "float16"}, "its table is float16", "remove its dtype"),
    ],
)
def test_what_dense_tables_cannot_have_either_is_not_said_to_be_dense(options: Any, said: str, remedy: str) -> None:
    def model() -> Any:
        return functional(Layers.Embedding(50, 4, **options))

    with pytest.raises(UnsupportedEmbeddingError, match=rf"the Embedding '[^']+' \(50 x 4\) .*{said}") as caught:
        network_of(model)
    assert remedy in str(caught.value)
    assert "embedding_threshold" not in str(caught.value)
    with pytest.raises(BadInputError, match="embedding"):
        network_of(model, threshold=801)


def looking_up(table: Any, kind: str | None) -> Any:
    ids = keras.Input([], dtype=kind)
    return keras.Model(ids, Layers.Dense(1)(table(ids)))


@pytest.mark.parametrize(
    ("table", "kind", "whole"),
    [
        (lambda: Layers.Embedding(100_000_000, 8), None, "float32.*16,777,216"),
        (lambda: Layers.Embedding((1 << 24) + 2, 8), "float32", "float32"),
        (lambda: Layers.Embedding(3000, 8), "float16", "float16.*2,048"),
        (lambda: AnyId(8), None, "float32"),
    ],
)
def test_ids_that_the_input_would_change_are_refused(table: Any, kind: str | None, whole: str) -> None:
    with pytest.raises(UnsupportedEmbeddingError, match=rf"the Embedding '.*embedding' .*{whole}") as caught:
        network_of(lambda: looking_up(table(), kind))
    assert 'keras.Input(..., dtype="int64")' in str(caught.value)


@pytest.mark.parametrize(("rows", "kind"), [((1 << 24) + 1, None), (100_000_000, "int64"), (100_000_000, "float64")])
def test_ids_that_the_input_can_hold_are_looked_up(rows: int, kind: str | None) -> None:
    network = network_of(lambda: looking_up(Layers.Embedding(rows, 8), kind))
    (name,) = (table.name for table in network.tables)
    np.testing.assert_array_equal(network.unique_ids(np.array([rows - 1]))[name], [rows - 1])


class NarrowingLookup(keras.Model):  # type: ignore[misc]
    """Looks ids up that ``how`` makes of the features."""

    def __init__(self, how: Any, table: Any = None) -> None:
        super().__init__()
        self.how = how
        self.table, self.out = table or Layers.Embedding(50, 4, name="table"), Layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.out(self.table(self.how(inputs))[:, 0])


def narrow(ids: Any) -> Any:
    return tf.cast(ids, tf.int32)


CUT: dict[str, tuple[Any, Any]] = {
    "by the Input": (lambda: int32_input(Layers.Embedding(50, 4, name="table")), None),
    "by the model": (lambda: NarrowingLookup(narrow), None),
    "a column of it": (
        lambda: NarrowingLookup(lambda ids: tf.concat([narrow(ids[:, :2]), narrow(ids)[:, 4:]], 1)),
        None,
    ),
    "before something is computed": (lambda: NarrowingLookup(lambda ids: narrow(ids) % 50), None),
    "through a float": (lambda: NarrowingLookup(lambda ids: narrow(tf.cast(ids, tf.float64))), None),
    "where it is not padding": (
        lambda: NarrowingLookup(lambda ids: narrow(tf.where(ids < 0, tf.zeros_like(ids), ids))),
        None,
    ),
    "and widened again": (lambda: NarrowingLookup(lambda ids: tf.cast(narrow(ids), tf.int64)), None),
    "in a table of any id": (lambda: NarrowingLookup(narrow, AnyId(4, name="table")), None),
    "ragged": (lambda: NarrowingLookup(lambda ids: narrow(ids).to_tensor()), lambda: tf.RaggedTensor.from_tensor(IDS)),
    "sparse": (lambda: NarrowingLookup(lambda ids: tf.sparse.to_dense(narrow(ids))), lambda: tf.sparse.from_dense(IDS)),
}


def narrow_sparse(ids: Any) -> Any:
    return tf.cast(ids, tf.int32)


def int32_input(layer: Any) -> Any:
    ids = keras.Input([5], dtype="int32")
    return keras.Model(ids, Layers.Dense(1)(Layers.Flatten()(layer(ids))))


@pytest.mark.parametrize("how", CUT)
def test_ids_that_lose_bits_are_refused_when_the_model_is_made(how: str) -> None:
    model, make_features = CUT[how]
    features = tf.constant(IDS) if make_features is None else make_features()
    with pytest.raises(UnsupportedEmbeddingError, match=r"the Embedding '.*table' .*int64.*int32") as caught:
        network_of(model, features)
    assert 'keras.Input(..., dtype="int64")' in str(caught.value)


def test_ids_that_lose_bits_are_refused_when_they_come_otherwise_than_the_first_ones() -> None:
    network = network_of(CUT["by the Input"][0], IDS.astype(np.int32))
    network.unique_ids(IDS.astype(np.int32))
    with pytest.raises(UnsupportedEmbeddingError, match=r"int64.*int32"):
        network.unique_ids(IDS)


def hashed(ids: Any) -> Any:
    return tf.cast(tf.strings.to_hash_bucket_fast(tf.strings.as_string(ids), 50), tf.int32)


def from_vocabulary(ids: Any) -> Any:
    return tf.cast(tf.gather(vocabulary(), ids), tf.int32)


def hashed_for_a_model() -> Any:
    """A model in a model: the inner one takes int32, which the numbers of buckets fit."""
    ids = keras.Input([5], dtype="int64")
    return keras.Model(ids, int32_input(Layers.Embedding(50, 4))(Layers.Hashing(50)(ids)))


HARMLESS: dict[str, tuple[Any, Any]] = {
    "int32 from the beginning": (lambda: int32_input(Layers.Embedding(50, 4)), np.int32),
    "widened and back": (lambda: NarrowingLookup(lambda ids: narrow(tf.cast(ids, tf.int64))), np.int32),
    "as wide as they came": (lambda: NarrowingLookup(narrow), np.uint32),
    "widened from int8": (lambda: NarrowingLookup(narrow), np.int8),
    "within bounds before": (lambda: NarrowingLookup(lambda ids: narrow(ids % 50)), np.int64),
    "of a hash": (lambda: NarrowingLookup(hashed), np.int64),
    "of a vocabulary": (lambda: NarrowingLookup(from_vocabulary), np.int64),
    "of buckets, by an Input": (hashed_for_a_model, np.int64),
}


def test_shapes_may_be_cut() -> None:
    def shaped(ids: Any) -> Any:
        return tf.reshape(tf.sparse.to_dense(ids), tf.cast(ids.dense_shape, tf.int32))

    ids = tf.sparse.from_dense(IDS)
    check_step(network_of(lambda: NarrowingLookup(shaped), ids), ids, LABELS)


FEW = ("int32 from the beginning", "widened from int8", "of a hash", "of buckets, by an Input")


@pytest.mark.parametrize("how", [how if how in FEW else repetition(how) for how in HARMLESS])
@pytest.mark.first_cases(1)
def test_casts_that_lose_nothing_are_served(how: str) -> None:
    model, kind = HARMLESS[how]
    ids = IDS.astype(kind)
    check_step(network_of(model, ids), ids, LABELS)


def test_a_table_that_the_model_does_not_track_is_refused() -> None:
    def hidden() -> Any:
        table = Layers.Embedding(50, 4)
        ids = keras.Input([5], dtype="int64")
        return keras.Model(ids, Layers.Dense(1)(Layers.Lambda(lambda x: table(x)[:, 0], output_shape=(4,))(ids)))

    network = network_of(hidden)
    with pytest.raises(UnsupportedEmbeddingError, match="does not track it"):
        network.train(network.initial_values(), {}, IDS, LABELS)


def test_two_tables_of_one_name_are_refused() -> None:
    with pytest.raises(BadInputError, match=r"'two_lookups/same/embeddings'.* name"):
        network_of(same_names, IDS)


def test_a_table_made_before_the_model_function_is_refused() -> None:
    table = Layers.Embedding(50, 4)
    table(IDS)
    with pytest.raises(UnsupportedEmbeddingError, match="outside of the model function"):
        network_of(lambda: functional(table), IDS)


def test_keras_builds_ordinary_embeddings_afterwards() -> None:
    network_of(KINDS["functional"], IDS)
    table = Layers.Embedding(50, 4)
    table(IDS)
    assert table.embeddings.shape == (50, 4)


def test_a_table_in_words_has_its_shape() -> None:
    assert str(TableSpec("users/embeddings", 3000, 8, {}, 1)) == "users/embeddings 3,000 x 8"
    assert str(TableSpec("tags/embeddings", 0, 8, {}, 1)) == "tags/embeddings any id x 8"
