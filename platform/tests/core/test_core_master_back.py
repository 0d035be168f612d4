"""A master that comes back is told of pods that have ended before it is told of those that live.

The cluster lists ended pods so that the new master learns how they ended. Nothing may be decided from half a list: a
lease must not be given back while the PS that know how far it got have not been named yet.
"""

from __future__ import annotations

from typing import Any

import pytest

from edl.core.cluster import Phase, PodSeen, Role
from edl.core.events import (
    CheckpointSaved,
    DatasetDescribed,
    Event,
    Granted,
    LeaseWanted,
    ModelDeclared,
    PodChanged,
    PodsSynced,
    Progressed,
    PsAttached,
    PsRegistered,
    Record,
    Revoked,
    RevokeLeases,
    SnapshotTaken,
    Steps,
    Tell,
    Tick,
    WorkerLeft,
)
from edl.core.job import JobState
from edl.core.state import Settings


class Masters:
    """One master after another over the same journal."""

    def __init__(self, ps: int = 1) -> None:
        self.settings = Settings(minibatch=8, task_records=64, ps=ps, workers=2)
        self.journal: list[Any] = []
        self.told: list[Tell] = []
        self.number = 0
        self.restart()

    def restart(self) -> None:
        self.number += 1
        self.state = JobState(self.settings)
        self.state.replay(None, self.journal)
        self._take(self.state.new_incarnation(self.number))

    def _take(self, commands: list[Any]) -> list[Any]:
        self.journal += [command.entry for command in commands if isinstance(command, Record)]
        self.told += [command for command in commands if isinstance(command, Tell)]
        return commands

    def see(self, *events: Event) -> list[Any]:
        return [command for event in events for command in self._take(self.state.handle(event, 0.0))]

    def entries(self, kind: str) -> list[Any]:
        return [entry for entry in self.journal if entry["kind"] == kind]

    def train(self) -> int:
        """Everybody is there, the first checkpoint is on disk, worker-0 holds a lease; returns its number."""
        ps = [alive(Role.PS, index) for index in range(self.settings.ps)]
        self.see(DatasetDescribed(training=(("a", 640),)), *ps, alive(Role.WORKER, 0), alive(Role.WORKER, 1))
        self.see(PodsSynced())
        for index in range(self.settings.ps):
            self.see(PsRegistered(f"ps-{index}"), PsAttached(f"ps-{index}", False, 0))
        self.see(ModelDeclared("worker-0"), Tick())
        for index in range(self.settings.ps):
            self.see(SnapshotTaken(f"ps-{index}", 1, 0, {}))
        (granted,) = [x for x in self.see(CheckpointSaved(1), LeaseWanted("worker-0")) if isinstance(x, Granted)]
        return granted.lease


def alive(role: Role, index: int, uid: str = "") -> PodChanged:
    return PodChanged(PodSeen(uid or f"{role}-{index}", role, index, Phase.RUNNING, pid=100 + index))


def killed(role: Role, index: int) -> PodChanged:
    return PodChanged(PodSeen(f"{role}-{index}", role, index, Phase.FAILED, 137, "Killed", 100 + index))


def test_a_lease_of_a_worker_that_ended_meanwhile_waits_for_the_parameter_servers() -> None:
    masters = Masters()
    lease = masters.train()
    masters.restart()
    masters.see(killed(Role.WORKER, 0), alive(Role.PS, 0), alive(Role.WORKER, 1), PodsSynced())
    assert masters.entries("returned") == [], "the PS has not been asked yet"
    wishes = masters.see(PsRegistered("ps-0"), PsAttached("ps-0", True, 3))
    assert [wish.leases for wish in wishes if isinstance(wish, RevokeLeases)] == [(lease,)]
    masters.see(Revoked("ps-0", {lease: 3}))
    assert [entry["through"] for entry in masters.entries("returned")] == [3]


def test_a_worker_that_leaves_while_the_master_comes_back_is_settled_by_the_parameter_servers() -> None:
    masters = Masters()
    lease = masters.train()
    masters.restart()
    masters.see(WorkerLeft("worker-0", "told to go"))
    assert masters.entries("returned") == [], "the PS has not been named yet"
    masters.see(alive(Role.PS, 0), alive(Role.WORKER, 1), PodsSynced(), PsRegistered("ps-0"))
    masters.see(PsAttached("ps-0", True, 3), Revoked("ps-0", {lease: 3}))
    assert [entry["through"] for entry in masters.entries("returned")] == [3]


@pytest.mark.parametrize("restarts", [1, 2])
def test_a_worker_is_lost_once(restarts: int) -> None:
    masters = Masters()
    masters.train()
    masters.see(killed(Role.WORKER, 0))
    for _ in range(restarts):
        masters.restart()
        masters.see(killed(Role.WORKER, 0), alive(Role.PS, 0), alive(Role.WORKER, 1), PodsSynced())
    assert masters.state.counters.workers_lost == 1
    assert [tell.fields["uid"] for tell in masters.told if tell.event == "role_ended"] == ["worker-0"]


def test_a_parameter_server_that_was_replaced_is_not_lost_again() -> None:
    masters = Masters()
    lease = masters.train()
    masters.see(killed(Role.PS, 0), alive(Role.PS, 0, "new"), PsRegistered("new"), PsAttached("new", False, 0))
    masters.see(PsAttached("new", True, 0))
    (granted,) = [x for x in masters.see(LeaseWanted("worker-0")) if isinstance(x, Granted)]
    assert granted.lease > lease
    masters.see(Progressed("worker-0", 1, (Steps(granted.lease, 5),)))
    masters.restart()
    masters.see(killed(Role.PS, 0), alive(Role.PS, 0, "new"), alive(Role.WORKER, 0), PodsSynced())
    assert masters.state.step == 5, "parameters and ledger are where they were"
    assert len(masters.entries("rolled_back")) == 1


def test_one_of_two_parameter_servers_that_was_replaced_is_not_lost_again() -> None:
    masters = Masters(ps=2)
    lease = masters.train()
    masters.see(Progressed("worker-0", 1, (Steps(lease, 5),)))
    masters.see(killed(Role.PS, 1), alive(Role.PS, 1, "new"))
    masters.restart()
    masters.see(killed(Role.PS, 1), alive(Role.PS, 0), alive(Role.PS, 1, "new"), alive(Role.WORKER, 0), PodsSynced())
    assert masters.state.counters.updates_rolled_back == 5
    assert masters.state.step == 5
