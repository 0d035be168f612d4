"""The scheduler's and the kubelet's own words, and what they are called for people."""

from __future__ import annotations

import pytest
from support.job_objects import container, unscheduled
from support.job_objects import ran as running
from support.text_keys import missing_keys

from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.ops.pod_problems import find_pod_problem

PREEMPTION = " preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."
TAINT = "1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }"


@pytest.mark.parametrize(
    ("said", "keys", "remedy", "final"),
    [
        (
            "0/3 nodes are available: 3 Insufficient cpu.",
            ("3 of 3 nodes", "cpu"),
            "resources.cpu",
            False,
        ),
        (
            f"0/3 nodes are available: {TAINT}, 2 Insufficient memory.{PREEMPTION}",
            ("1 of 3 nodes", "node-role.kubernetes.io/control-plane", "2 of 3 nodes", "memory"),
            "pod.tolerations",
            False,
        ),
        (
            "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu. no new claims to "
            "deallocate, preemption: not eligible due to preemptionPolicy=Never.",
            ("1 of 3 nodes", "taint", "2 of 3 nodes", "cpu"),
            "pod.tolerations",
            False,
        ),
        (
            "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.",
            ("2 of 2 nodes",),
            "pod.node_selector",
            False,
        ),
        (
            "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
            ("1 of 1 nodes", "nvidia.com/gpu"),
            "",
            False,
        ),
        (
            "0/1 nodes are available: 1 node(s) were unschedulable.",
            ("1 of 1 nodes", "cordoned"),
            "",
            False,
        ),
        ("0/1 nodes are available: 1 some new reason.", ("1 of 1 nodes", "some new reason"), "", False),
        (
            '0/3 nodes are available: persistentvolumeclaim "files" not found. not found',
            ("PersistentVolumeClaim files",),
            "claim",
            True,
        ),
        (
            "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
            ("PersistentVolumeClaim", "volume"),
            "edl doctor",
            False,
        ),
        (
            "0/3 nodes are available: 3 Insufficient cpu. no new claims to deallocate, preemption: not eligible due to "
            "preemptionPolicy=Never.",
            ("3 of 3 nodes", "cpu"),
            "resources.cpu",
            False,
        ),
        ("something else", ("something else",), "", False),
    ],
)
def test_what_the_scheduler_says(said: str, keys: tuple[str, ...], remedy: str, final: bool) -> None:
    wait = find_pod_problem({"metadata": {}, "spec": {}, "status": unscheduled(said)})
    assert wait is not None
    assert (wait.is_final, wait.cluster_message) == (final, said)
    assert not missing_keys(wait.text, *keys)
    assert remedy in wait.remedy


@pytest.mark.parametrize(
    ("status", "reason", "keys", "final"),
    [
        (
            container(waiting={"reason": "ErrImagePull", "message": "no route"}),
            "ErrImagePull",
            ("image", "img:1", "no route"),
            False,
        ),
        (
            container(waiting={"reason": "ImagePullBackOff"}),
            "ImagePullBackOff",
            ("image", "img:1"),
            True,
        ),
        (
            container(waiting={"reason": "RunContainerError", "message": 'exec: "edl-role": not found'}),
            "RunContainerError",
            ("container", 'exec: "edl-role": not found'),
            True,
        ),
        (
            container(terminated={"exitCode": 2, "reason": "Error", "message": "bad spec\n"}),
            "Error",
            ("exit code 2", "bad spec"),
            True,
        ),
        (
            container(terminated={"exitCode": 137, "reason": "OOMKilled"}),
            "OOMKilled",
            ("memory",),
            True,
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
            "Evicted",
            ("The node was low on resource: memory.",),
            True,
        ),
        ({"phase": "Pending"}, "Pending", ("scheduler",), False),
    ],
)
def test_what_the_kubelet_says(status: Manifest, reason: str, keys: tuple[str, ...], final: bool) -> None:
    wait = find_pod_problem({"metadata": {}, "spec": {}, "status": status})
    assert wait is not None
    assert (wait.reason, wait.is_final) == (reason, final)
    assert not missing_keys(wait.text, *keys)


def test_a_crash_loop_says_how_it_ended_last() -> None:
    status = container(waiting={"reason": "CrashLoopBackOff", "message": "back-off 10s"})
    status["containerStatuses"][0]["lastState"] = {"terminated": {"exitCode": 1, "message": "no such module"}}
    wait = find_pod_problem({"metadata": {}, "spec": {}, "status": status})
    assert wait is not None
    assert not missing_keys(wait.text, "crashes", "exit code 1", "no such module")


def test_a_pod_with_a_node_is_being_made() -> None:
    status = container(waiting={"reason": "ContainerCreating"})
    wait = find_pod_problem({"metadata": {}, "spec": {"nodeName": "n1"}, "status": status})
    assert wait is not None
    assert not missing_keys(wait.text, "node n1", "container")


@pytest.mark.parametrize("status", [{"phase": "Running", **running()}, {"phase": "Succeeded"}])
def test_what_runs_or_is_done_waits_for_nothing(status: Manifest) -> None:
    assert find_pod_problem({"metadata": {}, "spec": {}, "status": status}) is None
