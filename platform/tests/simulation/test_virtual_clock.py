from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.simulation.clock import VirtualClock


def test_calls_run_at_their_own_time_also_nested_ones() -> None:
    clock = VirtualClock(100)
    calls: list[tuple[str, float]] = []
    clock.call_later(5, lambda: calls.append(("late", clock.now())))

    def early() -> None:
        calls.append(("early", clock.now()))
        clock.call_later(1, lambda: calls.append(("nested", clock.now())))

    clock.call_later(2, early)
    clock.advance(4)
    assert calls == [("early", 102), ("nested", 103)]
    assert clock.next_due == 105
    assert clock.advance_to_next()
    assert calls[-1] == ("late", 105)
    assert not clock.advance_to_next()


def test_time_never_runs_backwards() -> None:
    with pytest.raises(ValueError, match="advance"):
        VirtualClock().advance(-1)


@given(st.lists(st.floats(0, 100)), st.lists(st.floats(0, 10)))
def test_every_due_call_runs_once_and_in_order(delays: list[float], steps: list[float]) -> None:
    clock = VirtualClock()
    ran: list[tuple[float, int]] = []
    for number, delay in enumerate(delays):
        clock.call_later(delay, lambda number=number: ran.append((clock.now(), number)))  # type: ignore[misc]
    for step in steps:
        clock.advance(step)
        assert {number for _, number in ran} == {n for n, delay in enumerate(delays) if delay <= clock.now()}
    assert ran == sorted(ran)
