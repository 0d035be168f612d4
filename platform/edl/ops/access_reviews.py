"""The requests that EDL's users and masters make, and access reviews of whether they may."""

from __future__ import annotations

from dataclasses import dataclass

from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.resource_kinds import LOCAL_ACCESS_REVIEWS, SELF_ACCESS_REVIEWS, Manifest, ResourceKind


@dataclass(frozen=True, slots=True)
class AccessRight:
    """One kind of request.

    Attributes:
        verb: an RBAC verb.
        resource: plural, with its subresource: ``pods/exec``.
        group: API group; empty for the core group.
        needed_for: the commands that do not work without it.
        cluster_role: name of the ClusterRole that grants it.
        namespaced: whether the right is for the namespace, not for the whole cluster.
    """

    verb: str
    resource: str
    group: str
    needed_for: str
    cluster_role: str = "edl-data-scientist"
    namespaced: bool = True

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


_SUBMIT_COMMAND, _STATUS_COMMANDS, _DELETE_COMMAND = "edl submit", "edl list, status, why", "edl delete"
REQUIRED_RIGHTS = (
    *(
        AccessRight("create", resource, "", _SUBMIT_COMMAND)
        for resource in ("configmaps", "secrets", "services", "pods")
    ),
    AccessRight("create", "jobs", "batch", _SUBMIT_COMMAND),
    *(AccessRight(verb, "jobs", "batch", _STATUS_COMMANDS) for verb in ("get", "list", "watch")),
    *(AccessRight(verb, "configmaps", "", _STATUS_COMMANDS) for verb in ("get", "list", "watch")),
    *(AccessRight(verb, "pods", "", _STATUS_COMMANDS) for verb in ("get", "list", "watch")),
    AccessRight("list", "events", "", "edl events, why"),
    AccessRight("get", "pods/log", "", "edl logs"),
    AccessRight("patch", "jobs", "batch", "edl submit, scale, stop"),
    AccessRight("delete", "jobs", "batch", _DELETE_COMMAND),
    *(
        AccessRight("delete", resource, "", _DELETE_COMMAND)
        for resource in ("pods", "configmaps", "secrets", "services")
    ),
    AccessRight("get", "persistentvolumeclaims", "", "edl submit, data"),
)
"""Without these the commands do not work."""

_CAPACITY_PLAN = "the forecast of free capacity by edl submit"
OPTIONAL_RIGHTS = (
    AccessRight("list", "nodes", "", _CAPACITY_PLAN, "edl-cluster-viewer", namespaced=False),
    AccessRight("list", "pods", "", _CAPACITY_PLAN, "edl-cluster-viewer", namespaced=False),
    AccessRight("list", "resourcequotas", "", _CAPACITY_PLAN),
    AccessRight(
        "get",
        "priorityclasses",
        "scheduling.k8s.io",
        "the checks of PriorityClasses by edl submit and edl doctor",
        "edl-cluster-viewer",
        namespaced=False,
    ),
    # A websocket is opened by a GET. From Kubernetes 1.35 on it needs both verbs.
    *(
        AccessRight(verb, "pods/exec", "", "edl data cp, ls; edl logs of pods that are gone", "edl-data-copy")
        for verb in ("get", "create")
    ),
    AccessRight("list", "pods", "metrics.k8s.io", "edl top"),
)
"""Without these the commands show less, or some commands do not work."""


_MASTER_ROLE = "the master of a job"
MASTER_RIGHTS = (
    *(AccessRight(verb, "pods", "", _MASTER_ROLE) for verb in ("create", "get", "list", "watch", "patch", "delete")),
    *(AccessRight(verb, "configmaps", "", _MASTER_ROLE) for verb in ("get", "watch", "patch")),
    AccessRight("patch", "services", "", _MASTER_ROLE),
    *(AccessRight(verb, "jobs", "batch", _MASTER_ROLE) for verb in ("get", "list", "watch", "patch")),
    *(
        AccessRight(verb, "leases", "coordination.k8s.io", _MASTER_ROLE)
        for verb in ("create", "get", "update", "patch")
    ),
    AccessRight("create", "events", "", _MASTER_ROLE),
)
"""The rights of the ClusterRole edl-job-master that a job needs.

With the admission policies a master may also delete its token.
"""

READ_SECRETS_RIGHT = AccessRight("get", "secrets", "", "nothing")
"""The admission policies do not apply to users who have this right."""


def has_right(api: KubeClient, right: AccessRight) -> bool:
    """Whether the user has a right, according to the API server's authorizers."""
    return _review_access(api, SELF_ACCESS_REVIEWS, right, {})


def master_has_right(api: KubeClient, right: AccessRight) -> bool:
    """Whether the service account of masters has a right.

    Raises RbacDeniedError if the user may not ask about other accounts.
    """
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{api.namespace}", "system:authenticated"]
    user = f"system:serviceaccount:{api.namespace}:{names.MASTER_ACCOUNT}"
    return _review_access(api, LOCAL_ACCESS_REVIEWS, right, {"user": user, "groups": groups})


def _review_access(api: KubeClient, kind: ResourceKind, right: AccessRight, subject: Manifest) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": subresource}
    if right.namespaced:
        attributes["namespace"] = api.namespace
    review = {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": {"namespace": api.namespace} if kind.namespaced else {},
        "spec": {**subject, "resourceAttributes": attributes},
    }
    answer = api.request("POST", kind.path(api.namespace), body=review).body
    return bool(answer.get("status", {}).get("allowed"))
