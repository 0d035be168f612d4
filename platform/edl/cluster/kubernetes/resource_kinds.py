"""The kinds of objects that EDL reads and writes, and their paths at the API server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]
"""An object as the API server has it: apiVersion, kind, metadata, spec, status ..."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource of the API.

    Attributes:
        api_version: ``v1`` or ``group/version``.
        name: as manifests have it in ``kind``.
        plural: as paths have it.
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
        """Path of the collection or of one object; a namespaced kind without a namespace means all of them."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"
        where = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return root + where + "".join(f"/{part}" for part in (self.plural, name, subresource) if part)


PODS = Kind("v1", "Pod", "pods")
CONFIGMAPS = Kind("v1", "ConfigMap", "configmaps")
SECRETS = Kind("v1", "Secret", "secrets")
SERVICES = Kind("v1", "Service", "services")
SERVICE_ACCOUNTS = Kind("v1", "ServiceAccount", "serviceaccounts")
CLAIMS = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
EVENTS = Kind("v1", "Event", "events")
QUOTAS = Kind("v1", "ResourceQuota", "resourcequotas")
LIMIT_RANGES = Kind("v1", "LimitRange", "limitranges")
NAMESPACES = Kind("v1", "Namespace", "namespaces", namespaced=False)
NODES = Kind("v1", "Node", "nodes", namespaced=False)
JOBS = Kind("batch/v1", "Job", "jobs")
LEASES = Kind("coordination.k8s.io/v1", "Lease", "leases")
PRIORITY_CLASSES = Kind("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", namespaced=False)
STORAGE_CLASSES = Kind("storage.k8s.io/v1", "StorageClass", "storageclasses", namespaced=False)
ACCESS_REVIEWS = Kind("authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", False)
LOCAL_ACCESS_REVIEWS = Kind("authorization.k8s.io/v1", "LocalSubjectAccessReview", "localsubjectaccessreviews")
ROLE_BINDINGS = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
POD_METRICS = Kind("metrics.k8s.io/v1beta1", "PodMetrics", "pods")

BY_NAME = {
    kind.name: kind
    for kind in (
        PODS,
        CONFIGMAPS,
        SECRETS,
        SERVICES,
        SERVICE_ACCOUNTS,
        CLAIMS,
        EVENTS,
        QUOTAS,
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
"""Kinds by the name that manifests use."""


def kind_of(manifest: Manifest) -> Kind:
    """The kind of a manifest that EDL rendered."""
    return BY_NAME[manifest["kind"]]
