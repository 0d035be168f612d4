"""Every argument of every Keras optimizer is either reproduced or refused by name."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),  # Keras'
]

import keras  # noqa: E402

from edl.core.errors import BadInputError  # noqa: E402
from edl.worker.optimizers import reproduce  # noqa: E402

CLASSES = {
    name: kind
    for name, kind in vars(keras.optimizers).items()
    if inspect.isclass(kind) and issubclass(kind, keras.optimizers.Optimizer) and name != "Optimizer"
}
REPRODUCED = ("SGD", "Adagrad", "Adam")
OTHER = {  # a value that is not the default, for every argument that the three classes have
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
    "name": "another",
}
REFUSED = {"amsgrad", "weight_decay", "use_ema", "loss_scale_factor", "gradient_accumulation_steps"}


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
        reproduce(make(name))


def test_a_users_subclass_is_refused_by_name() -> None:
    class Mine(keras.optimizers.SGD):  # type: ignore[misc]
        pass

    with pytest.raises(BadInputError, match="class Mine "):
        reproduce(Mine())


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"optimizer\(\) returned str"):
        reproduce("sgd")


@pytest.mark.parametrize(("name", "argument"), [(n, a) for n in REPRODUCED for a in arguments(CLASSES[n])])
def test_every_argument_is_reproduced_or_refused_by_name(name: str, argument: str) -> None:
    options = {argument: OTHER[argument]}
    if argument == "nesterov":
        options["momentum"] = 0.9
    if argument == "ema_overwrite_frequency":  # of use with use_ema only, which Keras checks
        options = {"ema_overwrite_frequency": 3}
    optimizer = CLASSES[name](**options)
    if argument in REFUSED:
        with pytest.raises(BadInputError, match=f"{argument}=.* of the optimizer {name}"):
            reproduce(optimizer)
    else:
        assert_parity(optimizer)


@pytest.mark.parametrize("name", REPRODUCED)
def test_defaults_are_reproduced(name: str) -> None:
    assert_parity(CLASSES[name]())


def assert_parity(optimizer: Any, steps: int = 5) -> None:
    """Some steps of Keras and of the reproduced optimizer, from the same values with the same gradients."""
    rng = np.random.default_rng(0)
    values = [rng.normal(size=shape).astype(np.float32) for shape in ((3, 2), (4,))]
    variables = [keras.Variable(value) for value in values]
    reproduced = reproduce(optimizer)
    slots: list[dict[str, Any]] = [
        {name: np.full_like(value, start) for name, start in reproduced.spec.slots.items()} for value in values
    ]
    for step in range(steps):
        gradients = [rng.normal(size=value.shape).astype(np.float32) for value in values]
        optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients], variables)
        if reproduced.clip is not None:
            reproduced.clip(gradients)
        for value, gradient, slot in zip(values, gradients, slots, strict=True):
            apply(reproduced.spec, value, gradient, slot, reproduced.learning_rate(step), step + 1)
    for value, variable in zip(values, variables, strict=True):
        np.testing.assert_allclose(value, np.asarray(variable), rtol=2e-5, atol=2e-6)


def apply(spec: Any, value: Any, gradient: Any, slot: dict[str, Any], rate: float, step: int) -> None:
    """The update rules as the papers have them; those of the PS are tested against Keras in their own tests."""
    if spec.name == "sgd":
        value -= rate * gradient
    elif spec.name == "momentum":
        slot["momentum"][:] = spec.number("momentum") * slot["momentum"] - rate * gradient
        ahead = spec.number("momentum") * slot["momentum"] - rate * gradient
        value += ahead if spec.flag("nesterov") else slot["momentum"]
    elif spec.name == "adagrad":
        slot["accumulator"] += gradient**2
        value -= rate * gradient / np.sqrt(slot["accumulator"] + spec.number("epsilon"))
    else:
        first, second = spec.number("beta_1"), spec.number("beta_2")
        slot["m"] += (gradient - slot["m"]) * (1 - first)
        slot["v"] += (gradient**2 - slot["v"]) * (1 - second)
        alpha = rate * np.sqrt(1 - second**step) / (1 - first**step)
        value -= alpha * slot["m"] / (np.sqrt(slot["v"]) + spec.number("epsilon"))


@pytest.mark.parametrize(
    "schedule",
    [
        keras.optimizers.schedules.CosineDecay(0.1, 10, warmup_target=0.2, warmup_steps=3),
        keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.5, staircase=True),
        keras.optimizers.schedules.PiecewiseConstantDecay([3, 6], [0.1, 0.05, 0.01]),
    ],
)
def test_schedules_are_evaluated_at_the_step(schedule: Any) -> None:
    rate = reproduce(keras.optimizers.SGD(schedule)).learning_rate
    assert [rate(step) for step in range(12)] == pytest.approx([float(schedule(step)) for step in range(12)])


def test_a_rate_that_a_callback_changes_counts_from_then_on() -> None:
    optimizer = keras.optimizers.Adam(0.1)
    rate = reproduce(optimizer).learning_rate
    assert rate(0) == pytest.approx(0.1)
    optimizer.learning_rate = 0.02
    assert rate(1) == pytest.approx(0.02)
