from __future__ import annotations

import copy
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.core.evaluation import merge_metric_states

shape = st.lists(st.integers(0, 5), max_size=3)


def part(numbers: list[int], own: list[int]) -> dict[str, Any]:
    return {
        "accuracy": {"additive": True, "states": [numbers, [numbers]]},
        "auc": {"additive": False, "states": own},
    }


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(st.integers(0, 9), min_size=n, max_size=n), min_size=1)))
def test_states_add_up_elementwise_and_in_any_order(parts: list[list[int]]) -> None:
    expected = [sum(column) for column in zip(*parts, strict=True)]
    for order in (parts, parts[::-1]):
        total = reduce(merge_metric_states, (part(numbers, []) for numbers in order), {})
        assert total["accuracy"]["states"] == [expected, [expected]]


@given(st.lists(shape, min_size=1))
def test_states_that_do_not_add_up_are_kept_one_set_a_task(own: list[list[int]]) -> None:
    total = reduce(merge_metric_states, (part([1], states) for states in own), {})
    assert total["auc"] == {"additive": False, "states": own}


@given(shape, shape)
def test_adding_changes_neither_argument(first: list[int], second: list[int]) -> None:
    total, new = merge_metric_states({}, part([1], first)), part([2], second)
    before = copy.deepcopy((total, new))
    merge_metric_states(total, new)
    assert (total, new) == before


def test_tasks_that_disagree_are_refused() -> None:
    total = merge_metric_states({}, part([1], []))
    with pytest.raises(ValueError, match="metrics differ between tasks"):
        merge_metric_states(total, {"accuracy": {"additive": True, "states": []}})
    with pytest.raises(ValueError, match="differ in shape: 1 and 2 values"):
        merge_metric_states(total, part([1, 2], []))


def test_a_task_without_states_adds_nothing_and_what_is_said_of_a_metric_stays() -> None:
    empty = {"f1": {"additive": True, "states": []}}
    full = {"f1": {"additive": True, "states": [[1.0, 2.0]], "given": [["float32", [None, 2]]]}}
    twice = {**full["f1"], "states": [[2.0, 4.0]]}
    for parts in ((full, empty, full), (empty, full, full), (full, full, empty)):
        assert reduce(merge_metric_states, parts, {}) == {"f1": twice}
    assert reduce(merge_metric_states, (empty, empty), {}) == empty
