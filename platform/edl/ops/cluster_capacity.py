"""Computes the free capacity of a cluster and how many pods of a job would fit, from lists of nodes
and pods.

It follows the scheduler for requests, taints, node selectors and node affinity, and places each pod
on the node with the most free capacity. The result is a forecast: other users submit jobs, too, and
affinity rules between pods are left to the scheduler. It does not say which pods Kubernetes would
preempt, only that pods of lower priority exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from edl.cluster.kubernetes.pod_status import is_pod_over
from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.ops.resource_quantities import (
    ResourceAmounts,
    format_amount,
    lacking_resources,
    max_resources,
    parse_resources,
    subtract_resources,
    sum_resources,
)

# --------------------------------------------------------------------------------------------------
# The nodes on which the scheduler may place a pod: taints, node selector, required node affinity.


_REPELLING_EFFECTS = ("NoSchedule", "NoExecute")


def is_node_usable(node: Manifest) -> bool:
    """Whether the node is ready and accepts new pods."""
    ready = {entry["type"]: entry["status"] for entry in node.get("status", {}).get("conditions") or ()}
    return not node.get("spec", {}).get("unschedulable") and ready.get("Ready") == "True"


def node_admits_pod(node: Manifest, pod: Manifest) -> bool:
    """Whether the node's taints and the pod's node selector and affinity allow the pod there."""
    spec, labels = pod["spec"], node["metadata"].get("labels") or {}
    taints = [taint for taint in node.get("spec", {}).get("taints") or () if taint.get("effect") in _REPELLING_EFFECTS]
    tolerations = spec.get("tolerations") or ()
    return (
        all(any(_tolerates_taint(toleration, taint) for toleration in tolerations) for taint in taints)
        and all(labels.get(name) == value for name, value in (spec.get("nodeSelector") or {}).items())
        and _matches_affinity(spec.get("affinity") or {}, labels, node["metadata"]["name"])
    )


def _tolerates_taint(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return (toleration.get("key"), toleration.get("value", "")) == (taint["key"], taint.get("value", ""))


def _matches_affinity(affinity: Mapping[str, Any], labels: Mapping[str, str], name: str) -> bool:
    required = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    # The only field that Kubernetes supports in matchFields. One term must match, and of a term all
    # expressions.
    fields = {"metadata.name": name}
    return any(
        _all_match(term.get("matchExpressions") or (), labels) and _all_match(term.get("matchFields") or (), fields)
        for term in required.get("nodeSelectorTerms") or ()
    )


def _all_match(expressions: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> bool:
    return all(matches_expression(expression, labels.get(expression["key"])) for expression in expressions)


def matches_expression(expression: Mapping[str, Any], value: str | None) -> bool:
    """Whether a selector's expression matches a label's value; None: there is no such label."""
    values: Sequence[str] = expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            # A node without the label matches, as in Kubernetes.
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


PODS_RESOURCE = "pods"


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """The placement of one pod of a forecast.

    Attributes:
        node: the node; None if the pod does not fit now.
        lacking_resources: the resources that are insufficient on the node where the pod comes closest; empty
            if no node admits it.
        may_preempt: whether nodes that admit the pod run pods of lower priority, which Kubernetes
            may preempt for it.
    """

    node: str | None
    lacking_resources: tuple[str, ...] = ()
    may_preempt: bool = False


@dataclass
class _NodeCapacity:
    manifest: Manifest
    free_resources: dict[str, Fraction]
    pod_priorities: list[int] = field(default_factory=list)  # of the pods that run here

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])


class ClusterCapacity:
    """The nodes of a cluster with their free capacity; ``place_pod`` reduces it.

    Args:
        nodes: all nodes.
        pods: all pods of all namespaces; ended pods use no capacity.
    """

    def __init__(self, nodes: Iterable[Manifest], pods: Iterable[Manifest]) -> None:
        self._all_nodes = list(nodes)
        self._usable_nodes: dict[str, _NodeCapacity] = {}
        for manifest in self._all_nodes:
            if is_node_usable(manifest):
                node = _NodeCapacity(manifest, parse_resources(manifest["status"].get("allocatable")))
                self._usable_nodes[node.name] = node
        for pod in pods:
            self._add_running_pod(pod)

    @property
    def nodes_total(self) -> int:
        return len(self._all_nodes)

    @property
    def nodes_usable(self) -> int:
        """Nodes that are ready and accept pods."""
        return len(self._usable_nodes)

    def free_for_pod(self, pod: Manifest) -> dict[str, Fraction]:
        """The free capacity of all nodes that admit ``pod``."""
        return sum_resources(
            {name: max(Fraction(), amount) for name, amount in node.free_resources.items()}
            for node in self._usable_nodes.values()
            if node_admits_pod(node.manifest, pod)
        )

    def place_pod(self, pod: Manifest) -> PodPlacement:
        """Place a pod and reserve its requests.

        The pod is as the API server admitted it, so that its priority is known.
        """
        wanted, priority = pod_requests(pod), int(pod["spec"].get("priority") or 0)
        nodes = [node for node in self._usable_nodes.values() if node_admits_pod(node.manifest, pod)]
        roomy = [node for node in nodes if not lacking_resources(node.free_resources, wanted)]
        if roomy:
            node = max(roomy, key=_free_share)
            node.free_resources = subtract_resources(node.free_resources, wanted)
            return PodPlacement(node.name)
        closest = min((lacking_resources(node.free_resources, wanted) for node in nodes), key=len, default=[])
        lower = any(running < priority for node in nodes for running in node.pod_priorities)
        return PodPlacement(None, tuple(closest), may_preempt=lower and pod["spec"].get("preemptionPolicy") != "Never")

    def never_fits_reason(self, pod: Manifest) -> str:
        """Why ``pod`` could not start on today's nodes even if they were empty; empty if it could.

        Nodes that are not ready or cordoned count, because they come back. An autoscaler may add
        other nodes, so the message says *today's*.
        """
        wanted = pod_requests(pod)
        fits = [
            parse_resources(node["status"].get("allocatable"))
            for node in self._all_nodes
            if node_admits_pod(_without_transient_taints(node), pod)
        ]
        if not fits:
            return "no node admits such pods (taints, node selector, affinity)"
        closest = min((lacking_resources(whole, wanted) for whole in fits), key=len)
        most = max_resources(fits)
        missing = [
            f"each requests {format_amount(name, wanted[name])}, "
            f"no node has more than {format_amount(name, most.get(name, Fraction()))}"
            for name in closest
        ]
        return "; ".join(missing)

    def _add_running_pod(self, pod: Manifest) -> None:
        node = self._usable_nodes.get(pod["spec"].get("nodeName") or "")
        if node is None or is_pod_over(pod):
            return
        node.pod_priorities.append(int(pod["spec"].get("priority") or 0))
        node.free_resources = subtract_resources(node.free_resources, pod_requests(pod))


def _without_transient_taints(node: Manifest) -> Manifest:
    """A node without the taints of temporary conditions: not ready, cordoned, short of memory."""
    spec = node.get("spec") or {}
    taints = [taint for taint in spec.get("taints") or () if not taint["key"].startswith("node.kubernetes.io/")]
    return {**node, "spec": {**spec, "taints": taints}}


def pod_requests(pod: Manifest) -> dict[str, Fraction]:
    """What the scheduler reserves for a pod: its maximum requests at any time of its life."""
    spec = pod["spec"]
    beside: list[ResourceAmounts] = []  # sidecars: they run beside the other containers
    peaks: list[ResourceAmounts] = []
    for container in spec.get("initContainers") or ():
        requests_of_container = _container_requests(container)
        peaks.append(sum_resources([*beside, requests_of_container]))
        if container.get("restartPolicy") == "Always":
            beside.append(requests_of_container)
    running = sum_resources([*beside, *(_container_requests(container) for container in spec["containers"])])
    whole = sum_resources([max_resources([running, *peaks]), parse_resources(spec.get("overhead"))])
    return {name: amount for name, amount in whole.items() if amount} | {PODS_RESOURCE: Fraction(1)}


def _container_requests(container: Manifest) -> dict[str, Fraction]:
    asked = container.get("resources") or {}
    return parse_resources({**(asked.get("limits") or {}), **(asked.get("requests") or {})})


def _free_share(node: _NodeCapacity) -> tuple[Fraction, str]:
    whole = parse_resources(node.manifest["status"].get("allocatable"))
    shares = [node.free_resources[name] / whole[name] for name in ("cpu", "memory") if whole.get(name)]
    return sum(shares, Fraction()), node.name
