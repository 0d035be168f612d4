"""Jobs whose workers run a program instead of a Keras model: their records survive lost workers and masters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from e2e.jobs import EPOCHS, RECORDS, ClusterJob, delete_pod, digits
from e2e.ledger import FetchedRun, finish_and_count
from e2e.namespaces import Namespace
from e2e.programs import EDL, run_program
from e2e.volume import MOUNT

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


@pytest.mark.in_turn(2)
def test_workers_count_a_table_as_one_process_does(namespace: Namespace) -> None:
    rows, trips = 50_000, namespace.folder / "trips"
    trips.mkdir()
    lines = [f"{n % 997},{n / 7:.3f},{'night' if n % 3 else 'day'}" for n in range(rows)]
    (trips / "trips.csv").write_text("\n".join(["zone,fare,shift", *lines]) + "\n")
    namespace.copy_to_claim(trips, "/trips")
    fields = {
        "command": ["python", "-m", "edl.sharding.table_statistics"],
        "data": {"training": f"{MOUNT}/trips/trips.csv"},
        "train": {"epochs": 1, "minibatch_size": 500, "minibatches_per_task": 2, "shuffle": {"window": 0}},
    }
    job = ClusterJob.write(namespace, program_spec(namespace, "trip-stats", "", **fields))
    job.submit()
    assert job.wait_end() == "Complete", job.page("failure.json")

    statistics = json.loads((FetchedRun.fetch_run(job).folder / "statistics" / "statistics.json").read_text())
    expected = json.loads(run_program(EDL, "data", "stats", trips / "trips.csv", "--json"))
    assert statistics["records"] == expected["records"] == rows
    assert [column["name"] for column in statistics["columns"]] == ["zone", "fare", "shift"]
    exact = ("name", "count", "missing", "min", "max", "distinct")
    for one, other in zip(statistics["columns"], expected["columns"], strict=True):
        assert [one.get(key) for key in exact] == [other.get(key) for key in exact]
        assert one.get("mean") == pytest.approx(other.get("mean"))
