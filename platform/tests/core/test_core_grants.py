from __future__ import annotations

import json

import pytest

from edl.api.cluster_port import PodPhase, PodStatus, Role
from edl.core.events import (
    CheckpointSaveFinished,
    CutPrepared,
    DatasetDescribed,
    LeaseReply,
    LeaseRequested,
    ModelDeclared,
    PodChanged,
    PodsSynced,
    PsAttached,
    SnapshotTaken,
    UpdatesHeld,
    WaitForWork,
)
from edl.core.job import JobStateMachine
from edl.core.state import JobSettings


def job(workers: int = 2) -> JobStateMachine:
    """One PS, worker-0 has built its model, worker-1 has just started; the first checkpoint is on disk."""
    state = JobStateMachine(JobSettings(minibatch=1, task_records=2, workers=workers))
    for event in (
        DatasetDescribed(training=(("a", 100),)),
        PodsSynced(),
        *(PodChanged(PodStatus(uid, role, int(uid[-1]), PodPhase.RUNNING)) for uid, role in PODS),
        PsAttached("ps-0", initialized=False, version=0),
        ModelDeclared("worker-0"),
        CutPrepared("ps-0", 1),
        UpdatesHeld("ps-0", 1, {}),
        SnapshotTaken("ps-0", 1, 0, 0.0),
        CheckpointSaveFinished(1),
    ):
        state.handle(event, 0.0)
    return state


PODS = (("ps-0", Role.PS), ("worker-0", Role.WORKER), ("worker-1", Role.WORKER))


def answer(state: JobStateMachine, worker: str) -> type:
    return next(type(c) for c in state.handle(LeaseRequested(worker), 1.0) if isinstance(c, LeaseReply | WaitForWork))


def test_a_worker_that_still_builds_its_model_gets_one_range_and_those_that_train_get_more() -> None:
    state = job()
    assert [answer(state, "worker-1") for _ in range(2)] == [LeaseReply, WaitForWork]
    assert [answer(state, "worker-0") for _ in range(2)] == [LeaseReply, LeaseReply]
    state.handle(ModelDeclared("worker-1"), 1.0)
    assert answer(state, "worker-1") is LeaseReply


@pytest.mark.parametrize("seen", [[], [PodPhase.PENDING]])
def test_a_worker_that_has_built_its_model_before_the_cluster_shows_that_it_runs_has_built_it(
    seen: list[PodPhase],
) -> None:
    """A kubelet may be seconds late with a pod's status."""
    state = job(workers=3)
    for phase in seen:
        state.handle(PodChanged(PodStatus("worker-2", Role.WORKER, 2, phase)), 1.0)
    state.handle(ModelDeclared("worker-2"), 2.0)
    state.handle(PodChanged(PodStatus("worker-2", Role.WORKER, 2, PodPhase.RUNNING)), 3.0)
    assert [answer(state, "worker-2") for _ in range(2)] == [LeaseReply, LeaseReply]


def test_when_nobody_has_built_a_model_yet_everybody_reads_ahead() -> None:
    state = job()
    state.handle(PodChanged(PodStatus("worker-0", Role.WORKER, 0, PodPhase.FAILED, exit_code=137)), 1.0)
    assert [answer(state, "worker-1") for _ in range(2)] == [LeaseReply, LeaseReply]


def test_a_lease_whose_grant_got_lost_is_granted_again_to_a_worker_that_does_not_know_of_it() -> None:
    """A master that dies between the journal and the answer leaves a lease that nobody works on."""
    state = job()
    first, second = (granted(state, frozenset()) for _ in range(2))
    assert first == second
    third = granted(state, frozenset({first}))
    assert third > first
    assert granted(state, frozenset({first, third})) > third


def granted(state: JobStateMachine, held: frozenset[int]) -> int:
    return next(c.lease for c in state.handle(LeaseRequested("worker-0", held), 1.0) if isinstance(c, LeaseReply))


def test_a_master_that_comes_back_takes_the_workers_it_finds_for_built() -> None:
    """They need not say so again: one whose calls never failed does not know that the master was away."""
    before = job()
    state = JobStateMachine(before.settings)
    state.replay_journal(json.loads(json.dumps(before.to_snapshot())), [])
    for uid, role in PODS:
        state.handle(PodChanged(PodStatus(uid, role, int(uid[-1]), PodPhase.RUNNING)), 0.0)
    state.handle(PodsSynced(), 0.0)
    state.handle(PsAttached("ps-0", initialized=True, version=0), 0.0)
    assert [answer(state, "worker-0") for _ in range(2)] == [LeaseReply, LeaseReply]
