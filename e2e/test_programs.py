"""A job whose workers run a program instead of a Keras model: its records survive lost workers and masters."""

from __future__ import annotations

from e2e.jobs import ClusterJob, delete_pod, digits
from e2e.ledger import finish_and_count
from e2e.namespaces import Namespace

from edl.api.cluster_port import Role


def test_a_program_loses_a_worker_and_its_master(namespace: Namespace) -> None:
    spec = digits("sizes", image=namespace.images.zoo, seconds=60, workers=2)
    del spec["ps"], spec["checkpoint"], spec["export"]
    spec["model"] = {"zoo": "model_zoo"}
    spec["command"] = ["python", "programs/sum_sizes.py"]
    spec["data"] = {"training": spec["data"]["training"]}
    job = ClusterJob.write(namespace, spec)
    job.submit()
    job.wait_training(workers=2)
    job.wait_more_steps()
    assert job.ps_uids() == {}

    delete_pod(namespace, job.pod_name(Role.WORKER, 0))
    job.wait_for("a new worker", lambda: 2 in job.workers() or None)
    before = job.status()["incarnation"]
    delete_pod(namespace, job.master()["metadata"]["name"])
    job.wait_incarnation(before)
    job.wait_more_steps()

    summary, run = finish_and_count(job, lost=1)
    assert summary["updates_rolled_back"] == 0
    assert "has done" in run.log("worker", 1)
