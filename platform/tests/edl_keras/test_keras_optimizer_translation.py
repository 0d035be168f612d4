"""Every argument of every Keras optimizer is either reproduced or refused by name."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.repetition import repetition

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),  # Keras'
]

import keras  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.api.variables import VariableSpec  # noqa: E402
from edl.keras.group_ftrl import GroupFtrl  # noqa: E402
from edl.keras.model_contract import ModelModule  # noqa: E402
from edl.keras.network import KerasNetwork  # noqa: E402
from edl.keras.optimizer_translation import keras_variable_name, refuse_partitioned_lamb, translate_optimizer  # noqa: E402
from edl.keras.user_callbacks import KerasCallbacks  # noqa: E402
from edl.numerics.model_declaration import ModelDeclaration  # noqa: E402
from edl.numerics.parameter_store import (  # noqa: E402
    NumpyParameterStore,
    PushGradients,
)

CLASSES = {
    name: kind
    for name, kind in vars(keras.optimizers).items()
    if inspect.isclass(kind) and issubclass(kind, keras.optimizers.Optimizer) and name != "Optimizer"
}
PAGE = Path(__file__).resolve().parents[3] / "docs/reference/optimizers.md"
REPRODUCED = ("SGD", "Adagrad", "Adam", "AdamW", "RMSprop", "Adadelta", "Adamax", "Nadam", "Lion", "Ftrl", "Lamb")
OTHER = {  # a value that is not the default, for every argument that the classes have
    "learning_rate": 0.3,
    "momentum": 0.8,
    "nesterov": True,
    "initial_accumulator_value": 0.4,
    "epsilon": 1e-3,
    "beta_1": 0.7,
    "beta_2": 0.8,
    "amsgrad": True,
    "weight_decay": 0.1,
    "clipnorm": 0.5,
    "clipvalue": 0.2,
    "global_clipnorm": 0.5,
    "use_ema": True,
    "ema_momentum": 0.5,
    "ema_overwrite_frequency": 3,
    "loss_scale_factor": 4.0,
    "gradient_accumulation_steps": 2,
    "rho": 0.7,
    "centered": True,
    "learning_rate_power": -0.4,
    "l1_regularization_strength": 0.3,
    "l2_regularization_strength": 0.4,
    "l2_shrinkage_regularization_strength": 0.1,
    "beta": 0.5,
    "name": "another",
}
REFUSED = {"use_ema", "loss_scale_factor", "gradient_accumulation_steps"}


def arguments(kind: Any) -> list[str]:
    return [name for name in inspect.signature(kind.__init__).parameters if name not in ("self", "kwargs")]


def make(name: str) -> Any:
    inner = {
        "LossScaleOptimizer": [keras.optimizers.SGD()],
        "MultiOptimizer": [keras.optimizers.OptimizerMap(keras.optimizers.SGD())],
    }
    return CLASSES[name](*inner.get(name, []))


@pytest.mark.parametrize("name", sorted(set(CLASSES) - set(REPRODUCED)))
def test_other_classes_are_refused_by_name(name: str) -> None:
    with pytest.raises(BadInputError, match=f"class {name} "):
        translate_optimizer(make(name))


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_the_page_says_of_every_class_what_becomes_of_it(name: str) -> None:
    applied, refused = PAGE.read_text().split("## What is refused")
    assert f"`{name}" in (applied if name in REPRODUCED else refused)


@pytest.mark.parametrize("name", REPRODUCED)
def test_the_page_names_arguments_and_slots(name: str) -> None:
    spec = translate_optimizer(CLASSES[name]()).spec
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{name}` |"))
    for word in (*spec.slot_starts, *spec.hyperparameters):
        assert f"`{word}`" in row or word == "weight_decay" or name in ("AdamW", "Ftrl")


def test_a_users_subclass_is_refused_by_name() -> None:
    class RenamedSgd(keras.optimizers.SGD):  # type: ignore[misc]
        pass

    with pytest.raises(BadInputError, match="class RenamedSgd ") as caught:
        translate_optimizer(RenamedSgd())
    assert str(caught.value.hint).startswith("use keras.optimizers.SGD itself")


def test_a_users_own_optimizer_is_refused_with_all_that_there_are() -> None:
    class UserOptimizer(keras.optimizers.Optimizer):  # type: ignore[misc]
        pass

    with pytest.raises(BadInputError, match="class UserOptimizer ") as caught:
        translate_optimizer(UserOptimizer(0.1))
    assert all(name in str(caught.value.hint) for name in REPRODUCED)


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"optimizer\(\) returned str"):
        translate_optimizer("sgd")


def in_make_test(name: str, argument: str) -> bool:
    """What the base class does is tried with one optimizer, what a class does itself with each."""
    common = {"clipnorm", "clipvalue", "global_clipnorm", "ema_momentum", "ema_overwrite_frequency", "name"}
    return name == "Adam" or argument not in common


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        (name, argument) if in_make_test(name, argument) else repetition(name, argument)
        for name in REPRODUCED
        for argument in arguments(CLASSES[name])
    ],
)
def test_every_argument_is_reproduced_or_refused_by_name(name: str, argument: str) -> None:
    options = {argument: OTHER[argument]}
    if argument == "nesterov":
        options["momentum"] = 0.9
    if argument == "ema_overwrite_frequency":  # of use with use_ema only, which Keras checks
        options = {"ema_overwrite_frequency": 3}
    optimizer = CLASSES[name](**options)
    if argument in REFUSED:
        with pytest.raises(BadInputError, match=f"{argument}=.* of the optimizer {name}"):
            translate_optimizer(optimizer)
    else:
        assert_parity(optimizer, steps=3)


@pytest.mark.parametrize("name", REPRODUCED)
def test_defaults_are_reproduced(name: str) -> None:
    assert_parity(CLASSES[name]())


def assert_parity(optimizer: Any, steps: int = 5) -> None:
    """Some steps of Keras and of the reproduced optimizer on a PS, from the same values with the same gradients."""
    rng = np.random.default_rng(0)
    names, shapes = ("dense/kernel", "dense/bias", "small/embeddings"), ((3, 2), (4,), (4, 2))
    values = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    variables = [keras.Variable(v, name=n.rpartition("/")[2]) for n, v in zip(names, values, strict=True)]
    named = {name: keras_variable_name(variable) for name, variable in zip(names, variables, strict=True)}
    reproduced = translate_optimizer(optimizer, named)
    dense = tuple(VariableSpec(name, shape) for name, shape in zip(names, shapes, strict=True))
    store = NumpyParameterStore(ModelDeclaration(dense, (), reproduced.spec, "model"), flat(values))
    for step in range(steps):
        gradients = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
        optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients], variables)
        if reproduced.clip is not None:
            reproduced.clip(gradients)
        store.apply_gradients(PushGradients(flat(gradients), {}, reproduced.learning_rate(step), 1.0), step + 1)
    store.read_flat(stored := flat(values))
    np.testing.assert_allclose(stored, flat([np.asarray(variable) for variable in variables]), rtol=1e-5, atol=2e-6)


def flat(arrays: list[Any]) -> Any:
    return np.concatenate([np.ravel(array) for array in arrays])


def test_a_limit_of_zero_clips_nothing_as_in_keras() -> None:
    assert translate_optimizer(keras.optimizers.SGD(clipnorm=0.0)).clip is None
    assert_parity(keras.optimizers.SGD(0.1, clipnorm=0.0, global_clipnorm=None))


def test_variables_excluded_by_name_keep_their_weights() -> None:
    optimizer = keras.optimizers.AdamW(weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias", "head/", "^gain$"])
    names = {"dense/bias#2": "dense/bias:0", "gain": "gain:0", "m/head/kernel": "m/head/kernel:0", "w": "w:0"}
    assert translate_optimizer(optimizer, names).spec.undecayed == ("dense/bias#2", "m/head/kernel")
    assert_parity(optimizer)


@pytest.mark.parametrize("words", [["bias"], ["head"], ["^emb/"], ["kernel$"], ["kernel:0$", "model"]])
def test_exclusions_mean_what_keras_takes_them_for(words: list[str]) -> None:
    class FrozenLayerModel(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.parts = [keras.layers.Embedding(4, 2, name="emb"), keras.layers.Dense(2, name="head")]

        def call(self, inputs: Any) -> Any:
            return self.parts[1](self.parts[0](inputs))

    model, inputs = FrozenLayerModel(), keras.Input([1])
    model(np.zeros((1, 1)))
    layers = keras.layers.Embedding(4, 2, name="emb"), keras.layers.Dense(2, name="head")
    functional = keras.Model(inputs, layers[1](layers[0](inputs)))
    for each in (model.trainable_variables, functional.trainable_variables):
        optimizer = keras.optimizers.AdamW()
        optimizer.exclude_from_weight_decay(var_names=words)
        theirs = {v.path for v in each if not optimizer._use_weight_decay(v.value)}
        assert (
            set(translate_optimizer(optimizer, {v.path: keras_variable_name(v) for v in each}).spec.undecayed) == theirs
        )


def test_variables_excluded_by_themselves_are_refused_by_name() -> None:
    optimizer = keras.optimizers.AdamW()
    optimizer.exclude_from_weight_decay(var_list=[keras.Variable(0.0)])
    with pytest.raises(BadInputError, match=r"exclude_from_weight_decay\(var_list=...\)") as caught:
        translate_optimizer(optimizer)
    assert "var_names" in str(caught.value.hint)


def test_exclusions_mean_nothing_without_weight_decay() -> None:
    optimizer = keras.optimizers.Adam()
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    assert (
        translate_optimizer(optimizer, {"dense/bias": "dense/bias:0"}).spec
        == translate_optimizer(keras.optimizers.Adam()).spec
    )


def test_lamb_is_refused_for_tables_that_several_ps_share() -> None:
    lamb = translate_optimizer(keras.optimizers.Lamb()).spec
    refuse_partitioned_lamb(lamb, ["emb"], 1)
    refuse_partitioned_lamb(lamb, [], 2)
    refuse_partitioned_lamb(translate_optimizer(keras.optimizers.AdamW()).spec, ["emb"], 2)
    with pytest.raises(BadInputError, match=r"Lamb .*'emb'"):
        refuse_partitioned_lamb(lamb, ["emb"], 2)


def test_ftrl_with_a_group_lasso_is_reproduced() -> None:
    optimizer = GroupFtrl(0.1, group_lasso_regularization_strength=0.3, l1_regularization_strength=0.1)
    assert translate_optimizer(optimizer).spec.get_number("group_lasso_regularization_strength") == 0.3
    assert GroupFtrl.from_config(optimizer.get_config()).get_config() == optimizer.get_config()
    assert_parity(optimizer)
    with pytest.raises(ValueError, match="must be 0 or more"):
        GroupFtrl(group_lasso_regularization_strength=-1.0)


def network(optimizer: Any, parts: int) -> KerasNetwork:
    """Of a model with a served table."""

    def model() -> Any:
        inputs = keras.Input([1])
        rows = keras.layers.Embedding(50, 2, name="emb")(inputs)
        return keras.Model(inputs, keras.layers.Dense(1, name="head")(rows))

    module = ModelModule(
        zoo=Path(__file__).parent,
        make_model=model,
        loss=lambda labels, predictions: predictions,
        optimizer=lambda: optimizer,
        eval_metrics_fn=dict,
        feed=lambda dataset, mode, metadata: dataset,
    )
    return KerasNetwork.build(module, seed=7, embedding_threshold=1, ps_of_variable=lambda name: 0, ps_count=parts)


def test_a_network_knows_which_of_its_variables_and_tables_do_not_decay() -> None:
    optimizer = keras.optimizers.AdamW()
    optimizer.exclude_from_weight_decay(var_names=["bias", "embeddings"])
    built = network(optimizer, 2)
    assert [table.name for table in built.tables] == ["emb/embeddings"]
    assert built.optimizer.spec.undecayed == ("emb/embeddings", "head/bias")


def test_a_network_whose_table_lamb_would_need_whole_is_refused() -> None:
    assert network(keras.optimizers.Lamb(), 1).optimizer.spec.name == "lamb"
    with pytest.raises(BadInputError, match=r"Lamb .* table 'emb/embeddings'.* 2 parameter servers"):
        network(keras.optimizers.Lamb(), 2)


@pytest.mark.parametrize("argument", ["use_ema", "loss_scale_factor", "gradient_accumulation_steps"])
def test_what_to_use_instead_is_said(argument: str) -> None:
    with pytest.raises(BadInputError) as caught:
        translate_optimizer(keras.optimizers.Adam(**{argument: OTHER[argument]}))
    assert str(caught.value.hint).startswith("remove it, and ")


@pytest.mark.parametrize(
    "schedule",
    [
        keras.optimizers.schedules.CosineDecay(0.1, 10, warmup_target=0.2, warmup_steps=3),
        keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.5, staircase=True),
        keras.optimizers.schedules.PiecewiseConstantDecay([3, 6], [0.1, 0.05, 0.01]),
    ],
)
def test_schedules_are_evaluated_at_the_step(schedule: Any) -> None:
    rate = translate_optimizer(keras.optimizers.SGD(schedule)).learning_rate
    assert [rate(step) for step in range(12)] == pytest.approx([float(schedule(step)) for step in range(12)])


def test_a_rate_that_a_callback_changes_counts_from_then_on() -> None:
    optimizer = keras.optimizers.Adam(0.1)
    rate = translate_optimizer(optimizer).learning_rate
    assert rate(0) == pytest.approx(0.1)
    optimizer.learning_rate = 0.02
    assert rate(1) == pytest.approx(0.02)


def test_a_schedule_that_a_callback_assigns_counts_at_the_global_step() -> None:
    schedules = keras.optimizers.schedules
    optimizer = keras.optimizers.SGD(0.1)
    rate = translate_optimizer(optimizer).learning_rate
    assert rate(0) == pytest.approx(0.1)
    optimizer.learning_rate = schedules.PiecewiseConstantDecay([6], [0.5, 0.05])
    assert [rate(6), rate(7)] == pytest.approx([0.5, 0.05])
    optimizer.learning_rate = schedules.PiecewiseConstantDecay([6], [0.3, 0.03])
    assert [rate(6), rate(7)] == pytest.approx([0.3, 0.03])


def test_what_a_callback_does_before_a_step_counts_in_that_step(tmp_path: Path) -> None:
    class HalvingCallback(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.8 / 2**batch

    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 3.0 + epoch)
    model, optimizer = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
    rate = translate_optimizer(optimizer).learning_rate
    watcher = KerasCallbacks(
        [scheduler, HalvingCallback()], model, optimizer, tmp_path, check_monitors=lambda found: None
    )
    watcher.begin_epoch(0)
    assert rate(0) == pytest.approx(3.0)
    for step in range(3):
        watcher.begin_step(step)
        assert rate(step) == pytest.approx(0.8 / 2**step)
        watcher.end_step(step, 0.0)
    watcher.begin_epoch(1)
    assert rate(3) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("name", "times"),
    [("sgd", 1.0), ("adamax", 1.0), ("lion", 1.0), ("adam", 7.6), ("nadam", 7.6), ("rmsprop", 7.6), ("adagrad", 1.9)],
)
def test_keras_squares_the_gradient_of_each_occurrence_of_an_id(name: str, times: float) -> None:
    """What the page says of ``keras.fit`` on TensorFlow: the one difference for ids that come several times."""

    def moved(*, dense: bool) -> float:
        keras.utils.set_random_seed(1)
        layer = keras.layers.Embedding(30, 8)
        layer.build((None, 5))
        ids = tf.constant(np.random.default_rng(0).integers(0, 3, (32, 5)))
        before = layer.embeddings.numpy().copy()
        optimizer = keras.optimizers.get(name)
        optimizer.learning_rate = 0.001
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.reduce_sum(layer(ids), 1) - 1))
        (gradient,) = tape.gradient(loss, [layer.embeddings.value])
        optimizer.apply([tf.convert_to_tensor(gradient) if dense else gradient], [layer.embeddings])
        return float(np.abs(layer.embeddings.numpy() - before).max())

    assert moved(dense=False) / moved(dense=True) == pytest.approx(times, rel=0.03)
