"""Attempts are counted and limited; the delays between them double, and have random numbers of their own."""

from __future__ import annotations

import random
from threading import Event

import pytest
from support.sleep_clock import SleepClock

from edl.core.backoff import ExponentialBackoff
from edl.retry.attempts import Retry, draw_jitter, no_jitter

BACKOFF = ExponentialBackoff(first_seconds=1.0, max_seconds=4.0)


def test_a_seed_that_all_workers_set_does_not_make_them_retry_together() -> None:
    random.seed(7)
    first = draw_jitter()
    random.seed(7)
    assert draw_jitter() != first


@pytest.mark.parametrize(("jitter", "share"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
def test_delays_double_until_a_success(jitter: float, share: float) -> None:
    slept: list[float] = []
    retry = Retry(BACKOFF, slept.append, jitter=lambda: jitter)
    assert all(retry.wait() for _ in range(4))
    assert slept == [share, 2 * share, 4 * share, 4 * share]
    retry.reset()
    retry.wait(server_delay=10.0)
    assert slept[4:] == [10 + share]
    assert retry.next_delay() == 2 * share
    assert retry.failures == 2
    assert len(slept) == 5


def test_the_last_of_some_attempts_is_not_waited_for() -> None:
    slept: list[float] = []
    retry = Retry(BACKOFF, slept.append, tries=3, jitter=no_jitter)
    attempts = [(retry.is_last, retry.wait()) for _ in range(3)]
    assert attempts == [(False, True), (False, True), (True, False)]
    assert slept == [1.0, 2.0]


def test_no_attempt_begins_after_the_time_is_over() -> None:
    time = SleepClock()
    retry = Retry(BACKOFF, time.sleep, timeout_seconds=3.0, jitter=no_jitter, clock=time.clock)
    assert [retry.wait() for _ in range(3)] == [True, True, False]
    assert time.now == 3.0


def test_an_event_ends_a_wait() -> None:
    closed = Event()
    closed.set()
    assert Retry(ExponentialBackoff(60.0, 60.0), closed.wait).wait()
