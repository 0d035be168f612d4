from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from edl.core.revocations import Revocation, settle
from edl.core.tasks import Lease, Work


@dataclass
class Case:
    """A worker that pushed the steps of its leases in order, to every PS, until it was revoked."""

    leases: dict[int, Lease]
    answers: dict[str, Mapping[int, int]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """In each PS are all steps up to the last that all answered, and perhaps the one after it."""
    leases: dict[int, Lease] = {}
    answers: dict[str, dict[int, int]] = {f"ps-{i}": {} for i in range(draw(st.integers(1, 3)))}
    current = False  # whether the worker got no further than the lease before
    for number in range(1, draw(st.integers(1, 3)) + 1):
        size, start = draw(st.integers(1, 20)), 100 * number
        lease = leases[number] = Lease(number, Work(0, "a", start, start + size), 4, "w")
        inside = 0 if current else draw(st.integers(0, lease.steps))
        for applied in answers.values():
            more = 0 if current or inside == lease.steps else draw(st.integers(0, 1))
            applied[number] = inside + more
        lease.through = draw(st.integers(0, inside))
        current = current or inside < lease.steps
    return Case(leases, answers)


def revocation(case: Case, *, in_flight: bool = True) -> Revocation:
    revoked = Revocation("w", tuple(case.leases), "killed", in_flight, waiting=set(case.answers))
    for ps, applied in case.answers.items():
        revoked.answered(ps, applied)
    assert not revoked.waiting
    return revoked


@given(cases(), st.booleans())
def test_what_all_applied_is_in_and_what_some_applied_is_repeated(case: Case, in_flight: bool) -> None:
    repeated = 0
    for s in settle(revocation(case, in_flight=in_flight), case.leases):
        applied = [answer[s.lease] for answer in case.answers.values()]
        assert s.through == min(applied)
        assert s.partial == max(applied) - min(applied)
        assert s.repeated <= 4 * max(1, s.partial)
        repeated += s.repeated
    assert repeated <= 4, "at most one minibatch a lost worker"


@given(cases())
def test_with_nothing_in_flight_only_what_is_partly_in_is_repeated(case: Case) -> None:
    settlements = settle(revocation(case, in_flight=False), case.leases)
    assert all(s.repeated == 0 for s in settlements if not s.partial)


@given(cases())
def test_a_ps_that_went_back_to_a_checkpoint_does_not_undo_what_was_reported(case: Case) -> None:
    """What it lacks of that was rolled back with it. What nobody reported is done only if this PS has it, too."""
    revoked = revocation(case)
    revoked.waiting.add("new")
    revoked.answered("new", dict.fromkeys(case.leases, 0))
    for s in settle(revoked, case.leases):
        assert s.through == case.leases[s.lease].through
        assert s.through + s.partial == max(answer[s.lease] for answer in case.answers.values())


def test_if_every_ps_that_knew_is_lost_what_was_reported_is_in() -> None:
    lease = Lease(1, Work(0, "a", 0, 20), 4, "w", through=2)
    revoked = Revocation("w", (1,), "killed", True, waiting={"ps-0"})
    revoked.lost("ps-0")
    (s,) = settle(revoked, {1: lease})
    assert (s.through, s.partial, s.repeated) == (2, 0, 4)


def test_an_answer_that_leaves_a_lease_out_is_none() -> None:
    revoked = Revocation("w", (1, 2), "killed", True, waiting={"ps-0"})
    revoked.answered("ps-0", {1: 3})
    revoked.answered("stranger", {1: 3, 2: 0})
    assert revoked.waiting == {"ps-0"}
    assert not revoked.answers
