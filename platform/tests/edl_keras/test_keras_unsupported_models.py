"""A model that says itself how it is trained is refused by name: EDL would train it otherwise, and say nothing."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow

import keras  # noqa: E402
from support.text_keys import missing_keys  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.api.job_spec import ModelSpec  # noqa: E402
from edl.keras.model_building import refuse_lossy_export, refuse_unexportable_inputs  # noqa: E402
from edl.keras.model_contract import load_model_module  # noqa: E402
from edl.keras.network import KerasNetwork  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402
from edl.keras.user_callbacks import make_callbacks  # noqa: E402

REST = """
import keras, tensorflow as tf

def loss(labels, predictions):
    return tf.square(labels - predictions)

def optimizer():
    return keras.optimizers.SGD(0.1)

def eval_metrics_fn():
    return {}

def feed(dataset, mode, metadata):
    return dataset

def network():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(1)

    def call(self, x):
        return self.head(x)

"""
OVERRIDES = {
    "train_step": "(self, data): return super().train_step(data)",
    "test_step": "(self, data): return super().test_step(data)",
    "predict_step": "(self, data): return super().predict_step(data)",
    "compute_loss": "(self, *args, **kwargs): return super().compute_loss(*args, **kwargs)",
    "compute_metrics": "(self, *args, **kwargs): return super().compute_metrics(*args, **kwargs)",
    "make_train_function": "(self, force=False): return super().make_train_function(force)",
    "make_test_function": "(self, force=False): return super().make_test_function(force)",
    "make_predict_function": "(self, force=False): return super().make_predict_function(force)",
}
NEVER_CALLED = {
    "fit": "(self, *args, **kwargs): raise RuntimeError",
    "evaluate": "(self, *args, **kwargs): raise RuntimeError",
    "predict": "(self, *args, **kwargs): raise RuntimeError",
    "train_on_batch": "(self, *args, **kwargs): raise RuntimeError",
    "test_on_batch": "(self, *args, **kwargs): raise RuntimeError",
    "predict_on_batch": "(self, *args, **kwargs): raise RuntimeError",
    "get_metrics_result": "(self): return {}",
}
FEATURES = np.zeros((3, 2), np.float32)


def module(folder: Path, source: str) -> Any:
    zoo = folder / "zoo"
    zoo.mkdir()
    (zoo / "own.py").write_text(REST + source, encoding="utf-8")
    return load_model_module(ModelSpec(zoo=str(zoo), definition="own.custom_model", params={}))


def load_error(folder: Path, source: str) -> BadInputError:
    with pytest.raises(BadInputError) as error:
        module(folder, source).make_model()
    return error.value


@pytest.mark.parametrize("method", OVERRIDES)
def test_a_step_of_its_own_is_refused_by_name(tmp_path: Path, method: str) -> None:
    source = f"class Mine(Own):\n    def {method}{OVERRIDES[method]}\n\ndef custom_model():\n    return Mine()\n"
    error = load_error(tmp_path, source)
    assert not missing_keys(error.message, "custom_model()", f"{method}()", "class Mine")
    assert error.where == str(tmp_path / "zoo" / "own.py")
    assert error.hint


@pytest.mark.parametrize("method", NEVER_CALLED)
def test_so_is_a_method_of_its_own_that_people_call(tmp_path: Path, method: str) -> None:
    source = f"class Mine(Own):\n    def {method}{NEVER_CALLED[method]}\n\ndef custom_model():\n    return Mine()\n"
    error = load_error(tmp_path, source)
    assert not missing_keys(error.message, "custom_model()", f"{method}()", "class Mine")
    assert error.where == str(tmp_path / "zoo" / "own.py")
    assert error.hint


IN_LAYERS = {
    "model": "    def __init__(self):\n        super().__init__()\n        self.m = keras.metrics.Mean(name='act')",
    "build": "    def build(self, shape):\n        self.m = keras.metrics.Mean(name='act')\n        self.built = True",
}


@pytest.mark.parametrize("place", IN_LAYERS)
def test_a_metric_that_call_updates_is_refused(tmp_path: Path, place: str) -> None:
    call = "    def call(self, x):\n        self.m.update_state(x)\n        return super().call(x)\n"
    source = f"class Mine(Own):\n{IN_LAYERS[place]}\n{call}\ndef custom_model():\n    return Mine()\n"
    with pytest.raises(BadInputError) as error:
        ModelReplica(module(tmp_path, source), seed=1, rank_seed=None, sample=FEATURES)
    assert not missing_keys(error.value.message, "Mine", "'act'", "Mean")
    assert "eval_metrics_fn()" in str(error.value.hint)


def test_a_metric_of_a_layer_is_refused_with_the_layer(tmp_path: Path) -> None:
    source = """
class Tracked(keras.layers.Dense):
    def __init__(self, units, **more):
        super().__init__(units, **more)
        self.tracker = keras.metrics.Mean(name="act")

def custom_model():
    return keras.Sequential([keras.Input((2,)), Tracked(1, name="inner")])
"""
    assert not missing_keys(load_error(tmp_path, source).message, "'inner'", "Tracked", "'act'")


def test_a_compiled_model_within_another_has_none_that_count(tmp_path: Path) -> None:
    source = """
def custom_model():
    inner = network()
    inner.compile("sgd", "mse", metrics=["mae"])
    inputs = keras.Input((2,))
    return keras.Model(inputs, inner(inputs))
"""
    assert module(tmp_path, source).make_model().built


def test_metrics_of_its_own_are_refused(tmp_path: Path) -> None:
    source = """
class Tracked(keras.Model):
    @property
    def metrics(self):
        return [self.tracker]

class Mine(Tracked, Own):
    def __init__(self):
        super().__init__()
        self.tracker = keras.metrics.Mean(name="loss")

def custom_model():
    return Mine()
"""
    error = load_error(tmp_path, source)
    assert not missing_keys(error.message, "property metrics", "class Mine, from Tracked")
    assert "eval_metrics_fn()" in str(error.hint)


def test_what_edl_itself_gives_a_model_is_not_the_users(tmp_path: Path) -> None:
    """A module may return one model each time; that of callbacks has methods that raise."""
    source = "MODEL = network()\n\ndef custom_model():\n    return MODEL\n"
    user = module(tmp_path, source)
    first = user.make_model()
    make_callbacks(
        lambda: [keras.callbacks.Callback()],
        first,
        keras.optimizers.SGD(0.1),
        tmp_path,
        check_monitors=lambda found: None,
    )
    assert user.make_model() is first


def test_a_step_that_a_base_class_or_the_object_has_is_refused_too(tmp_path: Path) -> None:
    source = """
class Mixup(keras.Model):
    def train_step(self, data):
        return super().train_step(data)

class Mine(Mixup, keras.Sequential):
    pass

def custom_model():
    return Mine([keras.Input((2,)), keras.layers.Dense(1)])

def patched():
    model = network()
    model.test_step = lambda data: {}
    return model
"""
    assert not missing_keys(load_error(tmp_path, source).message, "train_step()", "class Mine, from Mixup")
    choice = ModelSpec(zoo=str(tmp_path / "zoo"), definition="own.patched", params={})
    pattern = r"patched\(\).*test_step\(\).*class Sequential"
    with pytest.raises(BadInputError, match=pattern) as caught:
        load_model_module(choice).make_model()
    assert caught.value.where == str(tmp_path / "zoo" / "own.py"), "and not Keras' own file"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ('optimizer="adam", loss="mse"', "compiled (optimizer Adam, loss)"),
        ('loss="mse", loss_weights=[0.5]', "compiled (optimizer RMSprop, loss, loss_weights)"),
        ('metrics=["mae"]', "compiled (optimizer RMSprop, metrics)"),
        ("optimizer=None, jit_compile=True", "is compiled"),
    ],
)
def test_a_compiled_model_is_refused(tmp_path: Path, options: str, named: str) -> None:
    source = f"def custom_model():\n    model = network()\n    model.compile({options})\n    return model\n"
    error = load_error(tmp_path, source)
    assert named in error.message
    assert "compile=False" in str(error.hint)


@pytest.mark.parametrize(
    "body",
    [
        "return Own()",
        "return network()",
        "inner = network(); inner.compile('adam', 'mse')\n"
        "    given = keras.Input((2,))\n    return keras.Model(given, keras.layers.Dense(1)(inner(given)))",
        "inner = network(); inner.compile('adam', 'mse')\n    return keras.Model(inner.inputs, inner.outputs)",
    ],
    ids=["subclassed", "sequential", "a compiled model is nested in it", "made of a compiled one"],
)
def test_others_are_trained_under_every_strategy(tmp_path: Path, body: str) -> None:
    user = module(tmp_path, f"def custom_model():\n    {body}\n")
    labels = np.ones((3, 1), np.float32)
    local = ModelReplica(user, seed=1, rank_seed=None, sample=FEATURES)
    loss = local.take_step(FEATURES, labels).loss
    served = KerasNetwork.build(
        user, seed=1, embedding_threshold=1 << 20, ps_of_variable=lambda name: 0, ps_count=1, sample=FEATURES
    )
    assert served.train(served.initial_values(), {}, FEATURES, labels).loss == pytest.approx(loss)


def test_every_kind_of_keras_own_models_inherits_the_steps() -> None:
    functional = keras.Model(inputs := keras.Input((2,)), keras.layers.Dense(1)(inputs))
    for model in (functional, keras.Sequential([keras.layers.Dense(1)]), keras.Model()):
        for method in (*OVERRIDES, *NEVER_CALLED, "metrics"):
            assert getattr(type(model), method) is getattr(keras.Model, method)


def test_functions_of_other_names_are_those_of_the_contract(tmp_path: Path) -> None:
    source = """
def my_loss(labels, predictions): return 7.0
def custom_model(): return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
"""
    module(tmp_path, source)
    (tmp_path / "zoo" / "input.py").write_text("def read(dataset, mode, metadata): return 'from input'\n")
    choice = SimpleNamespace(
        keras=3,
        functions={"loss": "my_loss", "feed": "input.read"},
        zoo=tmp_path / "zoo",
        definition="own.custom_model",
        params={},
    )
    chosen = load_model_module(choice)
    assert chosen.loss(None, None) == 7.0
    assert chosen.feed(None, "training", None) == "from input"
    with pytest.raises(BadInputError, match=r"loss.*cannot be called as loss\(labels, predictions\)"):
        load_model_module(SimpleNamespace(**vars(choice) | {"functions": {"loss": "custom_model"}}))


@pytest.mark.parametrize(("dtype", "refused"), [("float32", False), ("float64", True), ("float16", True)])
def test_what_an_export_would_round_is_refused_before_training(dtype: str, *, refused: bool) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, dtype=dtype)])
    with pytest.raises(BadInputError, match=f"kernel' is {dtype}") if refused else nullcontext():
        refuse_lossy_export(model)


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (["age", "hours_per-week.1", "1st"], ""),
        (["hours per week"], "no input 'hours per week'"),
        (["größe"], "no input 'größe'"),
        (["_age"], "no input '_age'"),
        (["class"], "no input 'class'"),
        (["self"], "no input 'self'"),
        (["Class", "match"], ""),
        (["Age", "age"], "'Age' and 'age' have the same name"),
        (["a.b", "a-b"], "'a.b' and 'a-b' have the same name"),
    ],
)
def test_names_of_inputs_that_a_saved_model_cannot_have_are_refused_before_training(
    names: list[str], refused: str, tmp_path: Path
) -> None:
    inputs = [keras.Input((1,), name=name) for name in names]
    model = keras.Model(inputs, keras.layers.Dense(1)(sum(inputs)))
    with pytest.raises(BadInputError, match=refused) if refused else nullcontext():
        refuse_unexportable_inputs(model)
    # Keras accepts the same names.
    expected = r"Name collision|argument names|valid parameter name|argument 'self'"
    with pytest.raises((ValueError, TypeError), match=expected) if refused else nullcontext():
        model.export(tmp_path / "model", verbose=False)


def test_names_of_inputs_that_keras_does_not_use_in_a_saved_model_are_accepted() -> None:
    tags = keras.Input((None,), name="the tags", ragged=True)
    refuse_unexportable_inputs(keras.Model(tags, tags * 2))
