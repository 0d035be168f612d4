"""What is in the cluster and in some namespaces, to compare before and after: nothing half-installed, nothing lost."""

from __future__ import annotations

import json

from e2e.install import CLUSTER_KINDS
from e2e.programs import kubectl

_KINDS = (
    "configmaps,jobs,limitranges,networkpolicies,persistentvolumeclaims,pods,resourcequotas,rolebindings,roles,"
    "secrets,serviceaccounts,services"
)


def inventory(*namespaces: str) -> set[str]:
    """Cluster-scoped objects of the kinds that the chart has, and all objects of some namespaces.

    Each as ``[namespace/]kind/name``. Helm's record of a release is a Secret, so it is among them.
    """
    listed = _list_objects(CLUSTER_KINDS)
    for name in namespaces:
        if kubectl("get", "namespace", name, "--ignore-not-found", "-o", "name"):
            listed |= {f"namespace/{name}"} | {f"{name}/{each}" for each in _list_objects(_KINDS, "-n", name)}
    return listed


def _list_objects(kinds: str, *options: str) -> set[str]:
    items = json.loads(kubectl("get", kinds, *options, "-o", "json"))["items"]
    return {f"{each['kind'].lower()}/{each['metadata']['name']}" for each in items}
