"""Which nodes the scheduler lets a pod go to at all: taints, node selector, required node affinity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edl.cluster.kubernetes.resource_kinds import Manifest

_REPELLING_EFFECTS = ("NoSchedule", "NoExecute")


def is_node_usable(node: Manifest) -> bool:
    """Whether the node is ready and takes new pods."""
    ready = {entry["type"]: entry["status"] for entry in node.get("status", {}).get("conditions") or ()}
    return not node.get("spec", {}).get("unschedulable") and ready.get("Ready") == "True"


def node_admits_pod(node: Manifest, pod: Manifest) -> bool:
    """Whether the node's taints and the pod's wishes about nodes allow it there."""
    spec, labels = pod["spec"], node["metadata"].get("labels") or {}
    taints = [taint for taint in node.get("spec", {}).get("taints") or () if taint.get("effect") in _REPELLING_EFFECTS]
    tolerations = spec.get("tolerations") or ()
    return (
        all(any(_tolerates(toleration, taint) for toleration in tolerations) for taint in taints)
        and all(labels.get(name) == value for name, value in (spec.get("nodeSelector") or {}).items())
        and _matches_affinity(spec.get("affinity") or {}, labels, node["metadata"]["name"])
    )


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return (toleration.get("key"), toleration.get("value", "")) == (taint["key"], taint.get("value", ""))


def _matches_affinity(affinity: Mapping[str, Any], labels: Mapping[str, str], name: str) -> bool:
    required = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    fields = {"metadata.name": name}
    return any(
        _all_match(term.get("matchExpressions") or (), labels) and _all_match(term.get("matchFields") or (), fields)
        for term in required.get("nodeSelectorTerms") or ()
    )


def _all_match(expressions: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> bool:
    return all(matches_expression(expression, labels.get(expression["key"])) for expression in expressions)


def matches_expression(expression: Mapping[str, Any], value: str | None) -> bool:
    """Whether a label's value (None: there is no such label) is what a selector's expression asks for."""
    values: Sequence[str] = expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return _is_integer(value) and int(value or 0) > int(values[0])
        case "Lt":
            return _is_integer(value) and int(value or 0) < int(values[0])
    return False


def _is_integer(value: str | None) -> bool:
    return value is not None and value.lstrip("-").isdigit()
