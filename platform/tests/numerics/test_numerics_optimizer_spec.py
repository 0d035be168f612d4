"""An optimizer as values."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.numerics.optimizer_spec import OPTIMIZER_DEFINITIONS, HyperparameterSpec, HyperparameterValue, OptimizerSpec


def values_of(parameter: HyperparameterSpec) -> st.SearchStrategy[HyperparameterValue]:
    if parameter.bound is None:
        return st.booleans()
    return st.floats(-1e6, 1e6).map(lambda value: value / 2e6).filter(parameter.bound.contains)


@st.composite
def optimizers(draw: st.DrawFn) -> OptimizerSpec:
    """Any optimizer with some of its hyperparameters given."""
    name = draw(st.sampled_from(sorted(OPTIMIZER_DEFINITIONS)))
    choices = {key: values_of(parameter) for key, parameter in OPTIMIZER_DEFINITIONS[name].parameters.items()}
    undecayed = tuple(draw(st.lists(st.text(max_size=4), max_size=3)))
    return OptimizerSpec(name, draw(st.fixed_dictionaries({}, optional=choices)), undecayed)


@given(optimizers())
def test_survives_json_and_processes(optimizer: OptimizerSpec) -> None:
    assert OptimizerSpec.from_json(json.loads(json.dumps(optimizer.to_json()))) == optimizer
    assert pickle.loads(pickle.dumps(optimizer)) == optimizer
    assert hash(OptimizerSpec(optimizer.name, dict(optimizer.hyperparameters), optimizer.undecayed)) == hash(optimizer)


def test_what_is_not_given_is_the_default() -> None:
    assert dict(OptimizerSpec("momentum").hyperparameters) == {"momentum": 0.9, "nesterov": False, "weight_decay": 0.0}
    assert OptimizerSpec("adam") == OptimizerSpec("adam", {"beta_1": 0.9, "amsgrad": False})


@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [
        (OptimizerSpec("sgd"), {}),
        (OptimizerSpec("momentum"), {"momentum": 0.0}),
        (OptimizerSpec("adagrad", {"initial_accumulator_value": 0.5}), {"accumulator": 0.5}),
        (OptimizerSpec("adam"), {"momentum": 0.0, "velocity": 0.0}),
        (OptimizerSpec("adam", {"amsgrad": True}), {"momentum": 0.0, "velocity": 0.0, "velocity_hat": 0.0}),
        (OptimizerSpec("rmsprop"), {"velocity": 0.0}),
        (OptimizerSpec("rmsprop", {"centered": True}), {"velocity": 0.0, "average_gradient": 0.0}),
        (
            OptimizerSpec("rmsprop", {"centered": True, "momentum": 0.5}),
            {"velocity": 0.0, "momentum": 0.0, "average_gradient": 0.0},
        ),
        (OptimizerSpec("adamax"), {"momentum": 0.0, "norm": 0.0}),
        (OptimizerSpec("nadam"), {"momentum": 0.0, "velocity": 0.0}),
        (OptimizerSpec("lion"), {"momentum": 0.0}),
        (OptimizerSpec("ftrl"), {"accumulator": 0.1, "linear": 0.0}),
        (OptimizerSpec("lamb"), {"momentum": 0.0, "velocity": 0.0}),
        (OptimizerSpec("adadelta"), {"accumulated_grad": 0.0, "accumulated_delta_var": 0.0}),
    ],
)
def test_slots(optimizer: OptimizerSpec, slots: dict[str, float]) -> None:
    assert optimizer.slot_starts == slots


def test_variables_that_weight_decay_leaves_alone() -> None:
    optimizer = OptimizerSpec("adam", {"weight_decay": 0.1}, ("b", "a", "b"))
    assert optimizer.undecayed == ("a", "b")
    assert [optimizer.weight_decay_for(name) for name in ("a", "b", "c")] == [0.0, 0.0, 0.1]
    assert optimizer != OptimizerSpec("adam", {"weight_decay": 0.1})


def test_what_earlier_versions_wrote_is_the_same_optimizer() -> None:
    before = {"name": "adam", "hyperparameters": {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}}
    assert OptimizerSpec.from_json(before) == OptimizerSpec("adam")
    assert OptimizerSpec("adam").former_slot_names == {"momentum": "m", "velocity": "v"}


def test_numbers_and_flags() -> None:
    optimizer = OptimizerSpec("momentum", {"momentum": 0, "nesterov": True})
    assert optimizer.get_number("momentum") == 0.0
    assert optimizer.get_flag("nesterov") is True


def test_hyperparameters_cannot_be_changed() -> None:
    given_values = {"epsilon": 0.5}
    optimizer = OptimizerSpec("adam", given_values)
    given_values["epsilon"] = 1.0
    assert optimizer.get_number("epsilon") == 0.5
    with pytest.raises(TypeError):
        optimizer.hyperparameters["epsilon"] = 1.0  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "hyperparameters", "keys"),
    [
        ("muon", {}, ("'muon'", *OPTIMIZER_DEFINITIONS)),
        ("sgd", {"momentum": 0.9}, ("sgd", "'momentum'", "weight_decay")),
        ("adam", {"nesterov": True}, ("adam", "'nesterov'", "beta_1, beta_2, epsilon, amsgrad, weight_decay")),
        ("adam", {"beta_1": 1.0}, ("beta_1", "adam", "1.0", "at least 0", "below 1")),
        ("adam", {"beta_1": True}, ("beta_1", "adam", "True", "at least 0", "below 1")),
        ("adam", {"epsilon": -1.0}, ("epsilon", "adam", "-1.0", "at least 0")),
        ("adam", {"epsilon": float("nan")}, ("epsilon", "adam", "nan", "finite")),
        ("adagrad", {"epsilon": "x"}, ("epsilon", "adagrad", "'x'", "number")),
        ("ftrl", {"learning_rate_power": 0.5}, ("learning_rate_power", "ftrl", "0.5", "at most 0")),
        ("momentum", {"nesterov": 1}, ("nesterov", "momentum", "1", "true", "false")),
    ],
)
def test_wrong(name: str, hyperparameters: dict[str, float], keys: tuple[str, ...]) -> None:
    with pytest.raises(BadInputError) as caught:
        OptimizerSpec(name, hyperparameters)
    assert not missing_keys(str(caught.value), *keys)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"name": "sgd"},
        {"name": "sgd", "hyperparameters": 3},
        {"name": "sgd", "x": 1},
        {"name": "sgd", "hyperparameters": {}, "undecayed": "b"},
    ],
)
def test_wrong_json(value: dict[str, object]) -> None:
    with pytest.raises(BadInputError, match=r"optimizer.*name.*hyperparameters"):
        OptimizerSpec.from_json(value)
