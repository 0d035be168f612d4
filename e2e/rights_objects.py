"""What requests are tried on: two jobs of a team and some things that are nobody's, all of which never run.

Their pods go to a node that there is none of, and their Jobs wait: who may touch them is all that matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from e2e.programs import kubectl

from edl.api.cluster_port import Role
from edl.api.pod_spec import RunAsSpec
from edl.cluster.kubernetes import names, pod_template
from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.resource_kinds import Manifest

OWN, OTHER = "mine", "other"
"""The two jobs."""
MASTER_POD = f"{names.master_name(OWN)}-x7k2p"
COPY_POD = "edl-data-0123abcd"
ENDED = "ended"
"""A job of which nothing is left but its token."""
FOREIGN = "database"
"""A Secret that is no job's."""
STRANGER = "stranger"
"""An account, a ConfigMap and a pod that are no job's."""
OTHER_CLASS = "system-cluster-critical"
"""A PriorityClass of every cluster; none of EDL's."""
_NOWHERE = {"edl.dev/e2e": "nowhere"}


@dataclass(frozen=True)
class RightsObjects:
    """A namespace with these objects.

    Attributes:
        namespace: its name.
        uids: of the two Jobs, by job.
    """

    namespace: str
    uids: dict[str, str]

    def owner(self, job: str) -> Manifest:
        """The reference to a master's Job."""
        return {"apiVersion": "batch/v1", "kind": "Job", "name": names.master_name(job), "uid": self.uids[job]}

    def worker(self, name: str, job: str = OWN, **spec: Any) -> Manifest:
        """A worker's pod, owned by its job's Job."""
        worker_pod = pod(name, names.object_labels(job, Role.WORKER, 0), **spec)
        worker_pod["metadata"]["ownerReferences"] = [self.owner(job)]
        return worker_pod


def pod(name: str, labels: dict[str, str] | None = None, **spec: Any) -> Manifest:
    """A pod that never starts."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": pod_spec(**spec),
    }


def pod_spec(**fields: Any) -> Manifest:
    """The spec of such a pod, under the account without rights."""
    container = {
        "name": "edl",
        "image": "registry.invalid/none",
        "securityContext": pod_template.container_security_context(),
    }
    container |= fields.pop("container", {})
    return {
        "serviceAccountName": names.POD_ACCOUNT,
        "priorityClassName": "low",
        "automountServiceAccountToken": False,
        "securityContext": pod_template.pod_security_context(RunAsSpec()),
        "restartPolicy": "Never",
        "nodeSelector": _NOWHERE,
        "containers": [container],
        **fields,
    }


def job(name: str, labels: dict[str, str] | None = None, own: dict[str, str] | None = None, **spec: Any) -> Manifest:
    """A Job that waits; ``own`` are the labels of the Job itself, where they differ from its pods'."""
    template = {"metadata": {"labels": labels or {}}, "spec": pod_spec(**spec)}
    meta = {"name": name, "labels": (labels or {}) if own is None else own}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"suspend": True, "template": template}}


def master_job(of: str, **spec: Any) -> Manifest:
    """The Job of a job's master."""
    account = {"serviceAccountName": names.MASTER_ACCOUNT, **spec}
    return job(names.master_name(of), names.object_labels(of, Role.MASTER), **account)


def secret(name: str, of: str | None, kind: str = "Opaque", **metadata: Any) -> Manifest:
    """A Secret; with a job's label."""
    meta = {"name": name, "labels": names.object_labels(of) if of else {}, **metadata}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": kind,
        "metadata": meta,
        **({"stringData": {"token": "s3cret"}} if kind == "Opaque" else {}),
    }


def config(name: str, of: str | None) -> Manifest:
    """A ConfigMap; with a job's label."""
    meta = {"name": name, "labels": names.object_labels(of) if of else {}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"page": "1"}}


def lease(of: str) -> Manifest:
    """The Lease of a job's master."""
    meta = {"name": names.master_name(of), "labels": names.object_labels(of)}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": meta,
        "spec": {"holderIdentity": "none"},
    }


def service(name: str, spec: Manifest, of: str | None = None) -> Manifest:
    """A Service; with a job's label."""
    meta = {"name": name, "labels": names.object_labels(of) if of else {}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def _service(of: str) -> Manifest:
    return service(names.master_name(of), {"ports": [{"name": "control", "port": 7070}]}, of)


def create_objects(api: KubeClient, image: str) -> RightsObjects:
    """Put the objects into the namespace of ``api``, with the rights of an admin.

    Args:
        api: of an empty namespace with a team's part.
        image: of the one pod that runs.
    """
    uids = {each: str(_create_all(api, [master_job(each)])["metadata"]["uid"]) for each in (OWN, OTHER)}
    rights_objects = RightsObjects(api.namespace, uids)
    for each in (OWN, OTHER):
        things = [
            secret(names.token_secret(each), each),
            config(names.status_configmap(each), each),
            _service(each),
            lease(each),
        ]
        _create_all(api, [*things, rights_objects.worker(names.pod_name(each, Role.WORKER, 0), each)])
    master = pod(MASTER_POD, names.object_labels(OWN, Role.MASTER), serviceAccountName=names.MASTER_ACCOUNT)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": STRANGER}}
    tokens = [secret(names.token_secret(ENDED), ENDED), secret(FOREIGN, None)]
    _create_all(api, [master, account, *tokens, config(STRANGER, None), pod(STRANGER)])
    sleeping = {"image": image, "command": ["sleep", "3600"]}
    _create_all(api, [pod(COPY_POD, container=sleeping, nodeSelector={}, terminationGracePeriodSeconds=0)])
    kubectl("-n", api.namespace, "wait", "--for=condition=Ready", f"pod/{COPY_POD}", "--timeout=90s")
    return rights_objects


def _create_all(api: KubeClient, things: Sequence[Manifest]) -> Manifest:
    created = [api.create(thing) for thing in things]
    return created[-1]
