"""A cut and a revocation at the same time: what PS say of a revoked lease is not in the cut's ledger position.

A PS leaves revoked leases out of what a snapshot holds, because a dead worker's last step may be in on some PS only. So
the ledger must know how far such a lease got before its position is taken.
"""

from __future__ import annotations

from typing import Any

from core.masters import Masters, alive, killed

from edl.core.cluster import Role
from edl.core.events import (
    Granted,
    LeaseWanted,
    Progressed,
    ReleaseCut,
    Revoked,
    SnapshotTaken,
    Steps,
    TakeSnapshot,
    Tick,
    WorkerLeft,
)


def test_a_cut_waits_until_a_revocation_is_settled() -> None:
    masters = Masters(checkpoint_steps=1)
    lease = masters.train()
    (other,) = _granted(masters.see(LeaseWanted("worker-1")))
    masters.see(WorkerLeft("worker-0", "told to go"))  # the PS has not answered yet
    masters.see(Progressed("worker-1", 1, (Steps(other, 1),)))  # a cut is due
    taken = masters.see(Progressed("worker-1", 2), Progressed("worker-0", 2), Tick())
    assert _snapshots(taken) == [], "how far the revoked lease got is not known yet"
    taken = masters.see(Revoked("ps-0", {lease: 3}), Tick())
    assert _snapshots(taken) == [2]
    masters.see(SnapshotTaken("ps-0", 2, 4, {other: 1}))
    assert [entry["step"] for entry in masters.entries("cut_taken")] == [0, 4]


def test_a_cut_is_off_when_a_lease_is_revoked_while_snapshots_are_taken() -> None:
    masters = Masters(checkpoint_steps=1)
    lease = masters.train()
    masters.see(Progressed("worker-0", 1, (Steps(lease, 1),)))
    assert _snapshots(masters.see(Progressed("worker-0", 2), Tick())) == [2]
    commands = masters.see(killed(Role.WORKER, 0))
    assert [command.cut for command in commands if isinstance(command, ReleaseCut)] == [2]
    masters.see(SnapshotTaken("ps-0", 2, 3, {}), alive(Role.WORKER, 2))
    assert len(masters.entries("cut_taken")) == 1, "the snapshot may hold steps of the lease that nobody knows of"


def _granted(commands: list[Any]) -> list[int]:
    return [command.lease for command in commands if isinstance(command, Granted)]


def _snapshots(commands: list[Any]) -> list[int]:
    return [command.cut for command in commands if isinstance(command, TakeSnapshot)]
