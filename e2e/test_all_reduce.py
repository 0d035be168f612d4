"""Workers under AllReduce, which has no parameter servers, come and go: the others go on in their containers."""

from __future__ import annotations

from typing import Any

import pytest
from e2e.capacity import node_offers, restrict_new_pods, usable_node_names, worker_cpu
from e2e.conftest import MakeNamespace
from e2e.faults import lose_node
from e2e.jobs import ClusterJob, delete_pod, digits
from e2e.ledger import finish_and_count
from e2e.namespaces import Namespace
from e2e.observer import container
from e2e.test_ps_and_nodes import DEAD_SECONDS, check_deleted, node_of
from e2e.test_tutorial import start_service

from edl.api.cluster_port import Role
from edl.cluster.kubernetes.kubeconfig import make_client

WORKERS, SLOTS = 4, 6
"""Workers of a job; workers and service pods that fit together."""


def start_ring(namespace: Namespace, name: str, *, seconds: float, **fields: Any) -> ClusterJob:
    """Submit a job of four workers in a ring, and wait until all of them train."""
    spec = digits(name, image=namespace.images.zoo, seconds=seconds, workers=WORKERS, **fields)
    del spec["ps"]
    spec |= {"strategy": {"name": "AllReduce"}, "model": {"zoo": "model_zoo", "definition": "paced_feed.custom_model"}}
    job = ClusterJob.write(namespace, spec)
    job.submit()
    job.wait_training(workers=WORKERS)
    job.wait_more_steps()
    return job


def start_times(job: ClusterJob) -> dict[int, str]:
    """When each worker's container started, by index."""
    running = {index: container(pod).get("state", {}).get("running") for index, pod in job.workers().items()}
    return {index: state["startedAt"] for index, state in running.items() if state}


@pytest.mark.alone
@pytest.mark.timeout(400)
def test_workers_and_master_come_and_go(make_namespace: MakeNamespace) -> None:
    """One worker is deleted, then the master's pod; a service preempts two workers, and gives the room back."""
    namespace, other = make_namespace(), make_namespace("service", volume=False)
    cpu = worker_cpu(node_offers(namespace.api), SLOTS, small_pods=2)
    job = start_ring(namespace, "ring", seconds=110, cpu=cpu)
    assert job.ps_uids() == {}
    first = start_times(job)

    delete_pod(namespace, job.pod_name(Role.WORKER, 0))
    job.wait_for("workers 1 to 4 train", lambda: job.training_workers() == [1, 2, 3, 4] or None)
    job.wait_more_steps()

    before = job.status()["incarnation"]
    delete_pod(namespace, job.master()["metadata"]["name"])
    job.wait_incarnation(before)
    job.wait_more_steps()
    second = start_times(job)
    assert {index: second[index] for index in (1, 2, 3)} == {index: first[index] for index in (1, 2, 3)}

    start_service(other, cpu, SLOTS - WORKERS + 2)
    survivors = job.wait_training(workers=2, seconds=60)
    job.wait_more_steps()
    pending = job.in_phase("Pending")
    assert len(pending) == 2, "those that lost their place wait for another"
    assert "insufficient cpu" in job.why()
    other.kubectl("scale", "deployment/service", "--replicas=0")
    job.wait_for("the workers that waited train", lambda: set(pending) <= set(job.training_workers()) or None, 90)
    job.wait_more_steps()
    third = start_times(job)
    assert {index: third[index] for index in survivors} == {index: second[index] for index in survivors}

    summary, run = finish_and_count(job)
    assert (summary["records_rolled_back"], run.ledger.rollbacks) == (0, [])
    assert {event["workers"] for event in run.events_of("world_changed")} >= {2, WORKERS}
    check_deleted(job)


@pytest.mark.alone
@pytest.mark.timeout(400)
@pytest.mark.in_turn(1)
def test_all_workers_are_preempted_and_come_back(make_namespace: MakeNamespace) -> None:
    """The last one that goes writes the newest state, so that no record is trained again."""
    namespace, other = make_namespace(), make_namespace("service", volume=False)
    cpu = worker_cpu(node_offers(namespace.api), SLOTS, small_pods=2)
    job = start_ring(namespace, "ring-away", seconds=75, cpu=cpu, checkpoint={"every_steps": 100_000})

    start_service(other, cpu, SLOTS)
    job.wait_for("all workers wait for room", lambda: len(job.in_phase("Pending")) == WORKERS or None, 60)
    job.wait_for("the job is starved", lambda: job.status().get("starved") or None, 30)
    done = job.status()["records_done"]
    why = job.why()
    assert "insufficient cpu" in why
    other.kubectl("scale", "deployment/service", "--replicas=0")
    job.wait_for("a step after the pause", lambda: job.status()["records_done"] > done or None, 90)

    summary, run = finish_and_count(job)
    assert run.events_of("checkpoint_saved")
    assert summary["records_rolled_back"] == 0
    check_deleted(job)


@pytest.mark.alone
@pytest.mark.breaks
@pytest.mark.timeout(500)
@pytest.mark.in_turn(2)
def test_a_workers_node_is_lost(make_namespace: MakeNamespace) -> None:
    """The others go on without it before the cluster has noticed, and a worker elsewhere takes its place."""
    dead, *safe = usable_node_names(make_client())
    with restrict_new_pods(safe):
        job = start_ring(make_namespace(), "ring-node", seconds=300)
    with restrict_new_pods([dead]):
        delete_pod(job.namespace, job.pod_name(Role.WORKER, 0))
        job.wait_for("worker-4 trains", lambda: job.training_workers() == [1, 2, 3, 4] or None)
        assert node_of(job, Role.WORKER, 4) == dead
    job.wait_more_steps()
    before = start_times(job)
    with lose_node(job.namespace.site.faults, dead):
        job.wait_more_steps(20, DEAD_SECONDS)
        job.wait_for("a worker in its place", lambda: job.training_workers() == [1, 2, 3, 5] or None, DEAD_SECONDS)
        after = start_times(job)
        assert {index: after[index] for index in (1, 2, 3)} == {index: before[index] for index in (1, 2, 3)}
        summary, _ = finish_and_count(job, lost=1)
        assert summary["records_rolled_back"] == 0
        check_deleted(job)
