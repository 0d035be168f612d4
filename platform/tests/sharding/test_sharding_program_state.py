"""The state of a program: nested arrays and numbers, as arrays by name and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.sharding.program_state import ProgramState

LEAVES = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.none(),
    st.text(max_size=3),
    arrays.arrays(st.sampled_from([np.float32, np.float64, np.int8, np.bool_]), arrays.array_shapes(min_dims=0)),
)
KEYS = st.one_of(st.integers(0, 9), st.sampled_from("abc"))
STATES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        # 1 and "1" would have one name.
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=8,
)


def assert_equal(first: Any, second: Any) -> None:
    assert type(first) is type(second)
    if isinstance(first, dict):
        assert list(first) == list(second)
        for key in first:
            assert_equal(first[key], second[key])
    elif isinstance(first, list | tuple):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_equal(one, other)
    elif isinstance(first, np.ndarray):
        assert first.dtype == second.dtype
        np.testing.assert_array_equal(first, second)
    else:
        assert first == second


@given(STATES)
def test_a_state_comes_back_as_it_was(state: Any) -> None:
    layout = ProgramState(state)
    stored = {name: array.copy() for name, array in layout.flatten(state).items()}
    assert_equal(layout.restore(stored), state)


@given(STATES, STATES)
def test_only_states_of_the_same_structure_have_equal_fingerprints(first: Any, second: Any) -> None:
    one, other = ProgramState(first), ProgramState(second)
    if one.fingerprint == other.fingerprint:
        assert one.kinds == other.kinds
        assert one.flatten(second).keys() == other.flatten(second).keys()


def test_restored_arrays_are_copies() -> None:
    state = {"w": np.zeros(2)}
    layout = ProgramState(state)
    restored = layout.restore(layout.flatten(state))
    restored["w"][0] = 1
    assert state["w"][0] == 0


@pytest.mark.parametrize(
    ("state", "keys"),
    [
        ({"w": np.zeros(3)}, ["'w'", "float64 of shape (3,)", "was float64 of shape (2,)"]),
        ({"w": np.zeros(2, np.float32)}, ["'w'", "float32"]),
        ({}, ["'w'", "is missing"]),
        ({"w": np.zeros(2), "m": {0: np.zeros(2)}}, ["'m/0'", "was missing", "before the first step", "TorchState"]),
    ],
)
def test_a_state_that_has_changed_its_form_is_refused_by_name(state: Any, keys: list[str]) -> None:
    with pytest.raises(BadInputError) as error:
        ProgramState({"w": np.zeros(2)}).flatten(state)
    assert not missing_keys(str(error.value), *keys)


@pytest.mark.parametrize(
    ("state", "keys"),
    [
        ({"w": np.zeros(2, np.complex64)}, ["'w'", "complex64"]),
        ({"w": np.array(["a"])}, ["'w'", "<U1"]),
        ({"a": {"b": object()}}, ["'a/b'", "object"]),
        ({"n": 1 << 70}, ["'n'", "64 bits"]),
        ({"a/b": 1, "a": {"b": 2}}, ["'a/b'", "two parts"]),
        ({1: 1, "1": 2}, ["'1'", "two parts"]),
    ],
)
def test_what_is_no_array_or_number_is_refused_by_name(state: Any, keys: list[str]) -> None:
    with pytest.raises(BadInputError) as error:
        ProgramState(state)
    assert not missing_keys(str(error.value), *keys)


def test_a_stored_state_of_another_program_is_refused_by_name() -> None:
    with pytest.raises(BadInputError) as error:
        ProgramState({"w": np.zeros(2), "steps": 0}).restore({"w": np.zeros(2)})
    assert not missing_keys(str(error.value), "'steps'", "missing", "another program")


class DlpackArray:
    """An array of another framework that offers DLPack alone."""

    def __init__(self, values: Any) -> None:
        self._values = np.array(values)

    def __dlpack__(self, **options: Any) -> Any:
        return self._values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._values.__dlpack_device__()


def test_arrays_of_other_frameworks_are_read_through_dlpack() -> None:
    layout = ProgramState({"w": DlpackArray([1.0, 2.0])})
    np.testing.assert_array_equal(layout.flatten({"w": DlpackArray([3.0, 4.0])})["w"], [3.0, 4.0])
