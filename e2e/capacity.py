"""Requests from what the nodes offer now, so that exactly as many workers fit as a test needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import floor

import pytest
from e2e import site
from e2e.faults import wait_node_ready
from e2e.pods import SMALL_CPU
from e2e.programs import kubectl

from edl.cluster.kubernetes.api_client import ALL_NAMESPACES, KubeClient
from edl.cluster.kubernetes.resource_kinds import NODES, PODS
from edl.ops.cluster_capacity import pod_requests
from edl.ops.resource_quantities import parse_quantity

_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class NodeOffer:
    """What a node has left.

    Attributes:
        node: its name.
        cpu: cores that no pod has asked for.
    """

    node: str
    cpu: float


def node_offers(api: KubeClient) -> list[NodeOffer]:
    """What each node that takes pods has left."""
    used: dict[str, float] = {}
    for pod in api.list(PODS, namespace=ALL_NAMESPACES).items:
        node = pod["spec"].get("nodeName")
        if node and pod["status"].get("phase") not in _ENDED:
            used[node] = used.get(node, 0.0) + float(pod_requests(pod).get("cpu", 0))
    usable = set(site.nodes())
    return [
        NodeOffer(
            node["metadata"]["name"],
            float(parse_quantity(node["status"]["allocatable"]["cpu"])) - used.get(node["metadata"]["name"], 0.0),
        )
        for node in api.list(NODES).items
        if node["metadata"]["name"] in usable
    ]


def worker_cpu(found: Sequence[NodeOffer], slots: int, *, small_pods: int) -> float:
    """Cores a worker, so that exactly ``slots`` of them fit, wherever ``small_pods`` small ones go.

    The largest that does: what is left over on each node is then too little for one more.
    """
    small = small_pods * SMALL_CPU
    sizes = {
        round(floor(1000 * (offer.cpu - small) / share) / 1000, 3) for offer in found for share in range(1, slots + 1)
    }
    for cpu in sorted((size for size in sizes if size > SMALL_CPU), reverse=True):
        if count_fitting_pods(found, cpu) == slots == count_fitting_pods(found, cpu, small):
            return cpu
    pytest.fail(f"no request lets exactly {slots} workers fit beside {small_pods} small pods: {found}")


def count_fitting_pods(found: Sequence[NodeOffer], cpu: float, taken: float = 0.0) -> int:
    """How many pods of ``cpu`` cores fit, when ``taken`` cores of each node are."""
    return sum(max(0, floor((offer.cpu - taken) / cpu + 1e-9)) for offer in found)


@contextmanager
def restrict_new_pods(nodes: Sequence[str]) -> Iterator[None]:
    """Within the block new pods go to these nodes only."""
    others = [node for node in site.nodes() if node not in nodes]
    for node in others:
        kubectl("cordon", node)
    try:
        yield
    finally:
        for node in others:
            kubectl("uncordon", node)
        for node in others:
            wait_node_ready(node)


def usable_node_names(api: KubeClient) -> list[str]:
    """The nodes; last those that run the cluster's DNS, which a test must not break."""
    dns = {
        pod["spec"].get("nodeName") for pod in api.list(PODS, namespace="kube-system", labels="k8s-app=kube-dns").items
    }
    return sorted(site.nodes(), key=dns.__contains__)
