"""Jobs whose workers run a program instead of a Keras model: their records survive lost workers and masters."""

from __future__ import annotations

from typing import Any

import pytest
from e2e.jobs import EPOCHS, RECORDS, ClusterJob, delete_pod, digits
from e2e.ledger import finish_and_count
from e2e.namespaces import Namespace

from edl.api.cluster_port import Role
from edl.cluster.kubernetes.resource_kinds import Manifest


def program_spec(namespace: Namespace, name: str, program: str, **fields: Any) -> Manifest:
    spec = digits(name, image=namespace.images.zoo, seconds=60, workers=2)
    for section in ("ps", "checkpoint", "export"):
        del spec[section]
    spec["model"] = {"zoo": "model_zoo"}
    spec["command"] = ["python", f"programs/{program}.py"]
    spec["data"] = {"training": spec["data"]["training"]}
    return spec | fields


@pytest.mark.in_turn(0)
def test_a_program_loses_a_worker_and_its_master(namespace: Namespace) -> None:
    spec = program_spec(namespace, "sizes", "sum_sizes")
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


@pytest.mark.in_turn(1)
def test_programs_that_take_steps_together_lose_workers_and_their_master(namespace: Namespace) -> None:
    fields = {"strategy": {"name": "AllReduce"}, "checkpoint": {"every_steps": 40}}
    job = ClusterJob.write(namespace, program_spec(namespace, "together", "count_together", **fields))
    job.submit()
    job.wait_training(workers=2)
    job.wait_more_steps()

    delete_pod(namespace, job.pod_name(Role.WORKER, 0))
    job.wait_for("the successor trains with the other one", lambda: job.training_workers() == [1, 2] or None)
    before = job.status()["incarnation"]
    delete_pod(namespace, job.master()["metadata"]["name"])
    job.wait_incarnation(before)
    job.wait_more_steps()

    summary, run = finish_and_count(job)
    assert summary["records_rolled_back"] == 0
    known = f"knows of {EPOCHS * RECORDS} records"
    assert [known in run.log("worker", index) for index in (1, 2)] == [True, True]
