"""The native extension with arguments of any kind: it does what it says or raises, and is as it was.

A crash would end the test run. Under ``make native-test`` the table's own code runs under sanitizers as well.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.table_contract import declared, initial

from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.parameter_snapshot import RowArrays

if importlib.util.find_spec("edl.numerics._native") is not None:
    from edl.numerics import _native
    from edl.numerics.native_table import NativeTable

pytestmark = pytest.mark.native
MANY = settings(deadline=None, max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
DIM, COUNT = 3, 6
REFUSALS = (TypeError, ValueError, IndexError, OverflowError)
DTYPES = ("float32", "float64", "float16", "int64", "int32", "uint64", "bool", "complex64", "S4", "O", "datetime64[s]")

sizes = st.sampled_from([0, 1, 2, 3, 5, 6, 7])


@st.composite
def odd_arrays(draw: st.DrawFn) -> Any:
    """Arrays of this and that type, shape, order and right, and what is none."""
    if draw(st.integers(0, 9)) == 0:
        return draw(
            st.sampled_from([None, 3, "ids", [1, 2, 3], (), b"12345678", object(), np.float32(1), np.zeros(())])
        )
    shape = tuple(draw(st.lists(sizes, min_size=1, max_size=3)))
    dtype = draw(st.sampled_from(DTYPES))
    base = np.zeros([2 * length for length in shape], dtype)
    match draw(st.sampled_from(["contiguous", "strided", "reversed", "fortran", "broadcast", "unaligned", "swapped"])):
        case "strided":
            array = base[tuple(slice(None, None, 2) for _ in shape)]
        case "reversed":
            array = base[tuple(slice(length, None, -1) for length in shape)]
        case "fortran":
            array = np.zeros(shape, dtype, order="F")
        case "broadcast":
            array = np.broadcast_to(np.zeros((), dtype), shape)
        case "unaligned" if dtype != "O":
            item_size = np.dtype(dtype).itemsize
            array = np.zeros(1 + item_size * int(np.prod(shape)), np.uint8)[1:].view(dtype).reshape(shape)
        case "swapped" if dtype != "O":
            array = np.zeros(shape, np.dtype(dtype).newbyteorder())
        case _:
            array = np.zeros(shape, dtype)
    if draw(st.booleans()):
        array.flags.writeable = False
    return array


def right_arrays(shape: Sequence[int], dtype: Any) -> st.SearchStrategy[Any]:
    """What would be right, often, so that one wrong argument stands beside right ones."""
    return st.one_of(st.builds(lambda: np.zeros(shape, dtype)), odd_arrays())


ids = right_arrays((COUNT,), np.int64)
rows = right_arrays((COUNT, DIM), np.float32)
slots = rows


def table() -> Any:
    """Of five rows."""
    filled = NativeTable(declared(dim=DIM), OptimizerSpec("adagrad"))
    filled.apply_gradients(np.arange(5), np.ones((5, DIM), np.float32), 0.5, 1)
    return filled


def assert_usable(made: Any) -> None:
    """It reads, grows and gives back what it holds."""
    made.apply_gradients(np.arange(100, 400), np.ones((300, DIM), np.float32), 0.5, 2)
    copy = made.take_snapshot().read_all()
    np.testing.assert_array_equal(made.read(copy.ids), copy.values)
    missing = np.array([2000])
    np.testing.assert_array_equal(made.read(missing), initial(declared(dim=DIM), missing))


@MANY
@given(st.sampled_from(["read", "apply", "load"]), ids, rows, slots)
def test_a_table_takes_arrays_that_fit_and_refuses_others(what: str, ids_: Any, rows_: Any, slots_: Any) -> None:
    filled = table()
    call = {
        "read": lambda: filled.read_into(ids_, rows_),
        "apply": lambda: filled.apply_gradients(ids_, rows_, 0.1, 2),
        "load": lambda: filled.load(RowArrays(ids_, rows_, {"accumulator": slots_})),
    }[what]
    try:
        call()
    except REFUSALS:
        assert len(filled) == 5, f"{what} refused, and changed the table"
    assert_usable(filled)


@MANY
@given(ids, st.one_of(st.integers(-3, 12), st.integers(-(2**70), 2**70)), st.integers(-1, 2**70))
def test_a_snapshot_takes_what_fits_and_refuses_the_rest(ids_: Any, start: int, limit: int) -> None:
    filled = table()
    frozen = filled.take_snapshot()
    with suppress(*REFUSALS):
        frozen.read(ids_, declared(dim=DIM))
    with suppress(*REFUSALS):
        assert len(frozen.scan(start, limit).ids) <= 5
    assert_usable(filled)
    assert sorted(frozen.read_all().ids.tolist()) == list(range(5))


@MANY
@given(right_arrays((9, DIM), np.float32), right_arrays((COUNT,), np.int64), rows)
def test_a_gather_takes_arrays_that_fit_and_refuses_others(source: Any, positions: Any, out: Any) -> None:
    with suppress(*REFUSALS):
        _native.gather(source, positions, out)
        assert np.shape(out) == (len(positions), np.shape(source)[1])


@pytest.mark.parametrize("positions", [[-1], [9], [2**62], [-(2**63)]])
def test_a_gather_of_positions_that_are_not_there_is_refused(positions: list[int]) -> None:
    source = np.zeros((9, DIM), np.float32)
    with pytest.raises(IndexError):
        _native.gather(source, np.array(positions, np.int64), np.zeros((1, DIM), np.float32))


@pytest.mark.parametrize("settings_", [{"threads": 0}, {"threads": -1}, {"isa": "mmx"}, {"isa": None}], ids=str)
def test_a_table_that_cannot_be_is_refused(settings_: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        NativeTable(declared(dim=DIM), OptimizerSpec("adagrad"), **settings_)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"dim": 0}, "dim is 1 to 65536"),
        ({"dim": 65537}, "dim is 1 to 65536"),
        ({"dim": 2**63}, "dim is 1 to 65536"),
        ({"threads": 0}, "threads are 1 to 1024"),
        ({"threads": 2**40}, "threads are 1 to 1024"),
        ({"slots": []}, "1 slot variables, and 0 were given"),
        ({"slots": [0.1, 0.1]}, "1 slot variables, and 2 were given"),
    ],
    ids=str,
)
def test_a_table_of_a_shape_that_its_kernel_cannot_move_is_refused(wrong: dict[str, Any], says: str) -> None:
    initializer = _native.Initializer(_native.Distribution.constant, 0.0, 0.0, 1)
    right = {"dim": DIM, "slots": [0.1], "threads": 1, "isa": "", "evict_after": 0, "salt": 0}
    with pytest.raises(ValueError, match=says):
        _native.Table(initializer=initializer, optimizer=_native.Optimizer.adagrad, **(right | wrong))


@MANY
@given(*[right_arrays((COUNT,), np.float32)] * 3, st.integers(0, 4))
def test_a_slab_takes_arrays_that_fit_and_refuses_others(values: Any, slot: Any, gradient: Any, slots_: int) -> None:
    step = _native.Step(rate=0.5)
    with suppress(*REFUSALS):
        _native.move(_native.Optimizer.adagrad, step, values, [slot] * slots_, gradient, "")
        assert np.shape(values) == np.shape(gradient)
        assert slots_ == 0 or np.shape(slot) == np.shape(gradient)


def test_an_array_that_is_not_aligned_is_refused() -> None:
    filled = table()
    ids_ = np.zeros(1 + 8 * COUNT, np.uint8)[1:].view(np.int64)
    rows_ = np.zeros(1 + 4 * COUNT * DIM, np.uint8)[1:].view(np.float32).reshape(COUNT, DIM)
    with pytest.raises(ValueError, match="not aligned"):
        filled.read(ids_)
    with pytest.raises(ValueError, match="not aligned"):
        filled.apply_gradients(np.arange(COUNT), rows_, 0.5, 2)
    assert_usable(filled)
