from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.core_harness import CoreHarness, alive

from edl.api.cluster_port import Role
from edl.core.events import (
    LeaseProgress,
    LeaseRequested,
    LeasesRevoked,
    PodsSynced,
    ProgressReported,
    PsAttached,
    PsRegistered,
    Tick,
    WorkerLeft,
)
from edl.core.job import JobStateMachine
from edl.core.ledger import Lease, LeaseRevocation
from edl.core.record_ranges import RecordRange
from edl.core.revocation import settle_leases

LEASE = (1 << 32) + 1
OTHER = LEASE + 1


@dataclass
class RevokedWorker:
    """A worker that pushed the steps of its leases in order, to every PS, until it was revoked."""

    leases: dict[int, Lease]
    answers: dict[str, Mapping[int, int]]


@st.composite
def cases(draw: st.DrawFn) -> RevokedWorker:
    """In each PS are all steps up to the last that all answered, and perhaps the one after it."""
    leases: dict[int, Lease] = {}
    answers: dict[str, dict[int, int]] = {f"ps-{i}": {} for i in range(draw(st.integers(1, 3)))}
    current = False  # whether the worker got no further than the lease before
    for number in range(1, draw(st.integers(1, 3)) + 1):
        size, start = draw(st.integers(1, 20)), 100 * number
        lease = leases[number] = Lease(number, RecordRange(0, "a", start, start + size), 4, "w")
        inside = 0 if current else draw(st.integers(0, lease.step_count))
        for applied in answers.values():
            more = 0 if current or inside == lease.step_count else draw(st.integers(0, 1))
            applied[number] = inside + more
        lease.done_steps = draw(st.integers(0, inside))
        current = current or inside < lease.step_count
    return RevokedWorker(leases, answers)


def revocation(case: RevokedWorker, *, in_flight: bool = True) -> LeaseRevocation:
    revoked = LeaseRevocation("w", tuple(case.leases), "killed", in_flight, waiting_ps=set(case.answers))
    for ps, applied in case.answers.items():
        revoked.record_answer(ps, applied)
    assert not revoked.waiting_ps
    return revoked


@given(cases(), st.booleans())
def test_what_all_applied_is_in_and_what_some_applied_is_repeated(case: RevokedWorker, in_flight: bool) -> None:
    repeated = 0
    for s in settle_leases(revocation(case, in_flight=in_flight), case.leases):
        applied = [answer[s.lease] for answer in case.answers.values()]
        assert s.through == min(applied)
        assert s.partial == max(applied) - min(applied)
        assert s.repeated <= 4 * max(1, s.partial)
        repeated += s.repeated
    assert repeated <= 4, "at most one minibatch a lost worker"


@given(cases())
def test_with_nothing_in_flight_only_what_is_partly_in_is_repeated(case: RevokedWorker) -> None:
    settlements = settle_leases(revocation(case, in_flight=False), case.leases)
    assert all(s.repeated == 0 for s in settlements if not s.partial)


@given(cases())
def test_a_ps_that_went_back_to_a_checkpoint_does_not_undo_what_was_reported(case: RevokedWorker) -> None:
    """What it lacks of that was rolled back with it. What nobody reported is done only if this PS has it, too."""
    revoked = revocation(case)
    revoked.waiting_ps.add("new")
    revoked.record_answer("new", dict.fromkeys(case.leases, 0))
    for s in settle_leases(revoked, case.leases):
        assert s.through == case.leases[s.lease].done_steps
        assert s.through + s.partial == max(answer[s.lease] for answer in case.answers.values())


def test_if_every_ps_that_knew_is_lost_what_was_reported_is_in() -> None:
    lease = Lease(1, RecordRange(0, "a", 0, 20), 4, "w", done_steps=2)
    revoked = LeaseRevocation("w", (1,), "killed", True, waiting_ps={"ps-0"})
    revoked.drop_ps("ps-0")
    (s,) = settle_leases(revoked, {1: lease})
    assert (s.through, s.partial, s.repeated) == (2, 0, 4)


def test_an_answer_that_leaves_a_lease_out_is_none() -> None:
    revoked = LeaseRevocation("w", (1, 2), "killed", True, waiting_ps={"ps-0"})
    revoked.record_answer("ps-0", {1: 3})
    revoked.record_answer("stranger", {1: 3, 2: 0})
    assert revoked.waiting_ps == {"ps-0"}
    assert not revoked.applied_steps


# ------------------------------------------------------------------ taken back without a word


def test_leases_that_are_taken_back_without_a_reason_are_taken_back_once() -> None:
    harness = CoreHarness()
    lease = harness.train()
    for _ in range(3):
        harness.see(WorkerLeft("worker-0", "", ()))
    assert [entry["leases"] for entry in harness.entries("revoking")] == [[lease]]
    harness.see(LeasesRevoked("ps-0", {lease: 0}), Tick())
    assert [entry["lease"] for entry in harness.entries("returned")] == [lease]
    harness.restart()
    assert not harness.state.revocations


@pytest.mark.parametrize("compacted", [False, True])
def test_a_lease_without_a_reason_stays_taken_back_for_the_next_master(compacted: bool) -> None:
    harness = CoreHarness()
    lease = harness.train()
    harness.see(WorkerLeft("worker-0", "", ()))
    state = JobStateMachine(harness.settings)
    state.replay_journal(harness.state.to_snapshot() if compacted else None, [] if compacted else harness.journal)
    found = state.find_lease(lease)
    assert found is not None
    assert found[1].revoke_reason == ""
    assert not state.worker_leases("worker-0"), "nobody works on it"
    state.handle(ProgressReported("worker-0", (LeaseProgress(lease, 1),)), 0.0)
    assert found[1].done_steps == 0


def _revoking(*leases: int, reason: str = "") -> dict[str, Any]:
    return {
        "kind": "revoking",
        "worker": "worker-0",
        "leases": leases,
        "reason": reason,
        "in_flight": True,
        "crashed": False,
    }


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(
    "entered",
    [
        [_revoking(LEASE), _revoking(LEASE), _revoking(LEASE)],
        [_revoking(LEASE), _revoking(LEASE, OTHER)],
        [_revoking(LEASE, OTHER), {"kind": "done", "lease": LEASE}],
        [_revoking(LEASE), {"kind": "done", "lease": LEASE}],
        [
            _revoking(LEASE),
            _revoking(LEASE),
            {"kind": "returned", "lease": LEASE, "through": 1, "partial": 0, "repeated": 0},
        ],
        [
            {"kind": "returned", "lease": LEASE, "through": 1, "partial": 0, "repeated": 0},
            _revoking(LEASE, reason="killed"),
        ],
    ],
)
def test_a_journal_in_which_a_lease_is_taken_back_more_often_than_it_can_be_is_gone_on_from(
    entered: list[Any], compacted: bool
) -> None:
    """Masters wrote such ones, and those after them ended at each of them."""
    harness = CoreHarness()
    assert harness.train() == LEASE
    harness.see(LeaseRequested("worker-0", frozenset({LEASE})))
    assert set(harness.state.ledgers["training"].leases) == {LEASE, OTHER}
    harness.journal += entered
    harness.restart()
    if compacted:
        snapshot = harness.state.to_snapshot()
        harness.state = JobStateMachine(harness.settings)
        harness.state.replay_journal(snapshot, [])
    harness.see(alive(Role.PS, 0), alive(Role.WORKER, 1), PodsSynced(), PsRegistered("ps-0"))
    harness.see(PsAttached("ps-0", True, 0), LeasesRevoked("ps-0", {LEASE: 1, OTHER: 0}), Tick())
    training = harness.state.ledgers["training"]
    assert not harness.state.revocations
    assert not training.leases
    assert training.done_records + training.count_remaining_records() == 640, "each record is in one place"


def test_a_snapshot_in_which_a_lease_is_taken_back_twice_is_gone_on_from() -> None:
    harness = CoreHarness()
    lease = harness.train()
    harness.see(WorkerLeft("worker-0", "told to go", ()))
    snapshot = harness.state.to_snapshot()
    snapshot["revocations"] += [*snapshot["revocations"], ["worker-0", [lease, 4711], "", True, False]]
    state = JobStateMachine(harness.settings)
    state.replay_journal(snapshot, [])
    assert [revocation.leases for revocation in state.revocations] == [(lease,)]


def test_a_lease_that_is_gone_is_passed_over() -> None:
    lease = Lease(2, RecordRange(0, "a", 0, 20), 4, "w", done_steps=2)
    (s,) = settle_leases(LeaseRevocation("w", (1, 2), "", True), {2: lease})
    assert (s.lease, s.through) == (2, 2)
