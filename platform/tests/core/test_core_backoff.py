"""Delays after failures: doubling, bounded, and random where several peers retry."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from edl.core.backoff import ExponentialBackoff

BACKOFF = ExponentialBackoff(first_seconds=0.2, max_seconds=5)


def test_a_delay_doubles_up_to_its_limit() -> None:
    assert [BACKOFF.delay(failures) for failures in (0, 1, 2, 3, 4, 10)] == [0, 0.2, 0.4, 0.8, 1.6, 5]


def test_jitter_takes_up_to_half_of_a_delay() -> None:
    assert [BACKOFF.jittered_delay(failures, 1) for failures in (1, 2, 3, 4, 10)] == [0.2, 0.4, 0.8, 1.6, 5]
    assert BACKOFF.jittered_delay(3, 0) == 0.4


@given(st.integers(1, 2000), st.floats(0, 1), st.one_of(st.none(), st.floats(0, 60)))
def test_a_delay_is_never_shorter_than_the_server_asks_and_never_endless(
    failures: int, jitter: float, asked: float | None
) -> None:
    delay = BACKOFF.jittered_delay(failures, jitter, asked)
    assert (asked or 0) + 0.1 <= delay <= (asked or 0) + 5


def test_peers_that_failed_together_do_not_retry_together() -> None:
    one, other = (
        [BACKOFF.jittered_delay(failures, draw()) for failures in range(1, 6)]
        for draw in (random.Random(seed).random for seed in (1, 2))
    )
    assert not set(one) & set(other)
