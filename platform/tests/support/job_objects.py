"""A job in a `InMemoryCluster` as the command line finds it: its Job, its pods, and what its master has published."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from support.in_memory_cluster import NOW, InMemoryCluster, when

from edl.api.cluster_port import Role
from edl.api.run_events import RoleEnded, RoleStarted
from edl.api.status import RoleStatus, Status, TimelinePoint
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.jobfile.published_status import PublishedStatus
from edl.ops.job_view import JobView, find_job

SPEC: dict[str, Any] = {
    "image": "registry.example/mnist:1",
    "workers": {"min": 1, "max": 4},
    "volumes": [{"claim": "files", "mount": "/data"}],
    "storage": {"claim": None, "path": None},
    "security": {"run_as": {"user": 1000, "group": 1000}},
}
STATUS = Status(
    job="mnist", run="0a1b", run_dir="/data/edl/team/mnist/0a1b", phase="Training", updated=NOW - 1, incarnation=1,
    epoch=2, epochs=5, step=1234, records_total=60_000, records_done=25_800, loss=0.3119, metrics={"accuracy": 0.9134},
    samples_per_second=8123.4, seconds_left=4.2, workers_wanted=4, workers_min=1,
    ps=(RoleStatus(0, None, "serving", node="n1"),),
    workers=(
        RoleStatus(1, None, "training", node="n1"),
        RoleStatus(2, None, "starting", node="n2"),
        RoleStatus(4, None, "pending", reason="0/2 nodes are available: 2 Insufficient cpu."),
    ),
)  # fmt: skip
TIMELINE = (
    TimelinePoint(NOW - 100, 0, 4),
    TimelinePoint(NOW - 80, 4),
    TimelinePoint(NOW - 40, 2, 2),
    TimelinePoint(NOW - 20, 4),
)
EVENTS = (
    RoleStarted("worker", 0, None, time=NOW - 90),
    RoleEnded("worker", 0, None, "preempted", 143, time=NOW - 40),
)
PUBLISHED = PublishedStatus(STATUS, EVENTS, TIMELINE)


def conditions(**types: str) -> Manifest:
    """A Job's status with these conditions, each with its message."""
    return {
        "conditions": [
            {"type": kind, "status": "True", "message": message, "lastTransitionTime": when(NOW - 5)}
            for kind, message in types.items()
        ]
    }


def put_job(
    cluster: InMemoryCluster,
    name: str = "mnist",
    published: PublishedStatus | dict[str, str] = PUBLISHED,
    *,
    status: Manifest | None = None,
    spec: Manifest | None = None,
    annotations: dict[str, str] | None = None,
    namespace: str = "team",
) -> None:
    """Place a job that was submitted 200 s ago."""

    def thing(kind: str, called: str, version: str, role: Role | None = None, **content: Any) -> None:
        meta = {"name": called, "namespace": namespace, "labels": names.object_labels(name, role)}
        meta |= {"creationTimestamp": when(NOW - 200), "resourceVersion": "7"}
        if annotations and kind == "Job":
            meta["annotations"] = annotations
        cluster.put({"apiVersion": version, "kind": kind, "metadata": meta, **content})

    pages = published if isinstance(published, dict) else published.to_configmap_data()
    status = {"active": 1, "ready": 1} if status is None else status
    thing("Job", names.master_name(name), "batch/v1", Role.MASTER, spec=spec or {}, status=status)
    thing("ConfigMap", names.status_configmap(name), "v1", data=pages)
    thing("ConfigMap", names.spec_configmap(name), "v1", data={names.SPEC_KEY: json.dumps({"name": name, **SPEC})})


def put_pod(
    cluster: InMemoryCluster,
    role: Role,
    index: int = 0,
    status: Manifest | None = None,
    *,
    cpu: str = "1",
    node: str = "",
) -> Manifest:
    """Place a pod of the job ``mnist``; one that runs by default."""
    master = role is Role.MASTER
    name = f"{names.master_name('mnist')}-abcde" if master else names.pod_name("mnist", role, index)
    meta = {"name": name, "labels": names.object_labels("mnist", role, None if master else index)}
    requests = {"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}
    spec: Manifest = {"containers": [{"name": names.ROLE_CONTAINER, **requests}]}
    status = {"phase": "Running", **ran()} if status is None else status
    if node or status["phase"] == "Running":
        spec["nodeName"] = node or "n1"
    return cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status})


def ran() -> Manifest:
    return {"containerStatuses": [{"name": names.ROLE_CONTAINER, "state": {"running": {}}}]}


def unscheduled(message: str) -> Manifest:
    """Status of a pod for which the scheduler finds no place."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


def container(image: str = "img:1", **state: Any) -> Manifest:
    """Status of a pod whose container is in this state."""
    return {"phase": "Pending", "containerStatuses": [{"name": names.ROLE_CONTAINER, "image": image, "state": state}]}


def put_event(cluster: InMemoryCluster, about: str, reason: str, message: str, **more: Any) -> None:
    """Place one of Kubernetes' events."""
    meta = {"name": f"e{len(cluster.objects)}", "creationTimestamp": when(NOW - 30)}
    involved = {"kind": "Pod", "name": about, "uid": ""}
    cluster.put(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": meta,
            "involvedObject": involved,
            "reason": reason,
            "message": message,
            **more,
        }
    )


def job_view(published: PublishedStatus = PUBLISHED, **more: Any) -> JobView:
    """The job as `find` gives it."""
    cluster = InMemoryCluster()
    put_job(cluster, published=published, **more)
    return find_job(cluster, "mnist")


def with_status(**changes: Any) -> PublishedStatus:
    """What the master told, with another status."""
    return replace(PUBLISHED, status=replace(STATUS, **changes))
