"""A lost worker's records are leased again at once when another worker waits for work."""

from __future__ import annotations

from e2e import figures
from e2e.jobs import ClusterJob, delete_pod, digits
from e2e.ledger import finish_and_count
from e2e.namespaces import Namespace

from edl.api.cluster_port import Role

TASKS = 2


def test_a_waiting_worker_gets_the_records(namespace: Namespace) -> None:
    """Two tasks for three workers: one waits until another is deleted."""
    spec = digits("waiting", image=namespace.images.zoo, seconds=60, workers=3)
    spec["train"] = {"epochs": 1, "minibatch_size": 64, "minibatches_per_task": 64 // TASKS}
    spec["pod"]["env"]["E2E_STEP_SECONDS"] = "1"
    job = ClusterJob.write(namespace, spec)
    job.submit()
    job.wait_for("three workers, of which two train", lambda: _one_worker_waits(job))
    lost = job.training_workers()[0]
    delete_pod(namespace, job.pod_name(Role.WORKER, lost))
    job.wait_for("the lost worker is gone", lambda: lost not in job.workers() or None)
    _, run = finish_and_count(job, lost=1, epochs=1)
    lost_at = run.first_event("role_leaving", role="worker", index=lost)["time"]
    returned = run.first_event("records_returned", worker=lost)
    same = {name: returned[name] for name in ("source", "start", "end")}
    figures.record_duration("records_returned", returned["time"] - lost_at)
    figures.record_duration(
        "records_leased", run.first_event("records_leased", after=returned["time"], **same)["time"] - lost_at
    )


def _one_worker_waits(job: ClusterJob) -> bool | None:
    return (
        len(job.training_workers()) == 2 and job.in_phase("Running") == [0, 1, 2] and _has_waiting_worker(job)
    ) or None


def _has_waiting_worker(job: ClusterJob) -> bool:
    return any(worker["state"] == "waiting" for worker in job.status()["workers"])
