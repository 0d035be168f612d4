"""A cut and a revocation at the same time: a step that one PS has may never reach the others.

So updates are held only while no lease is on its way back, and a lease that is taken back meanwhile ends the cut.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.core_harness import CoreHarness, alive, killed

from edl.api.cluster_port import Role
from edl.core.checkpointing import RETRY_HELD_SECONDS
from edl.core.cuts import COPY_TIMEOUT_SECONDS
from edl.core.events import (
    CutPrepared,
    HoldUpdates,
    LeaseProgress,
    LeaseReply,
    LeaseRequested,
    LeasesRevoked,
    PrepareCut,
    ProgressReported,
    PsRefused,
    ReleaseCut,
    SnapshotTaken,
    TakeSnapshot,
    TaskReported,
    Tick,
    UpdatesHeld,
    WorkerLeft,
)


def test_updates_are_not_held_before_a_revocation_is_settled() -> None:
    harness = CoreHarness(checkpoint_steps=1)
    lease = harness.train()
    (other,) = (command.lease for command in harness.see(LeaseRequested("worker-1")) if isinstance(command, LeaseReply))
    harness.see(WorkerLeft("worker-0", "told to go"))  # the PS has not answered yet
    harness.see(ProgressReported("worker-1", (LeaseProgress(other, 1),)))  # a cut is due
    assert _cuts(HoldUpdates, harness.see(CutPrepared("ps-0", 2), Tick())) == [], "how far the lease got is not known"
    assert _cuts(HoldUpdates, harness.see(LeasesRevoked("ps-0", {lease: 3}), Tick())) == [2]
    assert _cuts(TakeSnapshot, harness.see(UpdatesHeld("ps-0", 2, {other: 1}))) == [2]
    harness.see(SnapshotTaken("ps-0", 2, 4, 0.01))
    assert [entry["step"] for entry in harness.entries("cut_taken")] == [0, 4]


@pytest.mark.parametrize("held", [False, True])
def test_a_cut_is_off_when_a_lease_is_revoked_while_updates_are_held(*, held: bool) -> None:
    harness = CoreHarness(checkpoint_steps=1)
    lease = harness.train()
    harness.see(ProgressReported("worker-0", (LeaseProgress(lease, 1),)))
    assert _cuts(HoldUpdates, harness.see(CutPrepared("ps-0", 2))) == [2]
    if held:
        assert _cuts(TakeSnapshot, harness.see(UpdatesHeld("ps-0", 2, {lease: 1}))) == [2]
    assert _cuts(ReleaseCut, harness.see(killed(Role.WORKER, 0))) == [2]
    harness.see(UpdatesHeld("ps-0", 2, {lease: 1}), SnapshotTaken("ps-0", 2, 3, 0.01), alive(Role.WORKER, 2))
    assert len(harness.entries("cut_taken")) == 1, "the snapshot may hold steps of the lease that nobody knows of"


def test_a_parameter_server_may_copy_for_longer_than_it_may_hold_in_vain() -> None:
    harness = CoreHarness(checkpoint_steps=1)
    lease = harness.train()
    harness.see(
        TaskReported("worker-0", lease, LeaseProgress(lease, 8)), CutPrepared("ps-0", 2), UpdatesHeld("ps-0", 2, {})
    )
    assert _cuts(ReleaseCut, harness.state.handle(Tick(), COPY_TIMEOUT_SECONDS - 0.1)) == []
    assert _cuts(ReleaseCut, harness.state.handle(Tick(), COPY_TIMEOUT_SECONDS)) == [2]


@pytest.mark.parametrize("why", ["refused", "unknown"])
def test_a_cut_for_which_updates_were_held_in_vain_is_not_tried_again_at_once(why: str) -> None:
    harness = CoreHarness(ps=2, checkpoint_steps=1)
    lease = harness.train()
    harness.see(
        ProgressReported("worker-0", (LeaseProgress(lease, 1),)), CutPrepared("ps-0", 2), CutPrepared("ps-1", 2)
    )
    if why == "refused":
        harness.see(PsRefused("ps-1", "cut", "cut 2 is over", 2))
    else:
        harness.see(UpdatesHeld("ps-0", 2, {}), UpdatesHeld("ps-1", 2, {}))
    assert [entry["cut"] for entry in harness.entries("cut_off")] == [2]
    assert _cuts(PrepareCut, harness.state.handle(Tick(), RETRY_HELD_SECONDS - 0.1)) == []
    assert _cuts(PrepareCut, harness.state.handle(Tick(), RETRY_HELD_SECONDS)) == [3]


def _cuts(kind: type, commands: list[Any]) -> list[int]:
    return [command.cut for command in commands if isinstance(command, kind)]
