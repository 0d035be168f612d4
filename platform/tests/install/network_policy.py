"""What NetworkPolicies allow, as pure functions: the rules of networking.k8s.io/v1 on plain manifests.

A connection needs both ends: the egress of who opens it and the ingress of who takes it. A pod is isolated in a
direction once a policy of its namespace selects it for that direction; what is then allowed is all that any of these
policies allows. Source: https://kubernetes.io/docs/concepts/services-networking/network-policies/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any, Literal

Manifest = Mapping[str, Any]
Direction = Literal["Ingress", "Egress"]


@dataclass(frozen=True)
class NetworkEndpoint:
    """A pod, or (without a namespace) an address outside the cluster.

    Attributes:
        ports: numbers of the pod's named ports, by name and protocol.
    """

    address: str
    namespace: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True)
class AttemptedConnection:
    """What is tried: who opens a connection to whom, at which port."""

    source: NetworkEndpoint
    target: NetworkEndpoint
    port: int
    protocol: str = "TCP"


@dataclass(frozen=True)
class PolicyVerdict:
    """Whether a connection is allowed, and by the end that decides, why."""

    allowed: bool
    reason: str


@dataclass(frozen=True)
class PolicyNetwork:
    """Namespaces with their labels, and the policies in them."""

    namespaces: Mapping[str, Mapping[str, str]]
    policies: tuple[Manifest, ...]

    def verdict(self, tried: AttemptedConnection) -> PolicyVerdict:
        """Whether both ends allow a connection."""
        if tried.source == tried.target and tried.source.namespace is not None:
            return PolicyVerdict(True, "a pod always reaches itself")
        ends: tuple[tuple[Direction, NetworkEndpoint, NetworkEndpoint], ...] = (
            ("Egress", tried.source, tried.target),
            ("Ingress", tried.target, tried.source),
        )
        verdicts = [self._end(direction, own, other, tried) for direction, own, other in ends]
        return next((verdict for verdict in verdicts if not verdict.allowed), verdicts[-1])

    def _end(
        self, direction: Direction, own: NetworkEndpoint, other: NetworkEndpoint, tried: AttemptedConnection
    ) -> PolicyVerdict:
        isolating = [policy for policy in self.policies if isolates(policy, direction, own)]
        if not isolating:
            return PolicyVerdict(True, f"no policy isolates it for {direction}")
        allowing = [_name(policy) for policy in isolating if self._allows(policy, direction, other, tried)]
        if allowing:
            return PolicyVerdict(True, f"{direction} by {', '.join(allowing)}")
        return PolicyVerdict(False, f"no {direction} in {', '.join(map(_name, isolating))}")

    def _allows(
        self, policy: Manifest, direction: Direction, other: NetworkEndpoint, tried: AttemptedConnection
    ) -> bool:
        peers = "to" if direction == "Egress" else "from"
        own_namespace = policy["metadata"]["namespace"]
        return any(
            _any(rule.get(peers), lambda peer: self._is_peer(peer, own_namespace, other))
            and _any(rule.get("ports"), lambda port: _is_port(port, tried))
            for rule in policy["spec"].get(direction.lower()) or ()
        )

    def _is_peer(self, peer: Manifest, own_namespace: str, other: NetworkEndpoint) -> bool:
        if "ipBlock" in peer:
            return in_block(peer["ipBlock"], other.address)
        if other.namespace is None:
            return False
        if "namespaceSelector" in peer:
            near = matches(peer["namespaceSelector"], self.namespaces[other.namespace])
        else:
            near = other.namespace == own_namespace
        return near and matches(peer.get("podSelector") or {}, other.labels)


def isolates(policy: Manifest, direction: Direction, pod: NetworkEndpoint) -> bool:
    """Whether a policy selects a pod, for this direction."""
    spec = policy["spec"]
    implied = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
    if direction not in (spec.get("policyTypes") or implied):
        return False
    return policy["metadata"]["namespace"] == pod.namespace and matches(spec.get("podSelector") or {}, pod.labels)


def matches(selector: Manifest, labels: Mapping[str, str]) -> bool:
    """Whether labels meet all that a label selector asks for; an empty selector asks for nothing."""
    exact = selector.get("matchLabels") or {}
    requirements = selector.get("matchExpressions") or ()
    return all(labels.get(key) == value for key, value in exact.items()) and all(
        _meets(one, labels) for one in requirements
    )


def _meets(requirement: Manifest, labels: Mapping[str, str]) -> bool:
    key, values = requirement["key"], requirement.get("values") or ()
    tests: dict[str, Callable[[], bool]] = {
        "In": lambda: labels.get(key) in values,
        "NotIn": lambda: labels.get(key) not in values,
        "Exists": lambda: key in labels,
        "DoesNotExist": lambda: key not in labels,
    }
    return tests[requirement["operator"]]()


def in_block(block: Manifest, address: str) -> bool:
    """Whether an address is in an ipBlock and in none of its exceptions."""
    pod_address = ip_address(address)
    return pod_address in ip_network(block["cidr"]) and not any(
        pod_address in ip_network(one) for one in block.get("except") or ()
    )


def _is_port(asked: Manifest, tried: AttemptedConnection) -> bool:
    if asked.get("protocol", "TCP") != tried.protocol:
        return False
    first = asked.get("port")
    if first is None:
        return True
    if isinstance(first, str):
        return tried.target.ports.get((first, tried.protocol)) == tried.port
    return bool(first <= tried.port <= asked.get("endPort", first))


def _any(asked: Iterable[Manifest] | None, meets: Callable[[Manifest], bool]) -> bool:
    """Whether one of a rule's peers or ports meets; a rule that names none means all."""
    listed = list(asked or ())
    return not listed or any(map(meets, listed))


def _name(policy: Manifest) -> str:
    return str(policy["metadata"]["name"])
