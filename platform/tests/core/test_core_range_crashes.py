"""A range of an evaluation or a prediction that ends its workers: work elsewhere does not make good for it."""

from __future__ import annotations

from dataclasses import replace

from core.test_core_evaluation_callbacks import EvaluatedJob, trained
from support.core_harness import CoreHarness, alive, killed

from edl.api.cluster_port import Role
from edl.core.events import (
    DatasetDescribed,
    EndJob,
    LeaseProgress,
    LeaseReply,
    LeaseRequested,
    ModelDeclared,
    PodsSynced,
    ProgressReported,
    PsAttached,
    PsRegistered,
    TaskReported,
)
from edl.core.pod_lifecycle import MAX_CRASHES


def predicting() -> CoreHarness:
    """A prediction job whose worker-0 predicts one range after the other; records 0 to 63 are worker-1's."""
    harness = CoreHarness()
    harness.settings = replace(harness.settings, predict=True)
    harness.restart()
    harness.see(DatasetDescribed(prediction=(("a", 64_000),)), alive(Role.PS, 0), PodsSynced())
    harness.see(PsRegistered("ps-0"), PsAttached("ps-0", True, 0))
    harness.see(alive(Role.WORKER, 0), ModelDeclared("worker-0"))
    return harness


def leased(harness: CoreHarness, worker: str) -> LeaseReply:
    (granted,) = [x for x in harness.see(LeaseRequested(worker)) if isinstance(x, LeaseReply)]
    return granted


def test_a_range_that_ends_every_worker_ends_the_job_though_others_get_on() -> None:
    harness, ends = predicting(), []
    mine = leased(harness, "worker-0")
    harness.see(TaskReported("worker-0", mine.lease, LeaseProgress(mine.lease, 8), None))
    for index in range(1, 4 * MAX_CRASHES):
        uid = f"worker-{index}"
        harness.see(alive(Role.WORKER, index), ModelDeclared(uid))
        deadly = leased(harness, uid)
        assert (deadly.record_range.start, deadly.record_range.end) == (64, 128)
        for _ in range(10):  # 80 steps of somebody else, who makes good for five crashes
            mine = leased(harness, "worker-0")
            harness.see(ProgressReported("worker-0", (LeaseProgress(mine.lease, 4),)))
            harness.see(TaskReported("worker-0", mine.lease, LeaseProgress(mine.lease, 8), None))
        ends += [x for x in harness.see(killed(Role.WORKER, index)) if isinstance(x, EndJob)]
        if ends:
            break
    (end,) = ends
    assert index == MAX_CRASHES
    assert (end.phase, end.failure_kind) == ("Failed", "crash")
    assert "records 64 to 127 of a (prediction)" in end.reason


def test_ends_at_one_range_in_several_evaluations_are_not_added_up() -> None:
    job, index = EvaluatedJob(()), 0
    job.cut()
    for _ in range(3):
        trained(job)
        job.cut()
        for _ in range(MAX_CRASHES // 2):
            index += 1
            job.see(alive(Role.WORKER, index), ModelDeclared(f"worker-{index}"))
            assert leased(job, f"worker-{index}").kind == "evaluation"
            job.see(killed(Role.WORKER, index))
        job.evaluated(1.0)
    assert job.state.phase == "Training"
