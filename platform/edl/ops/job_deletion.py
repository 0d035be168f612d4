"""Removes a job from a cluster whole: what the Job owns, what nobody owns yet, and pods that a dead node holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from edl.api.cluster_port import Role
from edl.api.errors import EdlError
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.api_errors import ApiError, ConflictError, ForbiddenError, NotFoundError, RbacDeniedError
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
    manifest_kind,
)

DELETION_TIMEOUT_SECONDS = 300.0
DELETION_POLL_SECONDS = 0.25
LOST_NODE_GRACE_SECONDS, OVERDUE_GRACE_SECONDS = 5.0, 30.0
"""How long past its grace period a pod may stay: on a lost node, and anywhere else."""
_JOB_KINDS = (PODS, JOBS, CONFIGMAPS, SERVICES, SECRETS, LEASES)
_NODE_LOST_REASONS = ("DeletionByTaintManager", "DeletionByPodGC")


class DeletionTimeoutError(EdlError):
    """Not everything went in time."""


@dataclass(frozen=True, slots=True)
class JobObjects:
    """What of a job is there at one moment.

    Attributes:
        objects: all with the job's label, pods first.
        server_time: the server's clock, unix seconds.
        unlistable_kinds: kinds that this user may not list, such as ``secrets``.
    """

    objects: tuple[Manifest, ...]
    server_time: float
    unlistable_kinds: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.objects)

    def select_kind(self, kind: ResourceKind) -> list[Manifest]:
        """The objects of one kind."""
        return [found for found in self.objects if found["kind"] == kind.name]


@dataclass(frozen=True, slots=True)
class ObjectDeletion:
    """An object to delete; ``grace_seconds`` 0 takes a pod from its node unasked."""

    kind: ResourceKind
    name: str
    uid: str
    grace_seconds: int | None = None


def list_job_objects(api: KubeClient, job: str) -> JobObjects:
    """What of a job is there. Pods are listed first: once the master's is gone nobody makes anything new."""
    objects: list[Manifest] = []
    unlistable: list[str] = []
    now = 0.0
    for kind in _JOB_KINDS:
        try:
            answer = api.request("GET", kind.path(api.namespace), query={"labelSelector": names.label_selector(job)})
        except RbacDeniedError:
            if kind in (PODS, JOBS):
                raise
            unlistable.append(kind.plural)  # the Job owns it, so it goes with the Job
            continue
        head = {"apiVersion": kind.api_version, "kind": kind.name}
        objects += [{**head, **item} for item in answer.body.get("items") or ()]
        now = answer.server_time or now
    return JobObjects(tuple(objects), now, tuple(unlistable))


def plan_deletions(job_objects: JobObjects, nodes_ready: Mapping[str, bool]) -> list[ObjectDeletion]:
    """The objects to delete explicitly: the Job, objects without an owner, and pods that should be gone.

    Kubernetes garbage-collects the rest with the Job. The master is deleted first; otherwise it would
    replace the workers that are deleted.

    Args:
        job_objects: the objects that the job still has.
        nodes_ready: the known nodes, by name; a node that is missing here counts as not ready.
    """
    found = []
    for thing in job_objects.objects:
        kind, meta = manifest_kind(thing), thing["metadata"]
        if "deletionTimestamp" not in meta:
            if kind is JOBS or _is_master_pod(thing) or not meta.get("ownerReferences"):
                found.append(ObjectDeletion(kind, meta["name"], meta["uid"]))
        elif kind is PODS and is_deletion_stuck(
            thing, nodes_ready.get(thing["spec"].get("nodeName", "")), job_objects.server_time
        ):
            found.append(ObjectDeletion(kind, meta["name"], meta["uid"], grace_seconds=0))
    return found


def _is_master_pod(thing: Manifest) -> bool:
    return bool(thing["kind"] == PODS.name and thing["metadata"].get("labels", {}).get(names.ROLE_LABEL) == Role.MASTER)


def is_deletion_stuck(pod: Manifest, node_ready: bool | None, now: float) -> bool:
    """Whether a pod that was told to go is still there because its node cannot let it go.

    Args:
        pod: with a deletionTimestamp, which is when its grace period is over.
        node_ready: None when nobody may say.
        now: the server's clock, unix seconds.
    """
    late = now - datetime.fromisoformat(pod["metadata"]["deletionTimestamp"]).timestamp()
    return late > (
        LOST_NODE_GRACE_SECONDS if node_ready is False or _evicted_from_lost_node(pod) else OVERDUE_GRACE_SECONDS
    )


def _evicted_from_lost_node(pod: Manifest) -> bool:
    """Whether the control plane took the pod from a node that it had given up."""
    return any(
        condition["type"] == "DisruptionTarget" and condition.get("reason") in _NODE_LOST_REASONS
        for condition in pod.get("status", {}).get("conditions") or ()
    )


def token_secret_exists(api: KubeClient, job: str) -> bool:
    """Whether the token of a job is there, for somebody who may delete it but not look: a deletion that is not done."""
    try:
        api.delete(SECRETS, names.token_secret(job), dry_run=True)
    except (NotFoundError, ForbiddenError):
        return False
    return True


class JobDeletion:
    """Deletes a job round by round until nothing of it is left."""

    def __init__(self, api: KubeClient, job: str) -> None:
        self._api, self._job = api, job
        self._requested: set[tuple[str, int | None]] = set()

    def delete_round(self) -> JobObjects:
        """Ask for the deletion of what nobody has asked for yet; returns what there was before."""
        job_objects = list_job_objects(self._api, self._job)
        if SECRETS.plural in job_objects.unlistable_kinds and not self._requested:
            self._delete_unlistable_token()
        for deletion in plan_deletions(job_objects, self._nodes_ready(job_objects)):
            if (deletion.uid, deletion.grace_seconds) not in self._requested:
                self._delete_object(deletion)
                self._requested.add((deletion.uid, deletion.grace_seconds))
        return job_objects

    def run_until_gone(
        self,
        on_round: Callable[[JobObjects], Any],
        clock: Callable[[], float],
        sleep: Callable[[float], Any],
        timeout: float = DELETION_TIMEOUT_SECONDS,
    ) -> None:
        """Go on until nothing is left; ``on_round`` hears of each round.

        Raises:
            DeletionTimeoutError: something is left after ``timeout``.
            ApiError: the server refuses a deletion.
        """
        end = clock() + timeout
        while there := self.delete_round():
            on_round(there)
            if clock() >= end:
                raise DeletionTimeoutError(
                    f"After {timeout:.0f} s these objects still exist: {format_object_list(there.objects)}",
                    where=f"job {self._job}",
                    hint="The deletion continues in the cluster; run `edl delete` again to follow it.",
                )
            sleep(DELETION_POLL_SECONDS)

    def _delete_object(self, deletion: ObjectDeletion) -> None:
        try:
            self._api.delete(deletion.kind, deletion.name, uid=deletion.uid, grace=deletion.grace_seconds)
        except (NotFoundError, ConflictError):
            return  # it is gone already, or another has its name

    def _delete_unlistable_token(self) -> None:
        """Who may not read Secrets cannot see whether the Job owns the token's; its name is known."""
        try:
            self._api.delete(SECRETS, names.token_secret(self._job))
        except (NotFoundError, RbacDeniedError):
            return  # it is gone, or goes with the Job

    def _nodes_ready(self, job_objects: JobObjects) -> dict[str, bool]:
        """Whether the nodes of leaving pods are ready, as far as this user may know."""
        leaving = [pod for pod in job_objects.select_kind(PODS) if "deletionTimestamp" in pod["metadata"]]
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
    """How many objects of each kind."""
    kinds = Counter(thing["kind"] for thing in objects)
    return ", ".join(f"{count} {kind}" + ("s" if count > 1 else "") for kind, count in kinds.items())


def format_object_list(objects: Sequence[Manifest], most: int = 5) -> str:
    """Objects by kind and name."""
    shown = [f"{thing['kind']} {thing['metadata']['name']}" for thing in objects[:most]]
    return ", ".join(shown) + (f" and {len(objects) - most} more" if len(objects) > most else "")
