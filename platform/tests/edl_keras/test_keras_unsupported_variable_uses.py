"""What a step of parameter servers would not learn of, where Keras does, is refused by name before the first update."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.keras.model_contract import ModelModule  # noqa: E402
from edl.keras.network import KerasNetwork, StepResult  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402
from edl.numerics.initializers import initial_rows  # noqa: E402

RNG = np.random.default_rng(0)
NUMBERS, IDS = RNG.random((6, 3), np.float32), RNG.integers(0, 9, (6, 3))
LABELS = RNG.random((6, 1), np.float32)


def module_of(model: Any, optimizer: Any) -> ModelModule:
    return ModelModule(
        zoo=Path(__file__).parent,
        make_model=model,
        loss=lambda labels, predictions: tf.square(labels - predictions),
        optimizer=lambda: optimizer,
        eval_metrics_fn=dict,
        feed=lambda dataset, mode, metadata: dataset,
    )


def trained(model: Any, features: Any = NUMBERS, optimizer: Any = None) -> tuple[KerasNetwork, StepResult]:
    """A step of the model; its Embeddings are served."""
    module = module_of(model, optimizer or keras.optimizers.SGD(0.1))
    network = KerasNetwork.build(
        module, seed=1, embedding_threshold=1, ps_of_variable=lambda name: 0, ps_count=1, sample=features
    )
    ids = network.unique_ids(features)
    tables = {t.name: (ids[t.name], initial_rows(t.initializer, t.seed, ids[t.name], t.dim)) for t in network.tables}
    return network, network.train(network.initial_values(), tables, features, LABELS)


class WrappedDense(keras.Model):
    """A Dense layer, called in whatever ``around`` makes of a function; ``again``: once more outside of it."""

    def __init__(self, around: Any, *, again: bool = False) -> None:
        super().__init__()
        self.inner, self.head, self.around, self.again = keras.layers.Dense(3), keras.layers.Dense(1), around, again

    def call(self, x: Any) -> Any:
        if not self.inner.built:
            self.inner.build(x.shape)
        hidden = self.around(lambda value: self.inner(value))(x)
        return self.head(self.inner(hidden) if self.again else hidden)


def straight_through(function: Any) -> Any:
    @tf.custom_gradient
    def rounded(value: Any) -> Any:
        return tf.round(value), lambda upstream: upstream

    return lambda value: rounded(function(value))


def own_gradient(function: Any) -> Any:
    @tf.custom_gradient
    def custom(value: Any) -> Any:
        return function(value), lambda upstream, variables=None: (upstream, [None] * len(variables or []))

    return custom


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("around", [keras.remat, tf.recompute_grad, own_gradient])
def test_a_variable_within_a_custom_gradient(around: Any, again: bool) -> None:
    """Also if it is used elsewhere, too: a part of its gradient would be missing."""
    with pytest.raises(BadInputError, match=r"variable 'wrapped_dense/dense/\w+' is used .*keras\.remat") as raised:
        trained(lambda: WrappedDense(around, again=again))
    assert "strategy Local" in raised.value.hint


def test_a_custom_gradient_of_its_arguments_alone_is_fine() -> None:
    network, step = trained(lambda: WrappedDense(straight_through))
    gradients = dict(zip([spec.name for spec in network.variables], network.offsets, strict=True))
    assert np.any(step.flat_gradients[gradients["wrapped_dense/dense/kernel"]])


def test_a_variable_in_a_function_of_the_models_own() -> None:
    with pytest.raises(BadInputError, match=r"used by a tf\.function") as raised:
        trained(lambda: WrappedDense(tf.function))
    assert "decorator" in raised.value.hint


def test_rows_within_a_custom_gradient() -> None:
    def model() -> keras.Model:
        ids = keras.Input([3], dtype="int64")
        table = keras.layers.Embedding(9, 4)

        class RecomputedLayer(keras.layers.Layer):
            def call(self, x: Any) -> Any:
                return keras.remat(lambda value: tf.reduce_mean(table(value), 1))(x)

        layer = RecomputedLayer()
        layer.table = table
        return keras.Model(ids, keras.layers.Dense(1)(layer(ids)))

    with pytest.raises(BadInputError, match=r"the embedding '.*embeddings' is used .*keras\.remat"):
        trained(model, IDS)


@pytest.mark.parametrize("mapping", [tf.vectorized_map, keras.ops.vectorized_map])
def test_rows_that_are_looked_up_for_one_element_of_a_map(mapping: Any) -> None:
    class MappedDense(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = keras.layers.Embedding(9, 4), keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.head(mapping(lambda one: tf.reduce_mean(self.table(one), 0), x))

    with pytest.raises(BadInputError, match="vectorized_map"):
        trained(MappedDense, IDS)


def test_a_variable_that_the_model_itself_assigns_to() -> None:
    def model() -> keras.Model:
        x = keras.Input([3])
        return keras.Model(x, keras.layers.Dense(1)(keras.layers.SpectralNormalization(keras.layers.Dense(2))(x)))

    with pytest.raises(BadInputError, match=r"kernel' .*assigns to it"):
        trained(model)


def test_a_variable_that_was_taken_from_its_weight_before() -> None:
    class RawVariableLayer(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(3, 2), name="kernel").value

        def call(self, x: Any) -> Any:
            return tf.matmul(x, self.kernel)

    def model() -> keras.Model:
        x = keras.Input([3])
        return keras.Model(x, keras.layers.Dense(1)(RawVariableLayer()(x)))

    with pytest.raises(BadInputError, match=r"'raw_variable_layer\w*/kernel'.*tf\.Variable"):
        trained(model)


class TwoHeads(keras.Model):
    """Of which the loss sees one."""

    def __init__(self, *, stopped: bool = False) -> None:
        super().__init__()
        self.head, self.other, self.stopped = keras.layers.Dense(1), keras.layers.Dense(1), stopped

    def call(self, x: Any) -> Any:
        other = tf.stop_gradient(self.other(x))
        return self.head(x) + (other if self.stopped else 0.0)


@pytest.mark.parametrize("stopped", [False, True])
def test_what_the_loss_has_no_gradient_for_stays_and_is_told_once(
    stopped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    network, step = trained(lambda: TwoHeads(stopped=stopped))
    places = dict(zip([spec.name for spec in network.variables], network.offsets, strict=True))
    assert not np.any(step.flat_gradients[places["two_heads/dense_1/kernel"]])
    assert np.any(step.flat_gradients[places["two_heads/dense/kernel"]])
    warnings = [line for line in caplog.messages if "no gradient" in line]
    bias, kernel = sorted(warnings)
    assert "'two_heads/dense_1/bias'" in bias
    assert "'two_heads/dense_1/kernel'" in kernel


@pytest.mark.parametrize(
    ("optimizer", "mover"),
    [(lambda: keras.optimizers.Ftrl(0.1), "Ftrl"), (lambda: keras.optimizers.AdamW(0.1), "weight_decay")],
)
def test_an_optimizer_that_moves_what_has_no_gradient_is_refused(optimizer: Any, mover: str) -> None:
    with pytest.raises(BadInputError, match=rf"gradient.*'two_heads/dense_1/.*'.*{mover}"):
        trained(TwoHeads, optimizer=optimizer())


@pytest.mark.parametrize("features", [NUMBERS, IDS])
def test_it_is_refused_also_if_no_call_uses_it_but_rows_that_nobody_looks_up_stay(features: Any) -> None:
    class UnusedHead(TwoHeads):
        def build(self, shape: Any) -> None:
            self.other.build(shape)

        def call(self, x: Any) -> Any:
            return self.head(tf.cast(x, tf.float32))

    class UnusedRows(UnusedHead):
        def __init__(self) -> None:
            super().__init__()
            self.other = keras.layers.Embedding(9, 4)

    if features is IDS:
        trained(UnusedRows, features, keras.optimizers.Ftrl(0.1))
    else:
        with pytest.raises(BadInputError, match=r"gradient.*'unused_head/dense_1/.*'.*Ftrl"):
            trained(UnusedHead, features, keras.optimizers.Ftrl(0.1))


def test_a_variable_without_decay_may_be_without_gradient() -> None:
    optimizer = keras.optimizers.AdamW(0.1)
    optimizer.exclude_from_weight_decay(var_names=[".*"])
    trained(TwoHeads, optimizer=optimizer)


@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables:UserWarning")  # Keras says it by itself
@pytest.mark.parametrize("optimizer", [keras.optimizers.Ftrl, keras.optimizers.AdamW])
def test_local_leaves_it_alone_as_keras_does(optimizer: Any) -> None:
    model = ModelReplica(module_of(TwoHeads, optimizer(0.1)), seed=1, rank_seed=None, sample=NUMBERS)
    before = {weight.path: weight.numpy() for weight in model.model.weights}
    model.take_step(NUMBERS, LABELS)
    after = {weight.path: weight.numpy() for weight in model.model.weights}
    moved = {path for path, value in before.items() if not np.array_equal(value, after[path])}
    assert moved == {"two_heads/dense/kernel", "two_heads/dense/bias"}
