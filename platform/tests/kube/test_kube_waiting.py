"""The scheduler's and the kubelet's own words, and what they are called for people."""

from __future__ import annotations

import pytest
from published_job import container, unscheduled
from published_job import ran as running

from edl.kube.inspection.waiting import waits_for
from edl.kube.kinds import Manifest

PREEMPTION = " preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."
TAINT = "1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }"


@pytest.mark.parametrize(
    ("said", "text", "remedy", "final"),
    [
        (
            "0/3 nodes are available: 3 Insufficient cpu.",
            "on 3 of 3 nodes too little cpu is free",
            "resources.cpu",
            False,
        ),
        (
            f"0/3 nodes are available: {TAINT}, 2 Insufficient memory.{PREEMPTION}",
            "on 1 of 3 nodes the node keeps pods away that do not tolerate node-role.kubernetes.io/control-plane; "
            "on 2 of 3 nodes too little memory is free",
            "pod.tolerations",
            False,
        ),
        (
            "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu. no new claims to "
            "deallocate, preemption: not eligible due to preemptionPolicy=Never.",
            "on 1 of 3 nodes the node keeps pods away that do not tolerate its taint; "
            "on 2 of 3 nodes too little cpu is free",
            "pod.tolerations",
            False,
        ),
        (
            "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.",
            "on 2 of 2 nodes the node is not one that the job may use",
            "pod.node_selector",
            False,
        ),
        (
            "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
            "on 1 of 1 nodes too little nvidia.com/gpu is free",
            "",
            False,
        ),
        (
            "0/1 nodes are available: 1 node(s) were unschedulable.",
            "on 1 of 1 nodes the node takes no new pods (cordoned)",
            "",
            False,
        ),
        ("0/1 nodes are available: 1 some new reason.", "on 1 of 1 nodes: some new reason", "", False),
        (
            '0/3 nodes are available: persistentvolumeclaim "files" not found. not found',
            "there is no PersistentVolumeClaim files",
            "Create the claim",
            True,
        ),
        (
            "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
            "its PersistentVolumeClaim has no volume yet",
            "edl doctor",
            False,
        ),
        (
            "0/3 nodes are available: 3 Insufficient cpu. no new claims to deallocate, preemption: not eligible due to "
            "preemptionPolicy=Never.",
            "on 3 of 3 nodes too little cpu is free",
            "resources.cpu ",
            False,
        ),
        ("something else", "something else", "", False),
    ],
)
def test_what_the_scheduler_says(said: str, text: str, remedy: str, final: bool) -> None:
    wait = waits_for({"metadata": {}, "spec": {}, "status": unscheduled(said)})
    assert wait is not None
    assert (wait.text, wait.final, wait.said) == (text, final, said)
    assert remedy in wait.remedy


@pytest.mark.parametrize(
    ("status", "reason", "text", "final"),
    [
        (
            container(waiting={"reason": "ErrImagePull", "message": "no route"}),
            "ErrImagePull",
            "its image cannot be pulled (img:1): no route",
            False,
        ),
        (
            container(waiting={"reason": "ImagePullBackOff"}),
            "ImagePullBackOff",
            "its image cannot be pulled (img:1)",
            True,
        ),
        (
            container(waiting={"reason": "RunContainerError", "message": 'exec: "edl-role": not found'}),
            "RunContainerError",
            'its container cannot be started: exec: "edl-role": not found',
            True,
        ),
        (
            container(terminated={"exitCode": 2, "reason": "Error", "message": "bad spec\n"}),
            "Error",
            "it ended with exit code 2: bad spec",
            True,
        ),
        (
            container(terminated={"exitCode": 137, "reason": "OOMKilled"}),
            "OOMKilled",
            "it needed more memory than it asked for and was killed",
            True,
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
            "Evicted",
            "it failed: The node was low on resource: memory.",
            True,
        ),
        ({"phase": "Pending"}, "Pending", "the scheduler has not looked at it yet", False),
    ],
)
def test_what_the_kubelet_says(status: Manifest, reason: str, text: str, final: bool) -> None:
    wait = waits_for({"metadata": {}, "spec": {}, "status": status})
    assert wait is not None
    assert (wait.reason, wait.text, wait.final) == (reason, text, final)


def test_a_crash_loop_says_how_it_ended_last() -> None:
    status = container(waiting={"reason": "CrashLoopBackOff", "message": "back-off 10s"})
    status["containerStatuses"][0]["lastState"] = {"terminated": {"exitCode": 1, "message": "no such module"}}
    wait = waits_for({"metadata": {}, "spec": {}, "status": status})
    assert wait is not None
    assert wait.text == "its container ends again and again: exit code 1: no such module"


def test_a_pod_with_a_node_is_being_made() -> None:
    status = container(waiting={"reason": "ContainerCreating"})
    wait = waits_for({"metadata": {}, "spec": {"nodeName": "n1"}, "status": status})
    assert wait is not None
    assert wait.text.startswith("node n1 makes its container")


@pytest.mark.parametrize("status", [{"phase": "Running", **running()}, {"phase": "Succeeded"}])
def test_what_runs_or_is_done_waits_for_nothing(status: Manifest) -> None:
    assert waits_for({"metadata": {}, "spec": {}, "status": status}) is None
