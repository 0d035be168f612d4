"""An optimizer as values."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.core.errors import BadInputError
from edl.spec.optimizer import OptimizerSpec

_FRACTIONS = st.floats(0, 1, exclude_max=True)
_AMOUNTS = st.floats(0, 1e6)
OPTIMIZERS = st.one_of(
    st.just(OptimizerSpec("sgd")),
    st.builds(
        OptimizerSpec,
        st.just("momentum"),
        st.fixed_dictionaries({"momentum": _FRACTIONS, "nesterov": st.booleans()}),
    ),
    st.builds(
        OptimizerSpec,
        st.just("adagrad"),
        st.fixed_dictionaries({}, optional={"initial_accumulator_value": _AMOUNTS, "epsilon": _AMOUNTS}),
    ),
    st.builds(
        OptimizerSpec,
        st.just("adam"),
        st.fixed_dictionaries({"beta_1": _FRACTIONS, "beta_2": _FRACTIONS}, optional={"epsilon": _AMOUNTS}),
    ),
)


@given(OPTIMIZERS)
def test_survives_json_and_processes(optimizer: OptimizerSpec) -> None:
    assert OptimizerSpec.from_json(json.loads(json.dumps(optimizer.to_json()))) == optimizer
    assert pickle.loads(pickle.dumps(optimizer)) == optimizer
    assert hash(OptimizerSpec(optimizer.name, dict(optimizer.hyperparameters))) == hash(optimizer)


def test_defaults_are_those_of_keras() -> None:
    assert dict(OptimizerSpec("sgd").hyperparameters) == {}
    assert dict(OptimizerSpec("momentum").hyperparameters) == {"momentum": 0.9, "nesterov": False}
    assert dict(OptimizerSpec("adagrad").hyperparameters) == {"initial_accumulator_value": 0.1, "epsilon": 1e-7}
    assert dict(OptimizerSpec("adam").hyperparameters) == {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}


def test_slots() -> None:
    assert OptimizerSpec("sgd").slots == {}
    assert OptimizerSpec("momentum").slots == {"momentum": 0.0}
    assert OptimizerSpec("adagrad", {"initial_accumulator_value": 0.5}).slots == {"accumulator": 0.5}
    assert OptimizerSpec("adam").slots == {"m": 0.0, "v": 0.0}


def test_numbers_and_flags() -> None:
    optimizer = OptimizerSpec("momentum", {"momentum": 0, "nesterov": True})
    assert optimizer.number("momentum") == 0.0
    assert optimizer.flag("nesterov") is True


def test_hyperparameters_cannot_be_changed() -> None:
    given_values = {"epsilon": 0.5}
    optimizer = OptimizerSpec("adam", given_values)
    given_values["epsilon"] = 1.0
    assert optimizer.number("epsilon") == 0.5
    with pytest.raises(TypeError):
        optimizer.hyperparameters["epsilon"] = 1.0  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "hyperparameters", "message"),
    [
        ("ftrl", {}, "optimizer 'ftrl' is not known; known are sgd, momentum, adagrad or adam"),
        ("sgd", {"momentum": 0.9}, "optimizer sgd has no hyperparameter 'momentum'; it has: none"),
        (
            "adam",
            {"nesterov": True},
            "optimizer adam has no hyperparameter 'nesterov'; it has: beta_1, beta_2, epsilon",
        ),
        ("adam", {"beta_1": 1.0}, "beta_1 of optimizer adam is 1.0, must be at least 0 and below 1"),
        ("adam", {"beta_1": True}, "beta_1 of optimizer adam is True, must be at least 0 and below 1"),
        ("adam", {"epsilon": -1.0}, "epsilon of optimizer adam is -1.0, must be a finite number of at least 0"),
        ("adam", {"epsilon": float("nan")}, "epsilon of optimizer adam is nan, must be a finite number of at least 0"),
        ("adagrad", {"epsilon": "x"}, "epsilon of optimizer adagrad is 'x', must be a finite number of at least 0"),
        ("momentum", {"nesterov": 1}, "nesterov of optimizer momentum is 1, must be true or false"),
    ],
)
def test_wrong(name: str, hyperparameters: dict[str, float], message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        OptimizerSpec(name, hyperparameters)
    assert str(caught.value) == message


@pytest.mark.parametrize("value", [{}, {"name": "sgd"}, {"name": "sgd", "hyperparameters": 3}, {"name": "sgd", "x": 1}])
def test_wrong_json(value: dict[str, object]) -> None:
    with pytest.raises(BadInputError, match="an optimizer has the fields name and hyperparameters"):
        OptimizerSpec.from_json(value)
