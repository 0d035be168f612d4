"""Each (lease, step) enters at most once, whatever is retried, revoked, closed or restored."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edl.api.errors import RetryableError
from edl.ps.applied_steps import MAX_MASTERS_AHEAD, AdmissionOutcome, AppliedSteps, NotAttachedError, StaleMasterError

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def number(counter: int, incarnation: int = 1) -> int:
    return (incarnation << 32) + counter


def attached(incarnation: int = 1) -> AppliedSteps:
    leases = AppliedSteps()
    leases.attach_master(incarnation, 0, [], [])
    return leases


def test_before_any_master_every_lease_is_of_an_unknown_one():
    assert AppliedSteps().decide_push(number(1), 0) is AdmissionOutcome.UNKNOWN_MASTER


def test_a_step_enters_once_and_older_ones_are_duplicates():
    leases = attached()
    assert leases.admit_push(number(1), 0) is AdmissionOutcome.ADMITTED
    assert leases.admit_push(number(1), 4) is AdmissionOutcome.ADMITTED
    assert leases.admit_push(number(1), 3) is AdmissionOutcome.DUPLICATE
    assert leases.steps_by_lease() == {number(1): 5}


def test_deciding_changes_nothing():
    leases = attached()
    assert leases.decide_push(number(1), 0) is leases.decide_push(number(1), 0) is AdmissionOutcome.ADMITTED


def test_a_lower_master_is_refused_and_its_new_leases_are_not_believed():
    leases = attached(2)
    with pytest.raises(StaleMasterError, match="incarnation 1"):
        leases.attach_master(1, 0, [], [])
    with pytest.raises(StaleMasterError):
        leases.check_master(1)
    with pytest.raises(NotAttachedError):
        leases.check_master(3)
    assert leases.decide_push(number(7, 1), 0) is AdmissionOutcome.REVOKED


def test_a_master_far_above_all_that_was_heard_of_attaches_only_once_it_was_heard_of():
    leases = attached(3)
    far = 3 + MAX_MASTERS_AHEAD + 1
    for incarnation in (far, 2**31 - 1):
        with pytest.raises(RetryableError, match=f"incarnation {incarnation} cannot attach.* 3"):
            leases.attach_master(incarnation, 0, [], [])
    leases.check_master(3)
    leases.record_incarnation(far)
    leases.record_incarnation(2)  # one that was replaced meanwhile answers late
    leases.attach_master(far, 0, [], [])
    leases.check_master(far)


def test_the_first_master_may_be_any():
    attached(5000).check_master(5000)


def test_leases_that_live_on_keep_their_place():
    leases = attached()
    leases.admit_push(number(1), 0)
    leases.attach_master(2, 0, [], [number(1)])
    assert leases.admit_push(number(1), 0) is AdmissionOutcome.DUPLICATE
    assert leases.admit_push(number(1), 1) is AdmissionOutcome.ADMITTED


def test_a_revocation_can_be_asked_for_again_with_the_same_answer():
    leases = attached()
    leases.admit_push(number(1), 0)
    assert leases.revoke_leases([number(1), number(2)], 0) == leases.revoke_leases([number(1), number(2)], 0)
    assert leases.steps_by_lease() == {}


@PATIENT
@given(st.lists(st.integers(1, 200), max_size=200), st.integers(0, 220))
def test_memory_is_kept_only_for_leases_at_or_above_the_floor(counters, floor):
    leases = attached()
    for counter in counters:
        leases.admit_push(number(counter), 0)
        if counter % 3 == 0:
            leases.revoke_leases([number(counter)], 0)
    leases.close_leases_below(number(floor))
    assert len(leases) == len({counter for counter in counters if counter >= floor})
    assert all(
        leases.decide_push(number(counter), 9) is AdmissionOutcome.REVOKED for counter in counters if counter < floor
    )


class StepInterleavings(RuleBasedStateMachine):
    """Two masters, workers that retry, revocations, floors and a checkpoint, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.leases = attached()
        self.incarnation = 1
        self.floor = 0
        self.entered: set[tuple[int, int]] = set()
        self.closed: set[int] = set()
        self.saved: tuple[dict[int, int], set[tuple[int, int]]] = ({}, set())

    leases_of = st.builds(number, st.integers(1, 6), st.integers(1, 3))

    @rule(lease=leases_of, step=st.integers(0, 5))
    def push(self, lease: int, step: int) -> None:
        decided = self.leases.decide_push(lease, step)
        assert self.leases.admit_push(lease, step) is decided
        if decided is AdmissionOutcome.ADMITTED:
            assert (lease, step) not in self.entered
            assert lease not in self.closed
            assert lease >= self.floor
            assert lease >> 32 <= self.incarnation
            self.entered.add((lease, step))
        if decided is AdmissionOutcome.DUPLICATE:
            assert any(known == lease and later >= step for known, later in self.entered)

    @rule(leases=st.lists(leases_of, max_size=3), floor=leases_of)
    def revoke(self, leases: list[int], floor: int) -> None:
        before = {lease: max((s + 1 for known, s in self.entered if known == lease), default=0) for lease in leases}
        through = self.leases.revoke_leases(leases, floor)
        for lease, steps in through.items():
            assert steps in (0, before[lease])
            assert steps == before[lease] or lease < self.floor
        self.closed |= set(leases)
        self.floor = max(self.floor, floor)

    @precondition(lambda self: self.incarnation < 3)
    @rule(live=st.lists(leases_of, max_size=4), revoked=st.lists(leases_of, max_size=2))
    def new_master(self, live: list[int], revoked: list[int]) -> None:
        self.incarnation += 1
        self.leases.attach_master(self.incarnation, self.floor, revoked, live)
        self.closed |= set(revoked)

    @rule()
    def checkpoint(self) -> None:
        self.saved = (dict(self.leases.steps_by_lease()), set(self.entered))

    @rule()
    def restore(self) -> None:
        """The updates after the checkpoint are gone with it: their steps may enter again, once."""
        applied, self.entered = self.saved[0], {e for e in self.saved[1] if e[0] in self.saved[0]}
        self.leases.restore_steps(applied)

    @invariant()
    def memory_is_bounded(self) -> None:
        assert all(lease >= self.floor for lease in self.leases.steps_by_lease())


TestInterleavings = StepInterleavings.TestCase
TestInterleavings.settings = PATIENT
