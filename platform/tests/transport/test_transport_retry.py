"""Pauses between tries: bounded, random, and only as many as time allows."""

from __future__ import annotations

import random
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from edl.transport.retry import RetryPolicy, iter_pauses


@given(st.integers(), st.floats(0.001, 1.0), st.floats(1.0, 10.0))
def test_pauses_stay_within_bounds(seed: int, first: float, ceiling: float) -> None:
    drawn = list(
        islice(iter_pauses(RetryPolicy(first_pause=first, max_pause=ceiling), random.Random(seed).uniform), 50)
    )
    assert all(first <= pause <= ceiling for pause in drawn)


def test_pauses_grow_up_to_the_ceiling() -> None:
    drawn = list(islice(iter_pauses(RetryPolicy(first_pause=0.1, max_pause=2.0), lambda low, high: high), 5))
    assert [round(pause, 6) for pause in drawn] == [0.3, 0.9, 2.0, 2.0, 2.0]


def test_two_peers_do_not_come_back_together() -> None:
    one, other = (list(islice(iter_pauses(RetryPolicy(), random.Random(seed).uniform), 5)) for seed in (1, 2))
    assert not set(one) & set(other)
