"""The kinds of objects that EDL reads and writes, and their paths at the API server."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

Manifest = dict[str, Any]
"""An object of the API: apiVersion, kind, metadata, spec, status ..."""


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """One resource of the API.

    Attributes:
        api_version: ``v1`` or ``group/version``.
        name: the kind, as in manifests.
        plural: the resource, as in paths.
        namespaced: whether its objects are in namespaces.
    """

    api_version: str
    name: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Path of the collection or of one object. For a namespaced kind, no namespace means all namespaces."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"
        where = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return root + where + "".join(f"/{part}" for part in (self.plural, name, subresource) if part)


PODS = ResourceKind("v1", "Pod", "pods")
CONFIGMAPS = ResourceKind("v1", "ConfigMap", "configmaps")
SECRETS = ResourceKind("v1", "Secret", "secrets")
SERVICES = ResourceKind("v1", "Service", "services")
SERVICE_ACCOUNTS = ResourceKind("v1", "ServiceAccount", "serviceaccounts")
VOLUME_CLAIMS = ResourceKind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
EVENTS = ResourceKind("v1", "Event", "events")
RESOURCE_QUOTAS = ResourceKind("v1", "ResourceQuota", "resourcequotas")
LIMIT_RANGES = ResourceKind("v1", "LimitRange", "limitranges")
NAMESPACES = ResourceKind("v1", "Namespace", "namespaces", namespaced=False)
NODES = ResourceKind("v1", "Node", "nodes", namespaced=False)
JOBS = ResourceKind("batch/v1", "Job", "jobs")
LEASES = ResourceKind("coordination.k8s.io/v1", "Lease", "leases")
PRIORITY_CLASSES = ResourceKind("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", namespaced=False)
STORAGE_CLASSES = ResourceKind("storage.k8s.io/v1", "StorageClass", "storageclasses", namespaced=False)
SELF_ACCESS_REVIEWS = ResourceKind(
    "authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", False
)
LOCAL_ACCESS_REVIEWS = ResourceKind("authorization.k8s.io/v1", "LocalSubjectAccessReview", "localsubjectaccessreviews")
ROLE_BINDINGS = ResourceKind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
POD_METRICS = ResourceKind("metrics.k8s.io/v1beta1", "PodMetrics", "pods")

KIND_BY_NAME = {
    kind.name: kind
    for kind in (
        PODS,
        CONFIGMAPS,
        SECRETS,
        SERVICES,
        SERVICE_ACCOUNTS,
        VOLUME_CLAIMS,
        EVENTS,
        RESOURCE_QUOTAS,
        LIMIT_RANGES,
        NAMESPACES,
        NODES,
        JOBS,
        LEASES,
        PRIORITY_CLASSES,
        ROLE_BINDINGS,
        STORAGE_CLASSES,
    )
}
"""Kinds by name, as in manifests."""


def manifest_kind(manifest: Manifest) -> ResourceKind:
    """The kind of a manifest that EDL rendered."""
    return KIND_BY_NAME[manifest["kind"]]


# --------------------------------------------------------------------------------------------------
# Times of Kubernetes as unix seconds.


def parse_timestamp(text: str | None) -> float | None:
    """Unix seconds of ``2026-01-31T12:00:00Z``, with or without a fraction; None if there is no text."""
    return datetime.fromisoformat(text).timestamp() if text else None


def creation_time(manifest: Manifest) -> float:
    """Creation time of an object in unix seconds; 0.0 if it was never created."""
    return parse_timestamp(manifest.get("metadata", {}).get("creationTimestamp")) or 0.0


def is_being_deleted(manifest: Manifest) -> bool:
    """Whether somebody has requested the deletion of the object, which its finalizers or its kubelet still hold."""
    return bool(manifest["metadata"].get("deletionTimestamp"))


def deletion_deadline(manifest: Manifest) -> float:
    """The end of the grace period of an object that is being deleted, by the API server's clock, in unix seconds."""
    return datetime.fromisoformat(manifest["metadata"]["deletionTimestamp"]).timestamp()
