"""A master that comes back is told of pods that have ended before it is told of those that live.

The cluster lists ended pods so that the new master learns how they ended. Nothing may be decided from half a list: a
lease must not be given back while the PS that know how far it got have not been named yet.
"""

from __future__ import annotations

import pytest
from core.core_harness import CoreHarness, alive, killed

from edl.api.cluster_port import Role
from edl.api.events import LeaseRevoked, RoleEnded, RollbackDone
from edl.api.journal_entries import JobResumed
from edl.core.events import (
    AttachPs,
    CoreEvent,
    DatasetDescribed,
    DeletePod,
    LeaseProgress,
    LeaseReply,
    LeaseRequested,
    LeasesRevoked,
    ModelDeclared,
    PodsSynced,
    ProgressReported,
    PsAttached,
    PsRegistered,
    RevokeLeases,
    StopRequested,
    WorkerLeft,
)
from edl.core.job import JobStateMachine


def test_a_lease_of_a_worker_that_ended_meanwhile_waits_for_the_parameter_servers() -> None:
    masters = CoreHarness()
    lease = masters.train()
    masters.restart()
    masters.see(killed(Role.WORKER, 0), alive(Role.PS, 0), alive(Role.WORKER, 1), PodsSynced())
    assert masters.entries("returned") == [], "the PS has not been asked yet"
    wishes = masters.see(PsRegistered("ps-0"), PsAttached("ps-0", True, 3))
    assert [wish.leases for wish in wishes if isinstance(wish, RevokeLeases)] == [(lease,)]
    masters.see(LeasesRevoked("ps-0", {lease: 3}))
    assert [entry["through"] for entry in masters.entries("returned")] == [3]


def test_a_worker_that_leaves_while_the_master_comes_back_is_settled_by_the_parameter_servers() -> None:
    masters = CoreHarness()
    lease = masters.train()
    masters.restart()
    masters.see(WorkerLeft("worker-0", "told to go"))
    assert masters.entries("returned") == [], "the PS has not been named yet"
    masters.see(alive(Role.PS, 0), alive(Role.WORKER, 1), PodsSynced(), PsRegistered("ps-0"))
    masters.see(PsAttached("ps-0", True, 3), LeasesRevoked("ps-0", {lease: 3}))
    assert [entry["through"] for entry in masters.entries("returned")] == [3]


@pytest.mark.parametrize("restarts", [1, 2])
def test_a_worker_is_lost_once(restarts: int) -> None:
    masters = CoreHarness()
    masters.train()
    masters.see(killed(Role.WORKER, 0))
    for _ in range(restarts):
        masters.restart()
        masters.see(killed(Role.WORKER, 0), alive(Role.PS, 0), alive(Role.WORKER, 1), PodsSynced())
    assert masters.state.counters.workers_lost == 1
    assert [(tell.role, tell.index) for tell in masters.told if isinstance(tell, RoleEnded)] == [("worker", 0)]


def test_workers_that_ended_with_their_run_are_not_lost_when_it_is_resumed() -> None:
    masters = CoreHarness()
    lease = masters.train()
    masters.see(StopRequested("Ctrl-C"), killed(Role.WORKER, 0), killed(Role.WORKER, 1), killed(Role.PS, 0))
    masters.journal.append({"kind": "resumed"})
    masters.restart()
    masters.see(PodsSynced())
    assert masters.state.counters.workers_lost == 0
    assert masters.state.find_lease(lease) is None, "its records are there to be leased again"
    masters.see(alive(Role.WORKER, 2), killed(Role.WORKER, 2))
    assert masters.state.counters.workers_lost == 1


def test_who_was_dismissed_survives_a_compaction() -> None:
    masters = CoreHarness()
    masters.train()
    masters.state.apply_entry(JobResumed())
    again = JobStateMachine(masters.settings)
    again.replay_journal(masters.state.to_snapshot(), [])
    assert again.pods.leaving_workers == {"worker-0", "worker-1"}


def test_who_was_gone_when_the_master_came_back_is_named() -> None:
    masters = CoreHarness()
    masters.train()
    masters.restart()
    masters.see(PodsSynced())
    (back,) = [tell for tell in masters.told if isinstance(tell, RollbackDone)]
    assert back.reason == "ps-0: missing when the master restarted"
    revoked = [tell for tell in masters.told if isinstance(tell, LeaseRevoked)]
    assert [tell.worker for tell in revoked] == [0]
    assert masters.state.pods.index_of("never shown") is None


def test_a_parameter_server_that_was_replaced_is_not_lost_again() -> None:
    masters = CoreHarness()
    lease = masters.train()
    masters.see(killed(Role.PS, 0), alive(Role.PS, 0, "new"), PsRegistered("new"), PsAttached("new", False, 0))
    masters.see(PsAttached("new", True, 0))
    (granted,) = [x for x in masters.see(LeaseRequested("worker-0")) if isinstance(x, LeaseReply)]
    assert granted.lease > lease
    masters.see(ProgressReported("worker-0", (LeaseProgress(granted.lease, 5),)))
    masters.restart()
    masters.see(killed(Role.PS, 0), alive(Role.PS, 0, "new"), alive(Role.WORKER, 0), PodsSynced())
    assert masters.state.step == 5, "parameters and ledger are where they were"
    assert len(masters.entries("rolled_back")) == 1


def test_what_was_measured_of_steps_that_went_back_is_forgotten() -> None:
    masters = CoreHarness()
    lease = masters.train()
    masters.see(ProgressReported("worker-0", (LeaseProgress(lease, 5, 3.0, 2),)))
    masters.state.counters.metrics, masters.state.last_evaluation = {"accuracy": 0.9}, 5
    masters.see(killed(Role.PS, 0))
    counters = masters.state.counters
    assert (masters.state.step, counters.loss, counters.metrics) == (0, None, {})


def test_what_was_measured_before_the_checkpoint_stays() -> None:
    masters = CoreHarness()
    lease = masters.train()
    masters.state.counters.metrics = {"accuracy": 0.9}
    masters.see(ProgressReported("worker-0", (LeaseProgress(lease, 5, 3.0, 2),)))
    masters.see(killed(Role.PS, 0))
    assert masters.state.counters.metrics == {"accuracy": 0.9}


def test_one_of_two_parameter_servers_that_was_replaced_is_not_lost_again() -> None:
    masters = CoreHarness(ps=2)
    lease = masters.train()
    masters.see(ProgressReported("worker-0", (LeaseProgress(lease, 5),)))
    masters.see(killed(Role.PS, 1), alive(Role.PS, 1, "new"))
    masters.restart()
    masters.see(killed(Role.PS, 1), alive(Role.PS, 0), alive(Role.PS, 1, "new"), alive(Role.WORKER, 0), PodsSynced())
    assert masters.state.counters.updates_rolled_back == 5
    assert masters.state.step == 5


def gone(masters: CoreHarness, *events: CoreEvent) -> list[str]:
    """The pods that are told to go."""
    return [wish.uid for wish in masters.see(*events) if isinstance(wish, DeletePod)]


def test_parameters_that_the_journal_knows_nothing_of_are_not_trained_on() -> None:
    masters = CoreHarness(ps=2, durable=False)
    masters.begin_anew()
    ps = [alive(Role.PS, index) for index in range(2)]
    masters.see(DatasetDescribed(training=(("a", 640),)), *ps, alive(Role.WORKER, 0), PodsSynced())
    masters.see(PsRegistered("ps-0"), PsRegistered("ps-1"))
    assert gone(masters, PsAttached("ps-0", True, 0)) == [], "it holds what it was declared with, and nothing else"
    told = gone(masters, PsAttached("ps-1", True, 17))
    assert told == ["ps-1", "worker-0"], "who has declared the model will not do so again"
    assert not any(isinstance(answer, LeaseReply) for answer in masters.see(LeaseRequested("worker-0")))
    masters.see(killed(Role.PS, 1), killed(Role.WORKER, 0), alive(Role.WORKER, 1), alive(Role.PS, 1, "ps-1-b"))
    masters.see(PsRegistered("ps-1-b"), PsAttached("ps-1-b", False, 0))
    assert any(
        isinstance(answer, LeaseReply) for answer in masters.see(ModelDeclared("worker-1"), LeaseRequested("worker-1"))
    )
    assert masters.entries("rolled_back") == []


def test_parameters_that_the_journal_knows_of_are_kept_without_a_volume_too() -> None:
    masters = CoreHarness(durable=False)
    masters.see(DatasetDescribed(training=(("a", 640),)), alive(Role.PS, 0), alive(Role.WORKER, 0), PodsSynced())
    masters.see(
        PsRegistered("ps-0"), PsAttached("ps-0", False, 0), ModelDeclared("worker-0"), LeaseRequested("worker-0")
    )
    masters.restart()
    masters.see(alive(Role.PS, 0), alive(Role.WORKER, 0), PodsSynced(), PsRegistered("ps-0"))
    assert gone(masters, PsAttached("ps-0", True, 17)) == []


def test_nobody_is_replaced_before_every_pod_has_been_seen() -> None:
    masters = CoreHarness(durable=False)
    masters.see(alive(Role.PS, 0), PsRegistered("ps-0"))
    wishes = masters.see(PsAttached("ps-0", True, 17))
    assert [type(wish) for wish in wishes] == [AttachPs], "asked again"
    assert gone(masters, alive(Role.WORKER, 0), PodsSynced()) == []
    assert gone(masters, PsAttached("ps-0", True, 17)) == ["ps-0", "worker-0"]


def test_a_ps_that_listens_is_not_asked_again_however_often_it_registers() -> None:
    masters = CoreHarness()
    masters.train()
    assert [x for x in masters.state.handle(PsRegistered("ps-0"), 1000.0) if isinstance(x, AttachPs)] == []
    masters.restart()
    masters.see(alive(Role.PS, 0))
    assert [x for x in masters.state.handle(PsRegistered("ps-0"), 0.0) if isinstance(x, AttachPs)] != []
