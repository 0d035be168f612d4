"""What a callback changes while a model trains: it has the effect that it has in ``fit``, or is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.repetition import repetition

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]

import keras  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.api.job_spec import ModelSpec  # noqa: E402
from edl.keras.model_contract import load_model_module  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402
from edl.keras.user_callbacks import make_callbacks  # noqa: E402
from edl.keras.user_code import UserCodeError  # noqa: E402

MODEL = """
import keras

def custom_model():
    model = keras.Sequential([
        keras.Input((3,)),
        keras.layers.Dense(4, activation="tanh", name="hidden"),
        keras.layers.BatchNormalization(name="norm", scale=False, center=False),
        keras.layers.Dense(1, name="head"),
    ])
    model.compile(OPTIMIZER, "mse", jit_compile=False)
    return model

def feed(dataset, mode, metadata):
    return dataset
"""
ONE_OPTIMIZER = "keras.optimizers.SGD(0.1, momentum=0.9)"
SEVERAL_OPTIMIZERS = """keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(
        keras.optimizers.SGD(0.1), {"head/.*": keras.optimizers.Adam(0.1, weight_decay=0.01)}))"""
STEPS, EPOCHS, BATCH = 3, 3, 8
X = np.random.default_rng(7).normal(size=(STEPS * BATCH, 3)).astype(np.float32)
Y = X[:, :1] * X[:, 1:2]
Act = Callable[[Any], Any]


class Acting(keras.callbacks.Callback):  # type: ignore[misc]
    """Does something with the model in one call of one of its methods."""

    def __init__(self, method: str, number: int, act: Act) -> None:
        super().__init__()
        self.calls = 0

        def call(*_: Any, **__: Any) -> None:
            self.calls += 1
            if self.calls == number + 1:
                act(self.model)

        setattr(self, method, call)


def train(
    folder: Path, callback: Any, epochs: int = EPOCHS, *, local: bool = True, optimizer: str = ONE_OPTIMIZER
) -> ModelReplica:
    """As the process of strategy Local does; or, not ``local``, only the calls of a worker of parameter servers."""
    (folder / "own.py").write_text(MODEL.replace("OPTIMIZER", optimizer))
    module = load_model_module(ModelSpec(zoo=str(folder), definition="own.custom_model", params={}))
    model = ModelReplica(module, seed=0, rank_seed=None, sample=X[:1])
    watcher = make_callbacks(
        lambda: [callback],
        model.model,
        model.optimizer,
        folder,
        trains_locally=local,
        check_monitors=lambda found: None,
    )
    for step in range(epochs * STEPS):
        watcher.begin_epoch(step // STEPS)
        watcher.begin_step(step)
        part = slice(step % STEPS * BATCH, (step % STEPS + 1) * BATCH)
        loss = model.take_step(X[part], Y[part]).loss if local else 1.0
        watcher.end_step(step, loss)
        if (step + 1) % STEPS == 0:
            watcher.end_epoch()
        if model.model.stop_training:
            break
    watcher.end_training()
    return model


def fit(callback: Any, optimizer: str = ONE_OPTIMIZER, *, is_built: bool = False) -> Any:
    scope: dict[str, Any] = {}
    exec(MODEL.replace("OPTIMIZER", optimizer), scope)
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    model = scope["custom_model"]()
    if is_built:
        model.optimizer.build(model.trainable_variables)
    model.fit(X, Y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[callback])
    return model


def set_rate(model: Any) -> None:
    model.optimizer.learning_rate = 0.01


def halve_weights(model: Any) -> None:
    model.set_weights([0.5 * weight for weight in model.get_weights()])


def stop(model: Any) -> None:
    model.stop_training = True


EFFECTS: dict[str, tuple[str, int, Act]] = {
    "a rate is set": ("on_epoch_begin", 1, set_rate),
    "a rate is assigned": ("on_train_batch_end", 3, lambda model: model.optimizer.learning_rate.assign(0.02)),
    "weights are set": ("on_train_batch_begin", 4, halve_weights),
    "a layer's weight is assigned": (
        "on_epoch_end",
        0,
        lambda model: model.get_layer("head").kernel.assign(np.ones((4, 1), np.float32)),
    ),
    "an attribute of a layer is set before the first step": (
        "on_train_begin",
        0,
        lambda model: setattr(model.get_layer("norm"), "momentum", 0.5),
    ),
    "slots are set": (
        "on_epoch_begin",
        2,
        lambda model: [v.assign(0 * v) for v in model.optimizer.variables if "momentum" in v.path],
    ),
    "stop": ("on_train_batch_end", 4, stop),
    "stop at the end of an epoch": ("on_epoch_end", 1, stop),
}


@pytest.mark.parametrize("case", ["a rate is set", "weights are set", *map(repetition, list(EFFECTS)[1:])])
def test_what_takes_effect_is_what_it_is_in_fit(tmp_path: Path, case: str) -> None:
    model, plain = train(tmp_path, Acting(*EFFECTS[case])), fit(Acting(*EFFECTS[case]))
    assert int(model.optimizer.iterations) == int(plain.optimizer.iterations)
    for mine, theirs in zip(model.model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)


REFUSED: dict[str, tuple[Act, Sequence[str]]] = {
    "compile": (lambda model: model.compile("adam", "mae"), ("model.compile()",)),
    "compile again alike": (lambda model: model.compile(model.optimizer, "mse"), ("model.compile()",)),
    "an optimizer": (lambda model: setattr(model, "optimizer", keras.optimizers.SGD(0.1)), ("model.optimizer",)),
    "a loss": (lambda model: setattr(model, "loss", "mae"), ("model.loss",)),
    "compiled by XLA": (lambda model: setattr(model, "jit_compile", True), ("model.jit_compile",)),
    "eager": (lambda model: setattr(model, "run_eagerly", True), ("model.run_eagerly",)),
    "several steps": (lambda model: setattr(model, "steps_per_execution", 2), ("model.steps_per_execution",)),
    "a step": (lambda model: setattr(model, "train_step", lambda data: {}), ("model.train_step",)),
    "a call": (lambda model: setattr(model, "call", lambda x: x), ("model.call",)),
    "a frozen layer": (lambda model: setattr(model.layers[0], "trainable", False), ("`trainable`", "'hidden'")),
    "a layer without trained variables": (
        lambda model: setattr(model.get_layer("norm"), "trainable", False),
        ("`trainable`", "'norm'"),
    ),
    "a frozen model": (lambda model: setattr(model, "trainable", False), ("`trainable`", "the model")),
    "a frozen variable": (
        lambda model: setattr(model.get_layer("head").bias, "trainable", False),
        ("`trainable`", "head/bias'"),
    ),
    "momentum": (lambda model: setattr(model.optimizer, "momentum", 0.5), ("'momentum'", "SGD", "0.9", "0.5")),
    "clipping": (lambda model: setattr(model.optimizer, "clipnorm", 1.0), ("'clipnorm'", "SGD")),
    "a schedule": (
        lambda model: setattr(
            model.optimizer, "learning_rate", keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.9)
        ),
        ("learning rate", "SGD", "ExponentialDecay"),
    ),
    "a metric": (lambda model: setattr(model, "seen", keras.metrics.Mean("seen")), ("the metric 'seen'",)),
}


@pytest.mark.parametrize("case", ["compile", "a frozen layer", "momentum", *map(repetition, REFUSED)])
def test_what_steps_cannot_follow_is_refused_by_name(tmp_path: Path, case: str) -> None:
    act, names = REFUSED[case]
    with pytest.raises(BadInputError) as refused:
        train(tmp_path, Acting("on_epoch_begin", 1, act))
    assert all(each in refused.value.message for each in (*names, "Acting.on_epoch_begin()")), refused.value.message
    assert refused.value.hint


INNER_REFUSED: dict[str, tuple[Act, Sequence[str]]] = {
    "clipping": (lambda model: setattr(model.optimizer.optimizers[1], "clipnorm", 1.0), ("'clipnorm'", "SGD")),
    "averages": (lambda model: setattr(model.optimizer.optimizers[0], "use_ema", True), ("'use_ema'", "Adam")),
    "weight decay": (
        lambda model: setattr(model.optimizer.optimizers[0], "weight_decay", 0.5),
        ("'weight_decay'", "Adam", "0.01", "0.5"),
    ),
    "accumulation": (
        lambda model: setattr(model.optimizer.optimizers[1], "gradient_accumulation_steps", 4),
        ("'gradient_accumulation_steps'", "SGD"),
    ),
    "a schedule": (
        lambda model: setattr(
            model.optimizer.optimizers[1], "learning_rate", keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.9)
        ),
        ("learning rate", "SGD", "ExponentialDecay"),
    ),
    "loss scale": (lambda model: setattr(model.optimizer, "loss_scale_factor", 8.0), ("'loss_scale_factor'",)),
}


@pytest.mark.parametrize("case", ["clipping", *map(repetition, INNER_REFUSED)])
def test_each_optimizer_of_a_multi_optimizer_is_checked_as_a_single_one(tmp_path: Path, case: str) -> None:
    act, names = INNER_REFUSED[case]
    with pytest.raises(BadInputError) as refused:
        train(tmp_path, Acting("on_epoch_begin", 1, act), optimizer=SEVERAL_OPTIMIZERS)
    assert all(each in refused.value.message for each in (*names, "Acting.on_epoch_begin()")), refused.value.message


COPYING_OPTIMIZERS = {
    "of Keras": "keras.optimizers.ScheduleFreeAdamW(0.05)",
    "within a loss scale": "keras.optimizers.LossScaleOptimizer(keras.optimizers.ScheduleFreeAdamW(0.05))",
    "of the user's own": """type("Pulled", (keras.optimizers.SGD,), {
        "build": lambda self, variables: (
            keras.optimizers.SGD.build(self, variables),
            setattr(self, "anchors", [self.add_variable_from_reference(v, "anchor") for v in variables]),
            [anchor.assign(v) for anchor, v in zip(self.anchors, variables)],
        )[:0] or None,
    })(0.1)""",
}


@pytest.mark.parametrize("method", ["on_train_begin", *map(repetition, ("on_epoch_begin", "on_train_batch_begin"))])
@pytest.mark.parametrize("case", ["of Keras", *map(repetition, list(COPYING_OPTIMIZERS)[1:])])
def test_weights_are_not_set_after_an_optimizer_has_copied_them(tmp_path: Path, case: str, method: str) -> None:
    """``fit`` builds the optimizer at the first step, after all of these methods."""
    with pytest.raises(BadInputError) as refused:
        train(tmp_path, Acting(method, 0, halve_weights), optimizer=COPYING_OPTIMIZERS[case])
    assert all(each in refused.value.message for each in (f"Acting.{method}()", "hidden/kernel"))
    assert "model.init_from" in str(refused.value.hint)


def test_weights_may_be_set_after_the_first_step_of_an_optimizer_that_has_copied_them(tmp_path: Path) -> None:
    optimizer = COPYING_OPTIMIZERS["of Keras"]
    model = train(tmp_path, Acting("on_epoch_begin", 1, halve_weights), optimizer=optimizer)
    # Where fit builds it, the copy becomes a part of the traced step: Keras 3.15 copies the weights in each step.
    plain = fit(Acting("on_epoch_begin", 1, halve_weights), optimizer, is_built=True)
    for mine, theirs in zip(model.model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_rates_of_a_multi_optimizer_may_be_set(tmp_path: Path) -> None:
    """They are variables, as that of a single optimizer is."""
    act: Act = lambda model: setattr(model.optimizer.optimizers[0], "learning_rate", 0.5)  # noqa: E731
    model = train(tmp_path, Acting("on_epoch_begin", 1, act), optimizer=SEVERAL_OPTIMIZERS)
    assert float(model.optimizer.optimizers[0].learning_rate) == 0.5


@pytest.mark.parametrize(
    ("method", "number"),
    [
        ("on_train_batch_end", 2),
        repetition("set_model", 0),
        repetition("on_train_begin", 0),
        repetition("on_epoch_end", 0),
    ],
)
def test_it_is_refused_wherever_the_callback_does_it(tmp_path: Path, method: str, number: int) -> None:
    """Also with parameter servers, whose workers have a model that nobody trains."""

    class Compiling(keras.callbacks.Callback):  # type: ignore[misc]
        pass

    calls: list[None] = []

    def compile_model(self: Any, *arguments: Any, **_: Any) -> None:
        if method == "set_model":
            self._model = arguments[0]
        calls.append(None)
        if len(calls) == number + 1:
            self.model.compile("adam", "mae")

    setattr(Compiling, method, compile_model)
    for local in (True, False):
        calls.clear()
        with pytest.raises(BadInputError, match=rf"Compiling\.{method}\(\) .*model\.compile\(\)"):
            train(tmp_path, Compiling(), local=local)


def test_what_the_callbacks_own_objects_do_is_free(tmp_path: Path) -> None:
    """It may keep metrics and models, read settings of the trained one, and assign what a setting is already."""
    callback_objects: dict[str, Any] = {}

    def act(model: Any) -> None:
        callback_objects["metric"] = keras.metrics.Mean("mine")
        callback_objects["copy"] = keras.models.clone_model(model)
        callback_objects["copy"].compile("adam", "mse")
        callback_objects["settings"] = model.jit_compile, model.trainable_weights, model.optimizer.get_config()
        model.optimizer.momentum = 0.9
        model.get_layer("head").trainable = True
        model.notes = ["of the user's"]

    train(tmp_path, Acting("on_epoch_begin", 0, act))
    assert callback_objects["settings"]


@pytest.mark.parametrize(
    "call",
    [
        lambda model: model.evaluate(X, Y, verbose=0),
        repetition(lambda model: model.fit(X, Y, verbose=0), name="fit"),
        repetition(lambda model: model.train_on_batch(X, Y), name="train_on_batch"),
    ],
)
def test_what_needs_a_compiled_model_names_what_works(tmp_path: Path, call: Act) -> None:
    """Keras would advise to call ``compile()``, which is refused."""
    with pytest.raises(UserCodeError, match=r"model\.\w+: a callback's model is not compiled.*train\.evaluation_steps"):
        train(tmp_path, Acting("on_epoch_end", 0, call))


def test_predictions_of_a_callback_are_those_of_fit(tmp_path: Path) -> None:
    predictions: list[Any] = []
    act = Acting("on_epoch_end", 1, lambda model: predictions.append(model.predict(X, verbose=0)))
    train(tmp_path, act)
    fit(Acting("on_epoch_end", 1, lambda model: predictions.append(model.predict(X, verbose=0))))
    np.testing.assert_allclose(predictions[0], predictions[1], rtol=1e-5, atol=1e-6)
