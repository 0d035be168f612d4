"""Requests stay under the rate, whoever asks whenever; pauses grow, jitter and heed the server."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.cluster.kubernetes.rate_limiter import TokenBucket, TokenBucketLimiter


@given(
    st.floats(0.5, 100),
    st.floats(1, 50),
    st.lists(st.floats(0, 2), min_size=1, max_size=80),
    st.floats(0.01, 10),
)
def test_no_window_holds_more_than_burst_and_rate(rate: float, burst: float, gaps: list[float], window: float) -> None:
    bucket, now, sent = TokenBucket.create_full(rate, burst, 0.0), 0.0, []
    for gap in gaps:
        now += gap
        bucket, wait = bucket.take_token(now)
        sent.append(now + wait)
    assert sent == sorted(sent), "first come, first served"
    for first in sent:
        assert sum(first <= moment <= first + window for moment in sent) <= burst + rate * window + 1 + 1e-6


@given(st.integers(1, 100))
def test_burst_is_free_and_the_rest_waits_its_turn(burst: int) -> None:
    bucket = TokenBucket.create_full(10, burst, 0.0)
    waits = []
    for _ in range(burst + 3):
        bucket, wait = bucket.take_token(0.0)
        waits.append(round(wait, 6))
    assert waits == [0.0] * burst + [0.1, 0.2, 0.3]


def test_clock_that_goes_back_earns_nothing() -> None:
    bucket, _ = TokenBucket.create_full(10, 1, 5.0).take_token(5.0)
    bucket, wait = bucket.take_token(4.0)
    assert round(wait, 6) == 0.1


def test_server_that_asks_to_be_left_alone_is() -> None:
    now, slept = [0.0], []
    pace = TokenBucketLimiter(10, 5, now=lambda: now[0], sleep=slept.append)
    pace()
    pace.pause_requests(3)
    pace()
    pace()
    assert [round(seconds, 6) for seconds in slept] == [3.1, 3.2]
    slept.clear()
    now[0] = 10.0
    pace()
    assert slept == []
