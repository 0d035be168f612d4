"""What a namespace's ResourceQuotas leave, and how many pods of a job they would let in now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.ops.cluster_capacity import pod_requests
from edl.ops.node_matching import matches_expression
from edl.ops.resource_quantities import parse_quantity, parse_resources, subtract_resources, sum_resources

_SCOPE_MATCHES = {"NotTerminating": True, "NotBestEffort": True, "Terminating": False, "BestEffort": False}
"""EDL's pods have requests and no deadline."""


@dataclass(frozen=True, slots=True)
class QuotaRefusal:
    """One quota that has no room for one more pod.

    Attributes:
        quota: its name.
        resource: as the quota calls it, such as ``requests.cpu``.
        wanted: what the pod asks for.
        left: what the quota leaves.
        hard: what it allows in all.
    """

    quota: str
    resource: str
    wanted: Fraction
    left: Fraction
    hard: Fraction


class NamespaceQuotas:
    """The quotas of a namespace with what they leave; ``admit`` takes from it."""

    def __init__(self, quotas: Iterable[Manifest]) -> None:
        self._quotas = list(quotas)
        self._remaining = {
            quota["metadata"]["name"]: subtract_resources(
                _hard_limits(quota), parse_resources(quota.get("status", {}).get("used"))
            )
            for quota in self._quotas
        }
        self._room = dict(self._remaining)

    def __bool__(self) -> bool:
        return bool(self._quotas)

    def left(self) -> list[tuple[str, Mapping[str, Fraction], Mapping[str, Fraction]]]:
        """Name, what is left and what is allowed, of each quota."""
        named = ((quota["metadata"]["name"], quota) for quota in self._quotas)
        return [(name, self._remaining[name], _hard_limits(quota)) for name, quota in named]

    def initial_room(self, quota: str, resource: str) -> Fraction:
        """What a quota leaves before the job, never less than nothing."""
        room: Fraction = max(Fraction(), self._room[quota][resource])
        return room

    def asked(self, quota: str, resource: str, pods: Iterable[Manifest]) -> Fraction:
        """What those of the pods that the quota is about would take from it."""
        (counting,) = (each for each in self._quotas if each["metadata"]["name"] == quota)
        uses = [quota_usage(pod) for pod in pods if _applies_to(counting, pod)]
        return sum_resources(uses).get(resource, Fraction())

    def admit_pod(self, pod: Manifest) -> QuotaRefusal | None:
        """Take what a pod uses, or say which quota has no room for it."""
        uses = quota_usage(pod)
        counted = [quota for quota in self._quotas if _applies_to(quota, pod)]
        for quota in counted:
            name = quota["metadata"]["name"]
            for resource, left in self._remaining[name].items():
                if uses.get(resource, 0) > left:
                    return QuotaRefusal(name, resource, uses[resource], left, _hard_limits(quota)[resource])
        for quota in counted:
            name = quota["metadata"]["name"]
            self._remaining[name] = subtract_resources(self._remaining[name], uses)
        return None


def quota_usage(pod: Manifest) -> dict[str, Fraction]:
    """What a pod counts for in a quota."""
    requests = pod_requests(pod)
    limits = sum_resources(
        parse_resources((part.get("resources") or {}).get("limits")) for part in pod["spec"]["containers"]
    )
    found = {f"requests.{name}": amount for name, amount in requests.items() if name != "pods"}
    found |= {f"limits.{name}": amount for name, amount in limits.items()}
    plain: dict[str, Fraction] = {
        name: requests[name] for name in ("cpu", "memory", "ephemeral-storage") if name in requests
    }
    return {**found, **plain, "pods": Fraction(1), "count/pods": Fraction(1)}


def _hard_limits(quota: Manifest) -> dict[str, Fraction]:
    status = quota.get("status", {}).get("hard")
    return {name: parse_quantity(amount) for name, amount in (status or quota["spec"].get("hard") or {}).items()}


def _applies_to(quota: Manifest, pod: Manifest) -> bool:
    """Whether the quota is about such pods."""
    spec = quota["spec"]
    if not all(_SCOPE_MATCHES.get(scope, True) for scope in spec.get("scopes") or ()):
        return False
    return _matches_scope((spec.get("scopeSelector") or {}).get("matchExpressions") or (), pod)


def _matches_scope(expressions: Sequence[Mapping[str, Any]], pod: Manifest) -> bool:
    classes = [expression for expression in expressions if expression["scopeName"] == "PriorityClass"]
    others = [expression for expression in expressions if expression["scopeName"] != "PriorityClass"]
    priority = pod["spec"].get("priorityClassName")
    return all(matches_expression(expression, priority) for expression in classes) and all(
        _SCOPE_MATCHES.get(expression["scopeName"], True) for expression in others
    )
