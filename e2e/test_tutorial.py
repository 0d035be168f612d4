"""The classic tutorial, line by line: workers are taken away by a service with a higher priority, and come back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from e2e import figures
from e2e.baseline import UndisturbedBaseline
from e2e.capacity import node_offers, worker_cpu
from e2e.conftest import MakeNamespace
from e2e.jobs import END_SECONDS, ClusterJob, delete_pod, digits
from e2e.ledger import FetchedRun, finish_and_count
from e2e.namespaces import Namespace
from e2e.observer import ADDED, DELETED, ObjectChange, condition, phase
from e2e.pods import template
from e2e.programs import apply
from e2e.timestamps import containers, import_seconds, steps

from edl.api.cluster_port import Role
from edl.cluster.kubernetes import names

SLOTS = 6
"""Workers and service pods that fit together."""
REPLICAS = 5


@pytest.mark.alone
@pytest.mark.timeout(600)
def test_tutorial(make_namespace: MakeNamespace, undisturbed: Callable[[int], UndisturbedBaseline]) -> None:
    """2 PS and 4 workers; a worker is deleted; a service preempts; the job goes on, and takes the room back."""
    namespace, other = make_namespace(), make_namespace("service", volume=False)
    cpu = worker_cpu(node_offers(namespace.api), SLOTS, small_pods=4)
    job = ClusterJob.write(
        namespace, digits("tutorial", image=namespace.images.zoo, seconds=75, workers=4, ps=2, cpu=cpu)
    )

    job.submit()
    job.wait_training(workers=4)
    deleted = _delete_worker_0(job)

    with_five = start_service(other, cpu, REPLICAS)
    squeezed = job.wait_training(workers=SLOTS - REPLICAS, seconds=60)
    job.wait_more_steps()
    pending = job.in_phase("Pending")
    assert len(pending) == 4 - len(squeezed), "those that lost their place wait for another"
    assert "insufficient cpu" in job.why()

    other.kubectl("scale", "deployment/service", "--replicas=1")
    job.wait_for("the workers that waited train", lambda: set(pending) <= set(job.training_workers()) or None, 90)

    summary, run = finish_and_count(job, lost=1 + len(pending), seconds=END_SECONDS)
    undisturbed(4).check_summary(summary)
    assert summary["updates_rolled_back"] == 0
    _measure_deletion(job, deleted)
    _measure_preemption(job, other, with_five)
    _measure_growth(job, other, run)
    _measure_end(job, run)
    job.run_edl("delete", "--yes")
    assert job.leftovers() == []


def _delete_worker_0(job: ClusterJob) -> ObjectChange:
    """`kubectl delete pod …-worker-0` gives worker-4 at once."""
    name = job.pod_name(Role.WORKER, 0)
    delete_pod(job.namespace, name)
    leaving = job.wait_for(
        "worker-0 is told to go", lambda: job.first_change(lambda c: c.name == name and c.being_deleted), 10
    )
    job.wait_for("worker-4 is asked for", lambda: 4 in job.workers() or None, 10)
    job.wait_for("workers 1 to 4 train", lambda: job.training_workers() == [1, 2, 3, 4] or None)
    return leaving


def start_service(namespace: Namespace, cpu: float, replicas: int) -> set[str]:
    """A Deployment that needs room at once; names of its pods when all of them run."""
    labels = {"app": "service"}
    pods = template(
        namespace.images.submitter, "sleep", "infinity", labels=labels, cpu=f"{cpu:.3f}", priorityClassName="high"
    )
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pods}
    apply(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "service"}, "spec": spec},
        "-n",
        namespace.name,
    )

    def running_pods() -> set[str] | None:
        up = {pod["metadata"]["name"] for pod in namespace.observer.pods() if phase(pod) == "Running"}
        return up if len(up) == replicas else None

    return namespace.observer.wait_for("the service has its room", running_pods, 60)


def _measure_deletion(job: ClusterJob, deleted: ObjectChange) -> None:
    replacement = job.first_change(lambda c: c.type == ADDED and c.name == job.pod_name(Role.WORKER, 4))
    assert replacement is not None
    figures.record_duration("replacement_asked", replacement.happened_at - deleted.happened_at)


def _measure_preemption(job: ClusterJob, other: Namespace, service: set[str]) -> None:
    """From the moment in which workers are told to go to the last service pod's place on a node."""
    preempted_at: dict[str, float] = {}
    for change in job.namespace.observer.changes():
        if _is_preempted(change):
            preempted_at.setdefault(change.name, change.happened_at)
    placed = [
        min(c.happened_at for c in other.observer.changes() if c.name == name and condition(c.object, "PodScheduled"))
        for name in service
    ]
    figures.record_duration(
        "preemption_wait", max(placed) - min(preempted_at.values()), pods=len(service), workers=len(preempted_at)
    )


def _is_preempted(change: ObjectChange) -> bool:
    disruption = condition(change.object, "DisruptionTarget")
    return change.being_deleted and disruption is not None and disruption["reason"] == "PreemptionByScheduler"


def _measure_growth(job: ClusterJob, other: Namespace, run: FetchedRun) -> None:
    """The workers that got the room back: from PodScheduled to the first step, less what nobody can save."""
    changes = other.observer.changes()
    deleted_at = min(change.happened_at for change in changes if change.being_deleted)
    freed = min(change.happened_at for change in changes if _has_room_freed(change))
    grown = 0
    for index, done in steps(run.folder).items():
        placed = job.first_change(
            lambda c, i=index: _is_worker(c, job, i) and condition(c.object, "PodScheduled") is not None
        )
        if placed is None or placed.happened_at < deleted_at or not done:
            continue
        grown += 1
        _, started = containers(run.folder, f"worker-{index}")[-1]
        fixed = started - placed.happened_at + import_seconds(run.folder, index)
        figures.record_duration("room_to_scheduled", placed.happened_at - freed)
        figures.record_duration(
            "room_to_step", done[0] - placed.happened_at - fixed, container_start_and_import=round(fixed, 2)
        )
    assert grown, "no worker got room from the service"


def _has_room_freed(change: ObjectChange) -> bool:
    """Whether a pod's room is free: when its container has ended, even before the object is gone."""
    return change.type == DELETED or change.object["status"].get("phase") in ("Succeeded", "Failed")


def _is_worker(change: ObjectChange, job: ClusterJob, index: int) -> bool:
    return change.name == job.pod_name(Role.WORKER, index)


def _measure_end(job: ClusterJob, run: FetchedRun) -> None:
    """From the end of the job's last work to the end of its last worker or PS."""
    job.wait_for("its pods are gone", lambda: not (job.workers() or job.ps_uids()) or None, 15)
    roles = (Role.WORKER, Role.PS)
    gone = max(
        c.happened_at
        for c in job.namespace.observer.changes()
        if c.type == DELETED and c.labels.get(names.ROLE_LABEL) in roles
    )
    figures.record_duration("pods_gone", gone - run.events_of("evaluation_ended")[-1]["time"])
