"""A model function may make a model more than once, as ``clone_model`` does: the export has what the last one trained.

What it must not do is name layers otherwise at each call: then nobody knows whose the trained values are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),  # Keras'
]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from edl_keras.embedding_harness import module_of, network_of, plain_of, rows_for, write_export  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.keras import model_export  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402
from edl.layers import Embedding  # noqa: E402
from edl.numerics.parameter_store import RowBatch  # noqa: E402

IDS = np.array([[1, 2, 3], [3, 4, 0], [6, 0, 0]])
ALL_DENSE = 1 << 30
Model = Any

LAYERS: dict[str, Callable[..., Any]] = {
    "keras": lambda rows=50, **options: keras.layers.Embedding(rows, 4, **options),
    "edl": lambda rows=50, **options: Embedding(4, rows, **options),
    "combined": lambda rows=50, **options: Embedding(4, rows, combiner="mean", **options),
    "any id": lambda **options: Embedding(4, combiner="mean", **options),
}


def model_of(layer: Any, name: str = "out") -> Model:
    ids = keras.Input([3], dtype="int64")
    return keras.Model(ids, keras.layers.Dense(1, name=name)(keras.layers.Flatten()(layer(ids))))


class RebuiltModel(keras.Model):  # type: ignore[misc]
    """Built by its first call."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.table, self.out = layer, keras.layers.Dense(1, name="out")

    def call(self, ids: Any) -> Any:
        return self.out(keras.layers.Flatten()(self.table(ids)))


def cloned(layer: Any) -> Model:
    return keras.models.clone_model(model_of(layer(name="e")))


def cloned_with_its_values(layer: Any) -> Model:
    first = model_of(layer(name="e"))
    clone = keras.models.clone_model(first)
    clone.set_weights(first.get_weights())
    return clone


def looked_at(layer: Any) -> Model:
    model_of(layer(name="e")).summary(print_fn=lambda *_, **__: None)
    return model_of(layer(name="e"))


def without_names(layer: Any) -> Model:
    model_of(layer())
    return model_of(layer())


def smaller_first(layer: Any) -> Model:
    if layer is not LAYERS["any id"]:
        model_of(layer(10, name="e"))
    return model_of(layer(name="e"))


def tried_out(layer: Any) -> Model:
    RebuiltModel(layer(name="e"))(IDS)
    RebuiltModel(layer())(IDS)
    return model_of(layer(name="e"))


FEW = [cloned, without_names, tried_out]
FUNCTIONS = [cloned, cloned_with_its_values, looked_at, without_names, smaller_first, tried_out]


def _case(function: Callable[[Any], Model], kind: str) -> Any:
    """The functions of FEW with Keras' layer, and one of them with two more; the others repeat that."""
    few = kind == "keras" if function in FEW else False
    marks = [] if few or (function is cloned and kind in ("edl", "any id")) else [pytest.mark.repetition]
    return pytest.param(function, kind, id=f"{function.__name__}-{kind}", marks=marks)


@pytest.mark.parametrize(("function", "kind"), [_case(function, kind) for function in FUNCTIONS for kind in LAYERS])
@pytest.mark.first_cases(2)
def test_an_export_has_the_trained_rows_of_a_model_that_is_made_more_than_once(
    function: Callable[[Any], Model], kind: str, tmp_path: Path
) -> None:
    network = network_of(lambda: function(LAYERS[kind]))
    rows = {name: RowBatch(some.ids, np.full_like(some.values, 5)) for name, some in rows_for(network, IDS).items()}
    write_export(network, rows, tmp_path)
    trained = network.predict(network.initial_values(), rows, IDS)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(IDS), trained, rtol=1e-5)
    served = tf.saved_model.load(str(tmp_path / "saved_model"))
    np.testing.assert_allclose(served.serve(tf.constant(IDS)), trained, rtol=1e-5)


def test_a_table_that_is_built_in_another_scope_is_exported() -> None:
    """The name of its variable is then not the one that its layer tells."""

    class ScopedEmbedding(keras.layers.Embedding):  # type: ignore[misc]
        def build(self, input_shape: Any = None) -> None:
            with keras.name_scope("inner"):
                super().build(input_shape)

    network = network_of(lambda: model_of(ScopedEmbedding(50, 4, name="e")))
    rows = {name: RowBatch(some.ids, np.full_like(some.values, 5)) for name, some in rows_for(network, IDS).items()}
    trained = network.predict(network.initial_values(), rows, IDS)
    np.testing.assert_allclose(plain_of(network, rows)(IDS), trained, rtol=1e-5)


def counting(layer: Any) -> Callable[[], Model]:
    number = itertools.count()
    return lambda: model_of(layer(name=f"e{next(number)}"))


@pytest.mark.parametrize("kind", LAYERS)
def test_a_table_that_is_named_otherwise_at_each_call_is_not_exported(kind: str, tmp_path: Path) -> None:
    network = network_of(counting(LAYERS[kind]))
    with pytest.raises(BadInputError, match=r"'e0/embeddings'.*'e1/embeddings'") as caught:
        write_export(network, rows_for(network, IDS), tmp_path)
    assert caught.value.hint
    assert "resumed" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_a_dense_table_that_is_named_otherwise_at_each_call_is_not_exported(tmp_path: Path) -> None:
    model = counting(LAYERS["keras"])
    local = ModelReplica(module_of(model), seed=7, rank_seed=None, sample=IDS)
    files = tmp_path / "model.keras", tmp_path / "saved_model"
    with pytest.raises(BadInputError, match=r"'e0/embeddings'.*'e1/embeddings'"):
        model_export.export_model(local.exportable(), local.variables.read_values(), {}, *files)
    network = network_of(model, threshold=ALL_DENSE)
    with pytest.raises(BadInputError, match=r"'e2/embeddings'.*'e3/embeddings'"):
        write_export(network, {}, tmp_path)


def test_of_many_names_some_are_said() -> None:
    number = itertools.count()

    def model() -> Model:
        call = next(number)
        inputs = keras.Input([3])
        layers = [keras.layers.Dense(1, use_bias=False, name=f"d{call}-{at}") for at in range(5)]
        return keras.Model(inputs, [layer(inputs) for layer in layers])

    with pytest.raises(BadInputError, match=r"'d0-0/kernel', 'd0-1/kernel', 'd0-2/kernel'.*2 more"):
        plain_of(network_of(model))


def test_a_variable_that_the_trained_model_had_not_is_not_exported() -> None:
    number = itertools.count()

    def model() -> Model:
        inputs = keras.Input([3])
        names = ["out", "more"] if next(number) else ["out"]
        return keras.Model(inputs, [keras.layers.Dense(1, name=name)(inputs) for name in names])

    with pytest.raises(BadInputError, match=r"\(new: 'more/bias', 'more/kernel'\)"):
        plain_of(network_of(model))


@pytest.mark.parametrize("kind", [kind for kind in LAYERS if kind != "any id"])
@pytest.mark.parametrize("threshold", [1, ALL_DENSE], ids=["served", "dense"])
@pytest.mark.first_cases(2)
def test_a_table_that_is_larger_at_each_call_is_not_exported(kind: str, threshold: int) -> None:
    number = itertools.count(50)
    network = network_of(lambda: model_of(LAYERS[kind](next(number), name="e")), threshold=threshold)
    with pytest.raises(BadInputError, match=r"'e/embeddings'.*51 x 4.*50 x 4") as caught:
        plain_of(network)
    assert caught.value.hint
