from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edl.core.lease_timeouts import SILENCE_CEILING, SILENCE_FLOOR, STUCK_FIRST, STUCK_FLOOR, LeaseHolder, LeaseTimeouts


def run(gaps: list[float], pace: float) -> tuple[LeaseTimeouts, LeaseHolder, float, list[str]]:
    """A holder that speaks after each gap and makes a step every ``pace`` seconds; what expired meanwhile."""
    patience, holder, now, expired = LeaseTimeouts(), LeaseHolder(0.0), 0.0, []
    holder.add_lease(1, 0.0)
    stepped = 0.0
    for gap in gaps:
        now += gap
        expired += holder.find_expired_leases(now, patience).values()
        patience.record_gap(now - holder.last_seen, now)
        holder.last_seen = holder.last_mentioned[1] = now
        if now - stepped >= pace:
            patience.record_step(now - stepped, now)
            holder.last_steps[1] = stepped = now
    return patience, holder, now, expired


@given(st.lists(st.floats(0.01, 3.9), min_size=1, max_size=50), st.floats(0.01, 500.0))
def test_who_speaks_and_steps_keeps_its_lease(gaps: list[float], pace: float) -> None:
    """Steps may take long from the start on; once they are known to be short, a pause of a minute is still fine."""
    assert run(gaps, pace)[3] == []


@given(st.lists(st.floats(0.05, 2.0), min_size=1, max_size=30))
def test_who_falls_silent_loses_its_leases_soon(gaps: list[float]) -> None:
    patience, holder, now, _ = run(gaps, 0.0)
    assert SILENCE_FLOOR <= patience.silence_seconds <= SILENCE_CEILING
    assert holder.find_expired_leases(now + patience.silence_seconds - 0.001, patience) == {}
    assert holder.find_expired_leases(now + patience.silence_seconds + 0.001, patience).keys() == {1}
    assert holder.next_expiry(patience) <= now + patience.silence_seconds


@given(st.floats(1.0, 5.9))
def test_patience_grows_with_what_is_seen(gap: float) -> None:
    patience = LeaseTimeouts()
    patience.record_gap(gap, 0.0)
    assert patience.silence_seconds >= 9.9 * gap or patience.silence_seconds == SILENCE_FLOOR


@given(st.floats(4.5, 5.9), st.integers(2, 500))
def test_many_quick_holders_do_not_make_impatient_with_a_slow_one(slow: float, quick: int) -> None:
    """Patience fades with time, not with the number of messages."""
    patience = LeaseTimeouts()
    patience.record_gap(slow, 0.0)
    for number in range(quick):
        patience.record_gap(0.01, slow * number / quick)
    assert patience.silence_seconds > slow


def test_patience_fades_when_all_are_quick_again() -> None:
    patience = LeaseTimeouts()
    patience.record_gap(6.0, 0.0)
    patience.record_step(60.0, 0.0)
    patience.record_gap(0.1, 600.0)
    patience.record_step(0.1, 600.0)
    assert patience.silence_seconds == SILENCE_FLOOR
    assert patience.stuck_seconds == STUCK_FLOOR


@given(st.floats(1.0, 3600.0), st.floats(0.5, 3.9))
def test_steps_of_many_minutes_are_not_stuck_if_the_first_one_was_not(step: float, gap: float) -> None:
    timeouts, holder = LeaseTimeouts(), LeaseHolder(0.0)
    timeouts.record_step(step, 0.0)
    holder.add_lease(1, 0.0)
    heartbeats = min(100, int(step / gap))
    for number in range(1, heartbeats + 1):
        holder.last_seen = holder.last_mentioned[1] = step * number / heartbeats
        timeouts.record_gap(gap, holder.last_seen)
    holder.last_seen = holder.last_mentioned[1] = step
    assert holder.find_expired_leases(step, timeouts) == {}


@pytest.mark.parametrize(
    ("step", "seconds"), [(0.1, STUCK_FLOOR), (20.0, 400.0), (100.0, STUCK_FIRST), (900.0, 2700.0)]
)
def test_long_steps_are_stuck_after_fewer_multiples_of_them(step: float, seconds: float) -> None:
    timeouts = LeaseTimeouts()
    timeouts.record_step(step, 0.0)
    assert timeouts.stuck_seconds == pytest.approx(seconds)


@given(st.floats(61.0, 1000.0))
def test_only_the_oldest_lease_can_be_stuck(idle: float) -> None:
    patience, holder = LeaseTimeouts(), LeaseHolder(0.0)
    patience.record_step(0.1, 0.0)
    holder.add_lease(1, 0.0)
    holder.add_lease(2, 0.0)
    holder.last_seen = idle
    assert holder.find_expired_leases(idle, patience).keys() == {1}
    holder.drop_lease(1, idle)
    assert holder.find_expired_leases(idle, patience) == {}, "the next one begins now"


@given(st.floats(0.0, 100.0))
def test_a_lease_that_its_worker_never_speaks_of_is_unknown_to_it(seconds: float) -> None:
    """The answer to its question for work was lost."""
    patience, holder = LeaseTimeouts(), LeaseHolder(0.0)
    holder.add_lease(1, 0.0)
    holder.add_lease(2, 0.0)
    holder.last_seen = holder.last_mentioned[1] = seconds
    assume(abs(seconds - patience.silence_seconds) > 0.01)
    assert holder.find_unknown_leases(patience) == ([2] if seconds > patience.silence_seconds else [])
