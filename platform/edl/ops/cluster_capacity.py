"""What a cluster has free now, and how many pods of a job would find room: arithmetic over lists of nodes and pods.

It answers as the scheduler would, as far as requests, taints, node selectors and node affinity go: pods are placed one
after the other where most is free, and one of higher priority takes the place of lower ones. It is a forecast: others
submit too, and what a node's own affinity rules between pods forbid only the scheduler knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.ops.node_matching import admits, usable
from edl.ops.resource_quantities import Resources, lacks, largest, less, resources, said, total

PODS = "pods"
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Tenant:
    """A pod that has a place."""

    name: str
    node: str
    requests: Resources
    priority: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where one pod of a forecast goes.

    Attributes:
        node: None when there is no room for it now.
        victims: pods of lower priority that give way to it.
        lacking: of which resources there is too little, where it would come closest; empty when no node admits it.
    """

    node: str | None
    victims: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()


@dataclass
class _Node:
    manifest: Manifest
    free: dict[str, Fraction]
    tenants: list[Tenant] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])


class Room:
    """The nodes of a cluster with what is free on each; ``place`` takes from it.

    Args:
        nodes: all nodes.
        pods: all pods of all namespaces; ended ones count for nothing.
    """

    def __init__(self, nodes: Iterable[Manifest], pods: Iterable[Manifest]) -> None:
        self._all = list(nodes)
        self._nodes: dict[str, _Node] = {}
        for manifest in self._all:
            if usable(manifest):
                node = _Node(manifest, resources(manifest["status"].get("allocatable")))
                self._nodes[node.name] = node
        for pod in pods:
            self._occupy(pod)

    @property
    def nodes_total(self) -> int:
        """All nodes."""
        return len(self._all)

    @property
    def nodes_usable(self) -> int:
        """Nodes that are ready and take pods."""
        return len(self._nodes)

    def free(self, pod: Manifest) -> dict[str, Fraction]:
        """What is free on all nodes that admit ``pod``."""
        return total(
            {name: max(Fraction(), amount) for name, amount in node.free.items()}
            for node in self._nodes.values()
            if admits(node.manifest, pod)
        )

    def place(self, pod: Manifest) -> Place:
        """Find room for a pod as the API server admitted it (with its priority), and take it."""
        wanted, priority = requests_of(pod), int(pod["spec"].get("priority") or 0)
        nodes = [node for node in self._nodes.values() if admits(node.manifest, pod)]
        roomy = [node for node in nodes if not lacks(node.free, wanted)]
        if roomy:
            return self._take(max(roomy, key=_emptiness), wanted, priority, ())
        if pod["spec"].get("preemptionPolicy") != "Never":
            yielding = [(found, node) for node in nodes if (found := _victims(node, wanted, priority)) is not None]
            if yielding:
                victims, node = min(yielding, key=lambda choice: len(choice[0]))
                return self._take(node, wanted, priority, victims)
        closest = min((lacks(node.free, wanted) for node in nodes), key=len, default=[])
        return Place(None, lacking=tuple(closest))

    def hopeless(self, pod: Manifest) -> str:
        """Why ``pod`` can never start on the nodes that there are today, were they all empty; empty if it can.

        Nodes that are not ready or cordoned count: they come back. An autoscaler may bring others, hence *today's*.
        """
        wanted = requests_of(pod)
        fits = [resources(node["status"].get("allocatable")) for node in self._all if admits(_settled(node), pod)]
        if not fits:
            return "none takes such pods (taints, node selector, affinity)"
        closest = min((lacks(whole, wanted) for whole in fits), key=len)
        most = largest(fits)
        missing = [
            f"each asks for {said(name, wanted[name])}, no node has more than {_most(name, most)}" for name in closest
        ]
        return "; ".join(missing)

    def _take(self, node: _Node, wanted: Resources, priority: int, victims: Sequence[Tenant]) -> Place:
        for victim in victims:
            node.tenants.remove(victim)
        node.free = less(total([node.free, *(victim.requests for victim in victims)]), wanted)
        node.tenants.append(Tenant("", node.name, wanted, priority))
        return Place(node.name, tuple(victim.name for victim in victims))

    def _occupy(self, pod: Manifest) -> None:
        node = self._nodes.get(pod["spec"].get("nodeName") or "")
        if node is None or pod.get("status", {}).get("phase") in _ENDED:
            return
        meta, wanted = pod["metadata"], requests_of(pod)
        name = f"{meta.get('namespace', '')}/{meta['name']}"
        node.tenants.append(Tenant(name, node.name, wanted, int(pod["spec"].get("priority") or 0)))
        node.free = less(node.free, wanted)


def _settled(node: Manifest) -> Manifest:
    """A node without the taints that Kubernetes sets for what passes: not ready, cordoned, short of memory."""
    spec = node.get("spec") or {}
    taints = [taint for taint in spec.get("taints") or () if not taint["key"].startswith("node.kubernetes.io/")]
    return {**node, "spec": {**spec, "taints": taints}}


def _most(name: str, most: Resources) -> str:
    return said(name, most.get(name, Fraction()))


def requests_of(pod: Manifest) -> dict[str, Fraction]:
    """What the scheduler reserves for a pod: the most that it asks for at any one time of its life."""
    spec = pod["spec"]
    beside: list[Resources] = []  # init containers that go on beside the others
    peaks: list[Resources] = []
    for container in spec.get("initContainers") or ():
        asked = _requests(container)
        peaks.append(total([*beside, asked]))
        if container.get("restartPolicy") == "Always":
            beside.append(asked)
    running = total([*beside, *(_requests(container) for container in spec["containers"])])
    whole = total([largest([running, *peaks]), resources(spec.get("overhead"))])
    return {name: amount for name, amount in whole.items() if amount} | {PODS: Fraction(1)}


def _requests(container: Manifest) -> dict[str, Fraction]:
    asked = container.get("resources") or {}
    return resources({**(asked.get("limits") or {}), **(asked.get("requests") or {})})


def _emptiness(node: _Node) -> tuple[Fraction, str]:
    whole = resources(node.manifest["status"].get("allocatable"))
    shares = [node.free[name] / whole[name] for name in ("cpu", "memory") if whole.get(name)]
    return sum(shares, Fraction()), node.name


def _victims(node: _Node, wanted: Resources, priority: int) -> list[Tenant] | None:
    """The fewest, lowest tenants without whom there is room; None when all lower ones together are too few."""
    chosen: list[Tenant] = []
    free = node.free
    for tenant in sorted(node.tenants, key=lambda tenant: tenant.priority):
        if tenant.priority >= priority:
            break
        chosen.append(tenant)
        free = total([free, tenant.requests])
        if not lacks(free, wanted):
            return _spared(chosen, free, wanted)
    return None


def _spared(chosen: Sequence[Tenant], free: Resources, wanted: Resources) -> list[Tenant]:
    """``chosen`` without those that can stay after all, the highest first."""
    needed = list(chosen)
    for tenant in sorted(chosen, key=lambda tenant: -tenant.priority):
        without = less(free, tenant.requests)
        if not lacks(without, wanted):
            needed.remove(tenant)
            free = without
    return needed
