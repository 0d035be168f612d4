"""Planned ends cost nothing: a parameter server that is told to go, a job that is stopped or deleted."""

from __future__ import annotations

import time

import pytest
from e2e.jobs import ClusterJob, delete_pod, digits
from e2e.ledger import FetchedRun, finish_and_count
from e2e.machine_speed import allowed_seconds
from e2e.namespaces import Namespace

RARELY = {"every_steps": 100_000}
"""No checkpoint but the first and those of planned ends: whatever goes back is seen."""
DELETE_SECONDS = 15.0


def start_training(namespace: Namespace, name: str, *, ps: int = 1) -> ClusterJob:
    """A job of two workers, amid its training."""
    return amid_training(submit_job(namespace, name, ps=ps))


def submit_job(namespace: Namespace, name: str, *, ps: int = 1) -> ClusterJob:
    """A job of two workers, whose master has started."""
    job = ClusterJob.write(
        namespace, digits(name, image=namespace.images.zoo, seconds=200, workers=2, ps=ps, checkpoint=RARELY)
    )
    job.submit()
    return job


def amid_training(job: ClusterJob) -> ClusterJob:
    """The job, when both of its workers train."""
    job.wait_training(workers=2)
    job.wait_step(40)
    return job


@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.in_turn(2)
def test_a_ps_that_is_deleted_hands_over(namespace: Namespace, ps: int) -> None:
    """``kubectl delete pod``, with the 30 s of grace that a pod has: no record and no update goes back."""
    job = start_training(namespace, f"handover-{ps}", ps=ps)
    name, uid = max(job.ps_uids().items())
    workers = job.worker_uids()
    delete_pod(namespace, name)
    job.wait_for("its successor under the same name", lambda: job.ps_uids().get(name, uid) != uid or None, 60)
    job.wait_more_steps()
    assert job.worker_uids() == workers
    summary, run = finish_and_count(job)
    assert (summary["records_rolled_back"], summary["updates_rolled_back"], summary["records_repeated"]) == (0, 0, 0)
    assert (run.ledger.rollbacks, run.ledger.part_rollbacks) == ([], [])
    job.run_edl("delete", "--yes")


@pytest.mark.in_turn(0)
def test_a_stopped_job_has_done_nothing_in_vain(namespace: Namespace) -> None:
    """``edl stop --wait`` takes a checkpoint: what is resumed goes on behind the last step that was done."""
    job = start_training(namespace, "stopped-in-time")
    run_id = job.status()["run"]
    job.run_edl("stop", "--wait", "--timeout", "60s")
    done = job.status()["step"]
    stopped = FetchedRun.fetch_run(job, run_id)
    assert stopped.events_of("checkpoint_saved")[-1]["step"] >= done > 0
    job.run_edl("delete", "--yes")
    job.run_edl("submit", "--yes", "--detach", "--resume", run_id)
    job.wait_training(workers=2)
    job.finish_quickly()
    assert job.wait_end() == "Complete"
    summary = job.wait_for("its summary", lambda: job.page("summary.json"), 10)
    assert (summary["records_lost"], summary["records_rolled_back"], summary["updates_rolled_back"]) == (0, 0, 0)
    job.run_edl("delete", "--yes")


@pytest.mark.in_turn(1)
def test_a_job_that_trains_is_deleted_soon(namespace: Namespace) -> None:
    """Nothing is handed over or saved for a job that goes, also while a second master is on its way."""
    job, headless = (submit_job(namespace, name, ps=ps) for name, ps in (("deleted", 2), ("headless", 1)))
    _deleted_soon(amid_training(job))
    first = amid_training(headless).master()["metadata"]["name"]
    delete_pod(namespace, first, "--grace-period=0", "--force")
    headless.wait_for("a second master's pod", lambda: _has_another_master(headless, first))
    _deleted_soon(headless)


def _has_another_master(job: ClusterJob, master: str) -> bool | None:
    return any(pod["metadata"]["name"] != master for pod in job.masters()) or None


def _deleted_soon(job: ClusterJob) -> None:
    began = time.monotonic()
    job.run_edl("delete", "--yes")
    assert time.monotonic() - began < allowed_seconds(DELETE_SECONDS)
    assert job.leftovers() == []
