"""When one master may take over from another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.core.leader_election import LEASE_SECONDS, RENEW_DEADLINE_SECONDS, LeadershipRecord, may_take_over

ANOTHER = LeadershipRecord("another", renewed_at=1000.0, duration_seconds=100.0)


def may(lease: LeadershipRecord | None, now: float | None = 1000.0, *, ended: bool = False) -> bool:
    return may_take_over(lease, "me", now, holder_ended=ended).value


def test_at_once_when_nobody_can_be_deciding() -> None:
    assert may(None)
    assert may(LeadershipRecord("", 1000.0, 100.0))
    assert may(LeadershipRecord("me", 1000.0, 100.0))
    assert may(ANOTHER, ended=True)


def test_otherwise_when_it_was_not_renewed_for_longer_than_it_lasts() -> None:
    assert not may(ANOTHER, 1100.0)
    assert not may(ANOTHER, 1101.0)  # both times are whole seconds
    assert may(ANOTHER, 1101.5)
    assert not may(ANOTHER, None)
    assert may(LeadershipRecord("another", None, 100.0, unchanged_seconds=100.5), None)


def test_the_reason_says_who_and_how_long() -> None:
    assert may_take_over(ANOTHER, "me", 1061.0, holder_ended=False).reason.startswith("another holds it for 40 s more")


@given(renewed=st.floats(0, 1e9), passed=st.floats(0, 300))
def test_two_masters_never_decide_at_once(renewed: float, passed: float) -> None:
    """The server cuts its times to whole seconds; the holder began before its renewal arrived at ``renewed``."""
    lease = LeadershipRecord("another", float(int(renewed)), LEASE_SECONDS)
    if may(lease, float(int(renewed + passed))):
        assert passed > LEASE_SECONDS - 1e-6 > RENEW_DEADLINE_SECONDS
