"""Removes a job from a cluster: the objects of the Job, objects without an owner, and stuck pods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edl.api.cluster_port import Role
from edl.api.errors import EdlError
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.api_errors import ApiError, ConflictError, ForbiddenError, NotFoundError, RbacDeniedError
from edl.cluster.kubernetes.pod_status import disruption_condition
from edl.cluster.kubernetes.resource_kinds import (
    CONFIGMAPS,
    JOBS,
    LEASES,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    Manifest,
    ResourceKind,
    deletion_deadline,
    is_being_deleted,
    manifest_kind,
)
from edl.core.short_list import format_short_list
from edl.reporting.unit_formats import format_duration

DELETION_TIMEOUT_SECONDS = 300.0
DELETION_POLL_SECONDS = 0.25
LOST_NODE_GRACE_SECONDS, OVERDUE_GRACE_SECONDS = 5.0, 30.0
"""Time after its grace period that a pod may take to disappear: on a lost node, and elsewhere."""
_JOB_KINDS = (PODS, JOBS, CONFIGMAPS, SERVICES, SECRETS, LEASES)
_NODE_LOST_REASONS = ("DeletionByTaintManager", "DeletionByPodGC")


class DeletionTimeoutError(EdlError):
    """Objects of the job were left at the timeout."""


@dataclass(frozen=True, slots=True)
class JobObjects:
    """The objects of a job at one moment.

    Attributes:
        objects: all objects with the job's label, pods first.
        server_time: the server's clock, unix seconds.
        unlistable_kinds: kinds that the user may not list, such as ``secrets``.
    """

    objects: tuple[Manifest, ...]
    server_time: float
    unlistable_kinds: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.objects)

    def select_kind(self, kind: ResourceKind) -> list[Manifest]:
        return [each for each in self.objects if each["kind"] == kind.name]


@dataclass(frozen=True, slots=True)
class ObjectDeletion:
    """An object to delete. ``grace_seconds`` 0 removes a pod without waiting for its node."""

    kind: ResourceKind
    name: str
    uid: str
    grace_seconds: int | None = None


def list_job_objects(api: KubeClient, job: str) -> JobObjects:
    """List the objects of a job.

    Pods are listed first: once the master's pod is gone, no new objects are created.
    """
    objects: list[Manifest] = []
    unlistable: list[str] = []
    now = 0.0
    for kind in _JOB_KINDS:
        try:
            answer = api.request("GET", kind.path(api.namespace), query={"labelSelector": names.label_selector(job)})
        except RbacDeniedError:
            if kind in (PODS, JOBS):
                raise
            unlistable.append(kind.plural)  # garbage-collected with the Job, which owns it
            continue
        head = {"apiVersion": kind.api_version, "kind": kind.name}
        objects += [{**head, **item} for item in answer.body.get("items") or ()]
        now = answer.server_time or now
    return JobObjects(tuple(objects), now, tuple(unlistable))


def plan_deletions(job_objects: JobObjects, nodes_ready: Mapping[str, bool]) -> list[ObjectDeletion]:
    """The objects to delete explicitly: the Job, objects without an owner, and pods that should be
    gone.

    Kubernetes garbage-collects the rest with the Job. The master is deleted first; otherwise it
    would replace the workers that are deleted.

    Args:
        job_objects: the objects that the job still has.
        nodes_ready: the known nodes, by name; a node that is missing here counts as not ready.
    """
    deletions = []
    for thing in job_objects.objects:
        kind, meta = manifest_kind(thing), thing["metadata"]
        # The uid of each deletion protects an object that takes the name in the meantime.
        if not is_being_deleted(thing):
            if kind is JOBS or _is_master_pod(thing) or not meta.get("ownerReferences"):
                deletions.append(ObjectDeletion(kind, meta["name"], meta["uid"]))
        elif kind is PODS and is_deletion_stuck(
            thing, nodes_ready.get(thing["spec"].get("nodeName", "")), job_objects.server_time
        ):
            deletions.append(ObjectDeletion(kind, meta["name"], meta["uid"], grace_seconds=0))
    return deletions


def _is_master_pod(thing: Manifest) -> bool:
    return bool(thing["kind"] == PODS.name and thing["metadata"].get("labels", {}).get(names.ROLE_LABEL) == Role.MASTER)


def is_deletion_stuck(pod: Manifest, node_ready: bool | None, now: float) -> bool:
    """Whether a pod was deleted but stays, because its node does not confirm its end.

    Args:
        pod: a pod that is being deleted.
        node_ready: None if it is not known.
        now: the server's clock, unix seconds.
    """
    # The server wrote the deadline, so ``now`` is its clock, too: the user's may be wrong.
    late = now - deletion_deadline(pod)
    return late > (
        LOST_NODE_GRACE_SECONDS if node_ready is False or _evicted_from_lost_node(pod) else OVERDUE_GRACE_SECONDS
    )


def _evicted_from_lost_node(pod: Manifest) -> bool:
    """Whether the control plane evicted the pod because its node was lost."""
    return disruption_condition(pod).get("reason") in _NODE_LOST_REASONS


def token_secret_exists(api: KubeClient, job: str) -> bool:
    """Whether a job's token exists, for a user who may delete but not read it: a dry-run deletion."""
    try:
        api.delete(SECRETS, names.token_secret(job), dry_run=True)
    except (NotFoundError, ForbiddenError):
        return False
    return True


class JobDeletion:
    """Deletes a job in rounds until none of its objects is left."""

    def __init__(self, api: KubeClient, job: str) -> None:
        self._api, self._job = api, job
        self._requested_deletions: set[tuple[str, int | None]] = set()

    def delete_round(self) -> JobObjects:
        """Delete the objects that are not being deleted yet; returns the objects found before."""
        job_objects = list_job_objects(self._api, self._job)
        if SECRETS.plural in job_objects.unlistable_kinds and not self._requested_deletions:
            self._delete_unlistable_token()
        for deletion in plan_deletions(job_objects, self._nodes_ready(job_objects)):
            if (deletion.uid, deletion.grace_seconds) not in self._requested_deletions:
                self._delete_object(deletion)
                self._requested_deletions.add((deletion.uid, deletion.grace_seconds))
        return job_objects

    def run_until_gone(
        self,
        on_round: Callable[[JobObjects], Any],
        clock: Callable[[], float],
        sleep: Callable[[float], Any],
        timeout: float = DELETION_TIMEOUT_SECONDS,
    ) -> None:
        """Run rounds until no object is left; ``on_round`` is called with the objects of each
        round.

        Raises:
            DeletionTimeoutError: objects are left after ``timeout`` seconds.
            ApiError: the server refuses a deletion.
        """
        end = clock() + timeout
        while remaining := self.delete_round():
            on_round(remaining)
            if clock() >= end:
                names_left = format_object_list(remaining.objects)
                raise DeletionTimeoutError(
                    f"After {format_duration(timeout)} these objects still exist: {names_left}",
                    where=f"job {self._job}",
                    hint="The deletion continues in the cluster; run `edl delete` again to follow it.",
                )
            sleep(DELETION_POLL_SECONDS)

    def _delete_object(self, deletion: ObjectDeletion) -> None:
        try:
            self._api.delete(deletion.kind, deletion.name, uid=deletion.uid, grace=deletion.grace_seconds)
        except (NotFoundError, ConflictError):
            return  # it is gone, or another object has its name now

    def _delete_unlistable_token(self) -> None:
        """Delete the token's Secret by its name.

        A user who may not read Secrets cannot see whether the Job owns it.
        """
        try:
            self._api.delete(SECRETS, names.token_secret(self._job))
        except (NotFoundError, RbacDeniedError):
            return  # it is gone, or is garbage-collected with the Job

    def _nodes_ready(self, job_objects: JobObjects) -> dict[str, bool]:
        """Whether the nodes of terminating pods are ready, as far as the user may read nodes."""
        leaving = [pod for pod in job_objects.select_kind(PODS) if is_being_deleted(pod)]
        ready: dict[str, bool] = {}
        for name in {pod["spec"].get("nodeName", "") for pod in leaving} - {""}:
            try:
                node = self._api.get(NODES, name)
            except NotFoundError:
                ready[name] = False
            except RbacDeniedError:
                return {}
            except ApiError:
                continue
            else:
                conditions = node.get("status", {}).get("conditions") or ()
                ready[name] = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
        return ready


def count_by_kind(objects: Iterable[Manifest]) -> str:
    """The number of objects of each kind, as text."""
    kinds = Counter(thing["kind"] for thing in objects)
    return ", ".join(f"{count} {kind}" + ("s" if count > 1 else "") for kind, count in kinds.items())


def format_object_list(objects: Sequence[Manifest]) -> str:
    """Objects by kind and name."""
    return format_short_list([f"{thing['kind']} {thing['metadata']['name']}" for thing in objects], most=5)
