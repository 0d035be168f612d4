"""Forecasts how much of a job would start at once, by the free capacity of nodes and by quotas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from edl.api.cluster_port import Role
from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.ops.cluster_capacity import PODS_RESOURCE, ClusterCapacity, PodPlacement, matches_expression, pod_requests
from edl.ops.resource_quantities import (
    ResourceAmounts,
    parse_quantity,
    parse_resources,
    subtract_resources,
    sum_resources,
)

# --------------------------------------------------------------------------------------------------
# The remaining amounts of a namespace's ResourceQuotas, and how many pods of a job they admit now.


_SCOPE_MATCHES = {"NotTerminating": True, "NotBestEffort": True, "Terminating": False, "BestEffort": False}
"""The scopes that EDL's pods match: they have requests and no deadline."""


@dataclass(frozen=True, slots=True)
class QuotaRefusal:
    """A quota that does not admit one more pod.

    Attributes:
        quota: name of the quota.
        resource: the resource as the quota names it, such as ``requests.cpu``.
        requested_amount: the pod's request.
        remaining_amount: the remaining amount of the quota.
    """

    quota: str
    resource: str
    requested_amount: Fraction
    remaining_amount: Fraction


class NamespaceQuotas:
    """The quotas of a namespace with their remaining amounts; ``admit_pod`` reduces them."""

    def __init__(self, quotas: Iterable[Manifest]) -> None:
        self._quotas = list(quotas)
        self._remaining_amounts = {
            quota["metadata"]["name"]: subtract_resources(
                _hard_limits(quota), parse_resources(quota.get("status", {}).get("used"))
            )
            for quota in self._quotas
        }
        self._initial_room = dict(self._remaining_amounts)

    def __bool__(self) -> bool:
        return bool(self._quotas)

    def remaining_amounts(self) -> list[tuple[str, Mapping[str, Fraction], Mapping[str, Fraction]]]:
        """Name, remaining amounts and limits of each quota."""
        named = ((quota["metadata"]["name"], quota) for quota in self._quotas)
        return [(name, self._remaining_amounts[name], _hard_limits(quota)) for name, quota in named]

    def initial_room(self, quota: str, resource: str) -> Fraction:
        """The amount that a quota leaves before the job; at least 0."""
        room: Fraction = max(Fraction(), self._initial_room[quota][resource])
        return room

    def requested_amount(self, quota: str, resource: str, pods: Iterable[Manifest]) -> Fraction:
        """The amount that the pods would use of a quota; pods outside its scope use none."""
        (counting,) = (each for each in self._quotas if each["metadata"]["name"] == quota)
        uses = [quota_usage(pod) for pod in pods if _applies_to(counting, pod)]
        return sum_resources(uses).get(resource, Fraction())

    def admit_pod(self, pod: Manifest) -> QuotaRefusal | None:
        """Reserve the usage of a pod, or return the quota that refuses it."""
        uses = quota_usage(pod)
        counted = [quota for quota in self._quotas if _applies_to(quota, pod)]
        for quota in counted:
            name = quota["metadata"]["name"]
            for resource, left in self._remaining_amounts[name].items():
                if uses.get(resource, 0) > left:
                    return QuotaRefusal(name, resource, uses[resource], left)
        for quota in counted:
            name = quota["metadata"]["name"]
            self._remaining_amounts[name] = subtract_resources(self._remaining_amounts[name], uses)
        return None


def quota_usage(pod: Manifest) -> dict[str, Fraction]:
    """The usage of a pod in a quota, by resource."""
    requests = pod_requests(pod)
    limits = sum_resources(
        parse_resources((part.get("resources") or {}).get("limits")) for part in pod["spec"]["containers"]
    )
    usage = {f"requests.{name}": amount for name, amount in requests.items() if name != "pods"}
    usage |= {f"limits.{name}": amount for name, amount in limits.items()}
    plain: dict[str, Fraction] = {
        name: requests[name] for name in ("cpu", "memory", "ephemeral-storage") if name in requests
    }
    return {**usage, **plain, "pods": Fraction(1), "count/pods": Fraction(1)}


def _hard_limits(quota: Manifest) -> dict[str, Fraction]:
    status = quota.get("status", {}).get("hard")
    return {name: parse_quantity(amount) for name, amount in (status or quota["spec"].get("hard") or {}).items()}


def _applies_to(quota: Manifest, pod: Manifest) -> bool:
    """Whether the pod is in the quota's scope."""
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


_HIDDEN_RESOURCE = "ephemeral-storage"
"""Every pod requests the same small amount of it, so plans leave it out."""


@dataclass(frozen=True, slots=True)
class PodGroup:
    """The pods of one kind that a job requests, as the server admits them."""

    role: Role
    count: int
    pod: Manifest


@dataclass(frozen=True, slots=True)
class GroupPlacement:
    """The placement of a group of pods.

    Attributes:
        group: the group.
        requests_per_pod: requests of one pod.
        allowed_pods: number of pods that the quotas admit.
        placed_pods: number of these that fit now; None if the nodes are not known.
        lacking_resources: resources that are insufficient for the first pod that waits.
        may_preempt: whether Kubernetes may preempt pods of lower priority for the first that waits.
        quota_refusal: the quota that refuses the first pod that is not admitted.
        never_fits_reason: why such a pod can never start on today's nodes; empty if it can, None if
            the nodes are not known.
    """

    group: PodGroup
    requests_per_pod: ResourceAmounts
    allowed_pods: int
    placed_pods: int | None
    lacking_resources: tuple[str, ...] = ()
    may_preempt: bool = False
    quota_refusal: QuotaRefusal | None = None
    never_fits_reason: str | None = None

    @property
    def immediate_pods(self) -> int:
        """The number of pods that start at once, as far as known."""
        return self.allowed_pods if self.placed_pods is None else self.placed_pods


@dataclass(frozen=True, slots=True)
class JobForecast:
    """The forecast of a whole job.

    Attributes:
        placements: placement of each group, in the order in which the job requests them.
        free_resources: free capacity of the nodes that the job's pods may use, without the job; None if the
            nodes are not known.
        node_counts: number of usable nodes and of all nodes; None if they are not known.
    """

    placements: tuple[GroupPlacement, ...]
    free_resources: ResourceAmounts | None = None
    node_counts: tuple[int, int] | None = None

    @property
    def requested_resources(self) -> ResourceAmounts:
        """The requests of all pods of the job."""
        parts = (
            {name: amount * fit.group.count for name, amount in fit.requests_per_pod.items()} for fit in self.placements
        )
        return {name: amount for name, amount in sum_resources(parts).items() if name != PODS_RESOURCE}

    def placements_for_role(self, role: Role) -> list[GroupPlacement]:
        return [fit for fit in self.placements if fit.group.role is role]


def forecast_job(groups: Sequence[PodGroup], capacity: ClusterCapacity | None, quotas: NamespaceQuotas) -> JobForecast:
    """Place the groups in order; reduces ``capacity`` and ``quotas``."""
    free = nodes = None
    if capacity is not None:
        free, nodes = (
            _relevant_resources(capacity.free_for_pod(groups[-1].pod), groups),
            (capacity.nodes_usable, capacity.nodes_total),
        )
    return JobForecast(tuple(_place_group(group, capacity, quotas) for group in groups), free, nodes)


def _place_group(group: PodGroup, capacity: ClusterCapacity | None, quotas: NamespaceQuotas) -> GroupPlacement:
    never_reason = None if capacity is None else capacity.never_fits_reason(group.pod)
    allowed, placed = 0, 0
    waiting: PodPlacement | None = None
    refusal = None
    for _ in range(group.count):
        refusal = quotas.admit_pod(group.pod)
        if refusal is not None:
            break
        allowed += 1
        if capacity is None or waiting:  # pods of a group are equal: if one does not fit, no later one does
            continue
        place = capacity.place_pod(group.pod)
        if place.node is None:
            waiting = place
        else:
            placed += 1
    requests_per_pod = {name: amount for name, amount in pod_requests(group.pod).items() if name != _HIDDEN_RESOURCE}
    return GroupPlacement(
        group=group,
        requests_per_pod=requests_per_pod,
        allowed_pods=allowed,
        placed_pods=None if capacity is None else placed,
        lacking_resources=waiting.lacking_resources if waiting else (),
        may_preempt=waiting is not None and waiting.may_preempt,
        quota_refusal=refusal,
        never_fits_reason=never_reason,
    )


def _relevant_resources(free: ResourceAmounts, groups: Sequence[PodGroup]) -> dict[str, Fraction]:
    """The free amounts of the resources that the job requests."""
    requested = set[str]().union(*(pod_requests(group.pod) for group in groups)) - {PODS_RESOURCE, _HIDDEN_RESOURCE}
    return {name: amount for name, amount in free.items() if name in requested}
