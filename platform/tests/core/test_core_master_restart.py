"""A master that comes back is told of pods that have ended before it is told of those that live.

The cluster lists ended pods so that the new master learns how they ended. Nothing may be decided from half a list: a
lease must not be given back while the PS that know how far it got have not been named yet.
"""

from __future__ import annotations

import pytest
from support.core_harness import CoreHarness, alive, killed
from support.text_keys import missing_keys

from edl.api.cluster_port import Role
from edl.api.journal_entries import JobResumed
from edl.api.run_events import LeaseRevoked, RoleEnded, RollbackDone
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
from edl.core.journal_application import apply_entry


def test_a_lease_of_a_worker_that_ended_meanwhile_waits_for_the_parameter_servers() -> None:
    harness = CoreHarness()
    lease = harness.train()
    harness.restart()
    harness.see(killed(Role.WORKER, 0), alive(Role.PS, 0), alive(Role.WORKER, 1), PodsSynced())
    assert harness.entries("returned") == [], "the PS has not been asked yet"
    wishes = harness.see(PsRegistered("ps-0"), PsAttached("ps-0", True, 3))
    assert [wish.leases for wish in wishes if isinstance(wish, RevokeLeases)] == [(lease,)]
    harness.see(LeasesRevoked("ps-0", {lease: 3}))
    assert [entry["through"] for entry in harness.entries("returned")] == [3]


def test_a_worker_that_leaves_while_the_master_comes_back_is_settled_by_the_parameter_servers() -> None:
    harness = CoreHarness()
    lease = harness.train()
    harness.restart()
    harness.see(WorkerLeft("worker-0", "told to go"))
    assert harness.entries("returned") == [], "the PS has not been named yet"
    harness.see(alive(Role.PS, 0), alive(Role.WORKER, 1), PodsSynced(), PsRegistered("ps-0"))
    harness.see(PsAttached("ps-0", True, 3), LeasesRevoked("ps-0", {lease: 3}))
    assert [entry["through"] for entry in harness.entries("returned")] == [3]


@pytest.mark.parametrize("restarts", [1, 2])
def test_a_worker_is_lost_once(restarts: int) -> None:
    harness = CoreHarness()
    harness.train()
    harness.see(killed(Role.WORKER, 0))
    for _ in range(restarts):
        harness.restart()
        harness.see(killed(Role.WORKER, 0), alive(Role.PS, 0), alive(Role.WORKER, 1), PodsSynced())
    assert harness.state.counters.workers_lost == 1
    assert [(tell.role, tell.index) for tell in harness.emitted if isinstance(tell, RoleEnded)] == [("worker", 0)]


def test_workers_that_ended_with_their_run_are_not_lost_when_it_is_resumed() -> None:
    harness = CoreHarness()
    lease = harness.train()
    harness.see(StopRequested("Ctrl-C"), killed(Role.WORKER, 0), killed(Role.WORKER, 1), killed(Role.PS, 0))
    harness.journal.append({"kind": "resumed"})
    harness.restart()
    harness.see(PodsSynced())
    assert harness.state.counters.workers_lost == 0
    assert harness.state.find_lease(lease) is None, "its records are there to be leased again"
    harness.see(alive(Role.WORKER, 2), killed(Role.WORKER, 2))
    assert harness.state.counters.workers_lost == 1


def test_who_was_dismissed_survives_a_compaction() -> None:
    harness = CoreHarness()
    harness.train()
    apply_entry(harness.state, JobResumed())
    again = JobStateMachine(harness.settings)
    again.replay_journal(harness.state.to_snapshot(), [])
    assert again.pods.leaving_workers == {"worker-0", "worker-1"}


def test_who_was_gone_when_the_master_came_back_is_named() -> None:
    harness = CoreHarness()
    harness.train()
    harness.restart()
    harness.see(PodsSynced())
    (back,) = [tell for tell in harness.emitted if isinstance(tell, RollbackDone)]
    assert not missing_keys(back.reason, "ps-0", "restarted")
    revoked = [tell for tell in harness.emitted if isinstance(tell, LeaseRevoked)]
    assert [tell.worker for tell in revoked] == [0]
    assert harness.state.pods.index_of("never shown") is None


def test_a_parameter_server_that_was_replaced_is_not_lost_again() -> None:
    harness = CoreHarness()
    lease = harness.train()
    harness.see(killed(Role.PS, 0), alive(Role.PS, 0, "new"), PsRegistered("new"), PsAttached("new", False, 0))
    harness.see(PsAttached("new", True, 0))
    (granted,) = [x for x in harness.see(LeaseRequested("worker-0")) if isinstance(x, LeaseReply)]
    assert granted.lease > lease
    harness.see(ProgressReported("worker-0", (LeaseProgress(granted.lease, 5),)))
    harness.restart()
    harness.see(killed(Role.PS, 0), alive(Role.PS, 0, "new"), alive(Role.WORKER, 0), PodsSynced())
    assert harness.state.step == 5, "parameters and ledger are where they were"
    assert len(harness.entries("rolled_back")) == 1


def test_what_was_measured_of_steps_that_went_back_is_forgotten() -> None:
    harness = CoreHarness()
    lease = harness.train()
    harness.see(ProgressReported("worker-0", (LeaseProgress(lease, 5, 3.0, 2),)))
    harness.state.counters.metrics, harness.state.last_evaluation = {"accuracy": 0.9}, 5
    harness.see(killed(Role.PS, 0))
    counters = harness.state.counters
    assert (harness.state.step, counters.loss, counters.metrics) == (0, None, {})


def test_what_was_measured_before_the_checkpoint_stays() -> None:
    harness = CoreHarness()
    lease = harness.train()
    harness.state.counters.metrics = {"accuracy": 0.9}
    harness.see(ProgressReported("worker-0", (LeaseProgress(lease, 5, 3.0, 2),)))
    harness.see(killed(Role.PS, 0))
    assert harness.state.counters.metrics == {"accuracy": 0.9}


def test_one_of_two_parameter_servers_that_was_replaced_is_not_lost_again() -> None:
    harness = CoreHarness(ps=2)
    lease = harness.train()
    harness.see(ProgressReported("worker-0", (LeaseProgress(lease, 5),)))
    harness.see(killed(Role.PS, 1), alive(Role.PS, 1, "new"))
    harness.restart()
    harness.see(killed(Role.PS, 1), alive(Role.PS, 0), alive(Role.PS, 1, "new"), alive(Role.WORKER, 0), PodsSynced())
    assert harness.state.counters.updates_rolled_back == 5
    assert harness.state.step == 5


def deleted_pods(harness: CoreHarness, *events: CoreEvent) -> list[str]:
    """The pods that are told to go."""
    return [wish.uid for wish in harness.see(*events) if isinstance(wish, DeletePod)]


def test_parameters_that_the_journal_knows_nothing_of_are_not_trained_on() -> None:
    harness = CoreHarness(ps=2, durable=False)
    harness.begin_anew()
    ps = [alive(Role.PS, index) for index in range(2)]
    harness.see(DatasetDescribed(training=(("a", 640),)), *ps, alive(Role.WORKER, 0), PodsSynced())
    harness.see(PsRegistered("ps-0"), PsRegistered("ps-1"))
    assert deleted_pods(harness, PsAttached("ps-0", True, 0)) == [], (
        "it holds what it was declared with, and nothing else"
    )
    deleted = deleted_pods(harness, PsAttached("ps-1", True, 17))
    assert deleted == ["ps-1", "worker-0"], "who has declared the model will not do so again"
    assert not any(isinstance(answer, LeaseReply) for answer in harness.see(LeaseRequested("worker-0")))
    harness.see(killed(Role.PS, 1), killed(Role.WORKER, 0), alive(Role.WORKER, 1), alive(Role.PS, 1, "ps-1-b"))
    harness.see(PsRegistered("ps-1-b"), PsAttached("ps-1-b", False, 0))
    assert any(
        isinstance(answer, LeaseReply) for answer in harness.see(ModelDeclared("worker-1"), LeaseRequested("worker-1"))
    )
    assert harness.entries("rolled_back") == []


def test_parameters_that_the_journal_knows_of_are_kept_without_a_volume_too() -> None:
    harness = CoreHarness(durable=False)
    harness.see(DatasetDescribed(training=(("a", 640),)), alive(Role.PS, 0), alive(Role.WORKER, 0), PodsSynced())
    harness.see(
        PsRegistered("ps-0"), PsAttached("ps-0", False, 0), ModelDeclared("worker-0"), LeaseRequested("worker-0")
    )
    harness.restart()
    harness.see(alive(Role.PS, 0), alive(Role.WORKER, 0), PodsSynced(), PsRegistered("ps-0"))
    assert deleted_pods(harness, PsAttached("ps-0", True, 17)) == []


def test_nobody_is_replaced_before_every_pod_has_been_seen() -> None:
    harness = CoreHarness(durable=False)
    harness.see(alive(Role.PS, 0), PsRegistered("ps-0"))
    wishes = harness.see(PsAttached("ps-0", True, 17))
    assert [type(wish) for wish in wishes] == [AttachPs], "asked again"
    assert deleted_pods(harness, alive(Role.WORKER, 0), PodsSynced()) == []
    assert deleted_pods(harness, PsAttached("ps-0", True, 17)) == ["ps-0", "worker-0"]


def test_a_ps_that_listens_is_not_asked_again_however_often_it_registers() -> None:
    harness = CoreHarness()
    harness.train()
    assert [x for x in harness.state.handle(PsRegistered("ps-0"), 1000.0) if isinstance(x, AttachPs)] == []
    harness.restart()
    harness.see(alive(Role.PS, 0))
    assert [x for x in harness.state.handle(PsRegistered("ps-0"), 0.0) if isinstance(x, AttachPs)] != []
