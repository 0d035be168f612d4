"""Which requests EDL's users and masters make, and whether they may: access reviews of the API server."""

from __future__ import annotations

from dataclasses import dataclass

from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import Api
from edl.cluster.kubernetes.resource_kinds import ACCESS_REVIEWS, LOCAL_ACCESS_REVIEWS, Kind, Manifest


@dataclass(frozen=True, slots=True)
class Right:
    """One kind of request.

    Attributes:
        verb: as RBAC has it.
        resource: plural, with its subresource: ``pods/exec``.
        group: API group; empty for the core group.
        needed_for: what does not work without it.
        role: who has it, by the name of the ClusterRole.
        namespaced: asked about the namespace, not about the whole cluster.
    """

    verb: str
    resource: str
    group: str
    needed_for: str
    role: str = "edl-data-scientist"
    namespaced: bool = True

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


_SUBMIT, _LOOK, _STOP = "edl submit", "edl list, status, why", "edl delete"
NEEDED = (
    *(Right("create", resource, "", _SUBMIT) for resource in ("configmaps", "secrets", "services", "pods")),
    Right("create", "jobs", "batch", _SUBMIT),
    *(Right(verb, "jobs", "batch", _LOOK) for verb in ("get", "list", "watch")),
    *(Right(verb, "configmaps", "", _LOOK) for verb in ("get", "list", "watch")),
    *(Right(verb, "pods", "", _LOOK) for verb in ("get", "list", "watch")),
    Right("list", "events", "", "edl events, why"),
    Right("get", "pods/log", "", "edl logs"),
    Right("patch", "jobs", "batch", "edl submit, scale, stop"),
    Right("delete", "jobs", "batch", _STOP),
    *(Right("delete", resource, "", _STOP) for resource in ("pods", "configmaps", "secrets", "services")),
    Right("get", "persistentvolumeclaims", "", "edl submit, data"),
)
"""Without these the commands do not work."""

_PLAN = "what edl submit says about free room"
WANTED = (
    Right("list", "nodes", "", _PLAN, "edl-cluster-viewer", namespaced=False),
    Right("list", "pods", "", _PLAN, "edl-cluster-viewer", namespaced=False),
    Right("list", "resourcequotas", "", _PLAN),
    Right(
        "get",
        "priorityclasses",
        "scheduling.k8s.io",
        "what it and edl doctor say about priorities",
        "edl-cluster-viewer",
        namespaced=False,
    ),
    # a websocket is a GET; from Kubernetes 1.35 on it needs both
    *(Right(verb, "pods/exec", "", "edl data cp, ls", "edl-data-copy") for verb in ("get", "create")),
    Right("list", "pods", "metrics.k8s.io", "edl top"),
)
"""Without these something less is shown or possible."""


_MASTER = "the master of a job"
MASTERS = (
    *(Right(verb, "pods", "", _MASTER) for verb in ("create", "get", "list", "watch", "patch", "delete")),
    *(Right(verb, "configmaps", "", _MASTER) for verb in ("get", "watch", "patch")),
    Right("patch", "services", "", _MASTER),
    *(Right(verb, "jobs", "batch", _MASTER) for verb in ("get", "list", "watch", "patch")),
    *(Right(verb, "leases", "coordination.k8s.io", _MASTER) for verb in ("create", "get", "update", "patch")),
    Right("create", "events", "", _MASTER),
)
"""What a job needs of the ClusterRole edl-job-master. With the policies it may also delete its token."""

READ_SECRETS = Right("get", "secrets", "", "nothing")
"""Who has it is not held to the admission policies."""


def may(api: Api, right: Right) -> bool:
    """Whether whoever asks has a right, as far as the API server's authorizers know."""
    return _reviewed(api, ACCESS_REVIEWS, right, {})


def master_may(api: Api, right: Right) -> bool:
    """Whether the account of jobs' masters has a right; raises NoRightError where one may not ask about others."""
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{api.namespace}", "system:authenticated"]
    user = f"system:serviceaccount:{api.namespace}:{names.MASTER_ACCOUNT}"
    return _reviewed(api, LOCAL_ACCESS_REVIEWS, right, {"user": user, "groups": groups})


def _reviewed(api: Api, kind: Kind, right: Right, subject: Manifest) -> bool:
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
    answer = api.ask("POST", kind.path(api.namespace), body=review).body
    return bool(answer.get("status", {}).get("allowed"))
