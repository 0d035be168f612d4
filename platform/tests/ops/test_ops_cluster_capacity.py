from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.text_keys import missing_keys

from edl.api.cluster_port import Role
from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.ops.cluster_capacity import ClusterCapacity, pod_requests
from edl.ops.job_forecast import NamespaceQuotas, PodGroup, forecast_job

HIGH, LOW = 1000, 100


def node(
    name: str, cpu: str = "4", memory: str = "8Gi", pods: str = "110", ready: str = "True", **more: Any
) -> Manifest:
    status = {
        "allocatable": {"cpu": cpu, "memory": memory, "pods": pods, **more.pop("devices", {})},
        "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}],
    }
    return {"metadata": {"name": name, "labels": more.pop("labels", {})}, "spec": more, "status": status}


def pod(
    cpu: str = "1", memory: str = "1Gi", priority: int = LOW, on: str = "", name: str = "p", **spec: Any
) -> Manifest:
    return {
        "metadata": {"name": name, "namespace": "other"},
        "spec": {
            "containers": [{"resources": {"requests": {"cpu": cpu, "memory": memory, **spec.pop("more", {})}}}],
            "priority": priority,
            "priorityClassName": "high" if priority == HIGH else "low",
            **({"nodeName": on} if on else {}),
            **spec,
        },
        "status": {"phase": "Running" if on else "Pending"},
    }


def fill(room: ClusterCapacity, wanted: Manifest) -> list[str]:
    """The nodes that take one pod after the other, until none does."""
    nodes = []
    while (placement := room.place_pod(wanted)).node is not None:
        nodes.append(placement.node)
    return nodes


def test_pods_go_where_most_is_free_until_all_is_full() -> None:
    room = ClusterCapacity([node("a"), node("b", cpu="2")], [])
    nodes = fill(room, pod())
    assert sorted(nodes) == ["a", "a", "a", "a", "b", "b"]
    assert set(nodes[:2]) == {"a", "b"}
    assert room.place_pod(pod()).lacking_resources == ("cpu",)


def test_pods_that_run_take_room_and_ended_or_unplaced_ones_do_not() -> None:
    ended = pod(on="a") | {"status": {"phase": "Succeeded"}}
    assert len(fill(ClusterCapacity([node("a")], [pod("3", on="a"), ended, pod("9")]), pod())) == 1


@pytest.mark.parametrize(
    "hindrance",
    [
        node("a", ready="False"),
        node("a", ready="Unknown"),
        node("a", unschedulable=True),
        node("a", taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]),
        node("a", taints=[{"key": "gpu", "effect": "NoExecute"}]),
        node("a", pods="0"),
        node("a", memory="1Mi"),
    ],
)
def test_nodes_that_take_no_such_pods_are_left_out(hindrance: Manifest) -> None:
    room = ClusterCapacity([hindrance], [])
    assert room.place_pod(pod()).node is None
    assert room.nodes_total == 1


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_tolerations_open_tainted_nodes(toleration: Mapping[str, str], tolerates: bool) -> None:
    room = ClusterCapacity([node("a", taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])], [])
    assert (room.place_pod(pod(tolerations=[toleration])).node == "a") is tolerates


@pytest.mark.parametrize(
    ("expression", "admitted"),
    [
        ({"key": "zone", "operator": "In", "values": ["x", "y"]}, True),
        ({"key": "zone", "operator": "In", "values": ["y"]}, False),
        ({"key": "zone", "operator": "NotIn", "values": ["y"]}, True),
        ({"key": "zone", "operator": "Exists"}, True),
        ({"key": "zone", "operator": "DoesNotExist"}, False),
        ({"key": "size", "operator": "Gt", "values": ["3"]}, True),
        ({"key": "size", "operator": "Lt", "values": ["3"]}, False),
        ({"key": "zone", "operator": "Gt", "values": ["3"]}, False),
        ({"key": "none", "operator": "Lt", "values": ["3"]}, False),
    ],
)
def test_required_affinity_chooses_nodes(expression: Mapping[str, Any], admitted: bool) -> None:
    terms = [{"matchExpressions": [expression]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    room = ClusterCapacity([node("a", labels={"zone": "x", "size": "4"})], [])
    assert (room.place_pod(pod(affinity={"nodeAffinity": required})).node == "a") is admitted


def test_a_node_selector_chooses_nodes() -> None:
    room = ClusterCapacity([node("a"), node("b", cpu="1", labels={"disk": "ssd"})], [])
    assert fill(room, pod(nodeSelector={"disk": "ssd"})) == ["b"]


def test_devices_are_counted_like_everything() -> None:
    room = ClusterCapacity([node("a", devices={"nvidia.com/gpu": "2"}), node("b", cpu="64", memory="1Ti")], [])
    assert fill(room, pod(more={"nvidia.com/gpu": "1"})) == ["a", "a"]


@pytest.mark.parametrize(
    ("running", "wanted", "may_preempt"),
    [
        (LOW, pod(priority=HIGH), True),
        (HIGH, pod(priority=HIGH), False),
        (HIGH, pod(priority=LOW), False),
        (LOW, pod(priority=HIGH, preemptionPolicy="Never"), False),
        (LOW, pod(priority=HIGH, nodeSelector={"disk": "ssd"}), False),
    ],
)
def test_a_pod_without_room_says_whether_kubernetes_may_preempt(
    running: int, wanted: Manifest, may_preempt: bool
) -> None:
    placement = ClusterCapacity([node("a")], [pod("4", priority=running, on="a")]).place_pod(wanted)
    assert (placement.node, placement.may_preempt) == (None, may_preempt)


def test_requests_count_init_containers_sidecars_limits_and_overhead() -> None:
    wanted = {
        "spec": {
            "initContainers": [
                {"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
                {"resources": {"requests": {"cpu": "5"}}},
            ],
            "containers": [{"resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}],
            "overhead": {"cpu": "250m"},
        }
    }
    assert pod_requests(wanted) == {"cpu": Fraction(25, 4), "memory": 1 << 30, "pods": 1}


@given(st.lists(st.integers(0, 16), max_size=5), st.lists(st.tuples(st.integers(0, 4), st.integers(1, 8)), max_size=12))
def test_no_node_is_ever_given_more_than_it_has(nodes: list[int], wanted: list[tuple[int, int]]) -> None:
    room = ClusterCapacity([node(f"n{at}", cpu=str(cpu)) for at, cpu in enumerate(nodes)], [])
    used_cpu: dict[str, int] = {}
    for priority, cpu in wanted:
        placement = room.place_pod(pod(str(cpu), "0", priority, preemptionPolicy="Never"))
        if placement.node is not None:
            used_cpu[placement.node] = used_cpu.get(placement.node, 0) + cpu
        else:
            assert all(cpu > nodes[at] - used_cpu.get(f"n{at}", 0) for at in range(len(nodes)))
    assert all(cpu <= nodes[int(name[1:])] for name, cpu in used_cpu.items())


def quota(hard: Mapping[str, str], used: Mapping[str, str], **spec: Any) -> Manifest:
    return {
        "metadata": {"name": "team"},
        "spec": {"hard": hard, **spec},
        "status": {"hard": hard, "used": used},
    }


def pod_groups(workers: int = 4) -> list[PodGroup]:
    return [PodGroup(Role.PS, 1, pod(priority=HIGH)), PodGroup(Role.WORKER, workers, pod())]


def test_a_forecast_says_how_many_start_and_why_the_next_does_not() -> None:
    forecast = forecast_job(
        pod_groups(), ClusterCapacity([node("a", cpu="3")], [pod("3", on="a", name="idle")]), NamespaceQuotas(())
    )
    (ps, workers) = forecast.placements
    assert (ps.placed_pods, ps.lacking_resources, ps.may_preempt) == (0, ("cpu",), True)
    assert (workers.placed_pods, workers.immediate_pods, workers.lacking_resources, workers.may_preempt) == (
        0,
        0,
        ("cpu",),
        False,
    )
    assert forecast.requested_resources == {"cpu": 5, "memory": 5 << 30}
    assert (forecast.free_resources, forecast.node_counts) == ({"cpu": 0, "memory": 7 << 30}, (1, 1))


def test_a_forecast_without_nodes_compares_with_the_quota_only() -> None:
    quotas = NamespaceQuotas([quota({"requests.cpu": "4", "limits.cpu": "1"}, {"requests.cpu": "1"})])
    (ps, workers) = forecast_job(pod_groups(), None, quotas).placements
    assert (ps.allowed_pods, workers.allowed_pods, workers.placed_pods, workers.immediate_pods) == (1, 2, None, 2)
    refusal = workers.quota_refusal
    assert refusal is not None
    assert (refusal.quota, refusal.resource, refusal.requested_amount, refusal.remaining_amount) == (
        "team",
        "requests.cpu",
        1,
        0,
    )


@pytest.mark.parametrize(
    ("scope", "workers"),
    [
        ({"scopes": ["NotTerminating"]}, 0),
        ({"scopes": ["Terminating"]}, 4),
        ({"scopes": ["BestEffort"]}, 4),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["low"]}]
                }
            },
            0,
        ),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]
                }
            },
            4,
        ),
    ],
)
def test_quotas_count_the_pods_that_they_are_about(scope: Mapping[str, Any], workers: int) -> None:
    (placement,) = forecast_job(pod_groups()[1:], None, NamespaceQuotas([quota({"pods": "0"}, {}, **scope)])).placements
    assert placement.allowed_pods == workers


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (pod(cpu="2"), ()),
        (pod(cpu="8"), ("8 CPU", "4 CPU")),
        (pod(memory="9Gi"), ("9 GiB", "8 GiB")),
        (pod(more={"nvidia.com/gpu": "1"}), ("1 nvidia.com/gpu", "0 nvidia.com/gpu")),
        (pod(nodeSelector={"disk": "ssd"}), ("node selector",)),
    ],
)
def test_what_can_never_start_on_todays_nodes_says_why(wanted: Manifest, told: tuple[str, ...]) -> None:
    """However full they are now, and whatever passes: one is cordoned, one is not ready."""
    passing = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
    nodes = [node("a", cpu="2", memory="8Gi"), node("b", memory="1Gi", unschedulable=True, taints=passing)]
    room = ClusterCapacity([*nodes, node("c", cpu="1", ready="False")], [pod(cpu="2", on="a")])
    why = room.never_fits_reason(wanted)
    assert bool(why) == bool(told)
    assert not missing_keys(why, *told)


def test_pods_that_wait_for_others_to_end_are_not_hopeless() -> None:
    fit = forecast_job(
        [PodGroup(Role.WORKER, 3, pod())], ClusterCapacity([node("a", cpu="1")], []), NamespaceQuotas([])
    ).placements[0]
    assert (fit.placed_pods, fit.never_fits_reason) == (1, "")
    assert (
        forecast_job([PodGroup(Role.WORKER, 3, pod(cpu="9"))], None, NamespaceQuotas([]))
        .placements[0]
        .never_fits_reason
        is None
    )
