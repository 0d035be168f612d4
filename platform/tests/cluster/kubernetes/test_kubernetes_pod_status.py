"""What pods' objects mean; ``real_pods.json`` was recorded on Kubernetes 1.34 (containerd), one object a label."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from edl.api.cluster_port import PodPhase, Role, TerminationCause
from edl.cluster.kubernetes import pod_status

REAL: dict[str, Any] = json.loads(Path(__file__).with_name("real_pods.json").read_text())
PENDING, RUNNING, GONE, FAILED, SUCCEEDED = (
    PodPhase.PENDING,
    PodPhase.RUNNING,
    PodPhase.GONE,
    PodPhase.FAILED,
    PodPhase.SUCCEEDED,
)
LEAVING, STAYS = True, False

# label: phase, exit code, reason, leaving, cause, what the message begins with
EXPECTED: dict[str, tuple[PodPhase, int | None, str, bool, TerminationCause, str]] = {
    "created": (PENDING, None, "", STAYS, TerminationCause.NONE, ""),
    "scheduled": (PENDING, None, "Scheduled", STAYS, TerminationCause.NONE, ""),
    "container is created": (PENDING, None, "ContainerCreating", STAYS, TerminationCause.NONE, ""),
    "running": (RUNNING, None, "Started", STAYS, TerminationCause.NONE, ""),
    "completed": (SUCCEEDED, 0, "Completed", STAYS, TerminationCause.NONE, ""),
    "exit code 3": (FAILED, 3, "Error", STAYS, TerminationCause.NONE, ""),
    "exit code 137 without a reason": (FAILED, 137, "Killed (SIGKILL)", STAYS, TerminationCause.NONE, ""),
    "out of memory": (FAILED, 137, "OOMKilled", STAYS, TerminationCause.OUT_OF_MEMORY, ""),
    "child of process 1 out of memory": (FAILED, 137, "OOMKilled", STAYS, TerminationCause.OUT_OF_MEMORY, ""),
    "deadline exceeded": (
        FAILED,
        143,
        "DeadlineExceeded",
        STAYS,
        TerminationCause.NONE,
        "Pod was active on the node longer",
    ),
    "init container failed": (FAILED, 9, "Error", STAYS, TerminationCause.NONE, ""),
    "program missing": (FAILED, 128, "StartError", STAYS, TerminationCause.NONE, "failed to create containerd task"),
    # told to go
    "deleted, still running": (RUNNING, None, "Started", LEAVING, TerminationCause.DELETED, ""),
    "deleted, container ended": (GONE, 143, "Deleted", STAYS, TerminationCause.DELETED, ""),
    "deleted, object removed": (GONE, 143, "Deleted", STAYS, TerminationCause.DELETED, ""),
    "deleted without having run": (
        GONE,
        None,
        "Deleted",
        STAYS,
        TerminationCause.DELETED,
        "The container could not be located",
    ),
    "removed at once, object as it was last": (RUNNING, None, "Started", LEAVING, TerminationCause.DELETED, ""),
    "about to be preempted": (RUNNING, None, "Started", STAYS, TerminationCause.NONE, "default-scheduler: preempting"),
    "preempted, still running": (
        RUNNING,
        None,
        "Started",
        LEAVING,
        TerminationCause.PREEMPTED,
        "default-scheduler: preempting",
    ),
    "preempted, container ended": (
        GONE,
        143,
        "Deleted",
        STAYS,
        TerminationCause.PREEMPTED,
        "default-scheduler: preempting",
    ),
    "preempted, object removed": (
        GONE,
        143,
        "Deleted",
        STAYS,
        TerminationCause.PREEMPTED,
        "default-scheduler: preempting",
    ),
    "eviction asked for, not yet deleted": (
        RUNNING,
        None,
        "Started",
        STAYS,
        TerminationCause.NONE,
        "Eviction API: evicting",
    ),
    "evicted through the API, still running": (
        RUNNING,
        None,
        "Started",
        LEAVING,
        TerminationCause.EVICTED,
        "Eviction API",
    ),
    "evicted through the API, container ended": (GONE, 143, "Deleted", STAYS, TerminationCause.EVICTED, "Eviction API"),
    "evicted by the kubelet": (
        FAILED,
        137,
        "Evicted",
        STAYS,
        TerminationCause.NONE,
        "Pod ephemeral local storage usage",
    ),
    "no room on its node": (FAILED, None, "OutOfcpu", STAYS, TerminationCause.EVICTED, "Pod was rejected"),
    # its node is lost, or cut off: nobody there says anything any more
    "node does not answer": (RUNNING, None, "Started", STAYS, TerminationCause.NONE, ""),
    "about to be deleted for its node's taint": (
        RUNNING,
        None,
        "Started",
        STAYS,
        TerminationCause.NONE,
        "Taint manager",
    ),
    "deleted for its node's taint, still there": (
        RUNNING,
        None,
        "Started",
        LEAVING,
        TerminationCause.NODE_LOST,
        "Taint manager",
    ),
    "deleted for its node's taint, removed by force": (
        RUNNING,
        None,
        "Started",
        LEAVING,
        TerminationCause.NODE_LOST,
        "Taint man",
    ),
    # waits
    "does not fit anywhere": (
        PENDING,
        None,
        "Unschedulable",
        STAYS,
        TerminationCause.NONE,
        "0/3 nodes are available: 3 Insuffic",
    ),
    "image cannot be pulled": (
        PENDING,
        None,
        "ErrImagePull",
        STAYS,
        TerminationCause.NONE,
        "failed to pull and unpack image",
    ),
    "image pull in back-off": (
        PENDING,
        None,
        "ImagePullBackOff",
        STAYS,
        TerminationCause.NONE,
        "Back-off pulling image",
    ),
    "ConfigMap missing": (
        PENDING,
        None,
        "CreateContainerConfigError",
        STAYS,
        TerminationCause.NONE,
        'configmap "missing" not',
    ),
}


def test_every_recorded_pod_has_its_line() -> None:
    assert EXPECTED.keys() == REAL.keys()


@pytest.mark.parametrize("label", EXPECTED)
def test_recorded_pod(label: str) -> None:
    phase, exit_code, reason, leaving, cause, message = EXPECTED[label]
    status = pod_status.read_pod_status(REAL[label])
    assert (status.phase, status.exit_code, status.reason) == (phase, exit_code, reason)
    assert (status.leaving, status.cause) == (leaving, cause)
    assert status.message.startswith(message)
    assert bool(status.message) == bool(message)
    assert status.role == Role.WORKER
    assert status.node == REAL[label]["spec"].get("nodeName", "")


@pytest.mark.parametrize("label", EXPECTED)
def test_only_pods_of_lost_nodes_are_unreachable(label: str) -> None:
    lost = "node does not answer" in label or "for its node's taint" in label
    assert bool(pod_status.read_pod_status(REAL[label]).unreachable_since) == lost


def test_a_pod_that_its_kubelet_says_is_not_ready_is_not_unreachable() -> None:
    """Its readiness probe fails, or a container of somebody else's is restarted: the kubelet says why."""
    false = {"status": "False", "lastTransitionTime": "2026-01-31T12:00:00Z"}
    for ready, containers in (
        ({**false, "reason": "ContainersNotReady"}, "False"),
        ({**false, "reason": "ReadinessGatesNotReady"}, "True"),
        (false, "False"),
    ):
        conditions = [{"type": "Ready", **ready}, {"type": "ContainersReady", "status": containers}]
        assert pod_status.read_pod_status(running(conditions=conditions)).unreachable_since == 0
    lost = [{"type": "Ready", **false}, {"type": "ContainersReady", "status": "True"}]
    assert pod_status.read_pod_status(running(conditions=lost)).unreachable_since == 1769860800


@pytest.mark.parametrize("label", [label for label in EXPECTED if "deletionTimestamp" in REAL[label]["metadata"]])
def test_deletion_that_the_master_asked_for_has_no_cause(label: str) -> None:
    assert pod_status.read_pod_status(REAL[label], deletion_requested=True).cause == TerminationCause.NONE


def running(**status: Any) -> dict[str, Any]:
    pod = copy.deepcopy(REAL["running"])
    pod["status"] |= status
    return pod


def disrupted(reason: str, status: str = "True") -> list[dict[str, str]]:
    return [{"type": "DisruptionTarget", "status": status, "reason": reason, "message": "words"}]


def terminated(code: int, reason: str = "Error", message: str = "") -> list[dict[str, Any]]:
    return [{"name": "edl", "state": {"terminated": {"exitCode": code, "reason": reason, "message": message}}}]


NOISE = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1763748000.123456       1 port.cc:153] oneDNN custom operations are on.
2026-11-21 18:00:00.654321: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary is optimized
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow
"""


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (NOISE, ""),
        ("", ""),
        (f"{NOISE}Traceback (most recent call last):\n  File 'm.py', line 1\nKeyError: 'x'\n", "KeyError: 'x'"),
        ("KeyError: 'x'\n" + NOISE, "KeyError: 'x'"),
        ("/data/0.rec: it is damaged\n  Copy it again.\n", "/data/0.rec: it is damaged"),
        ('exec: "edl-role": not found', 'exec: "edl-role": not found'),
    ],
)
def test_of_a_containers_last_words_the_line_that_says_why(said: str, line: str) -> None:
    assert pod_status.read_pod_status(running(containerStatuses=terminated(1, message=said))).message == line


@pytest.mark.parametrize(("code", "reason"), [(137, "OOMKilled"), (137, "Error"), (143, "Error"), (1, "OOMKilled")])
def test_what_was_killed_did_not_know_why(code: int, reason: str) -> None:
    words = f"{NOISE}step 3 done\n"
    assert pod_status.read_pod_status(running(containerStatuses=terminated(code, reason, words))).message == ""


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("DeletionByTaintManager", TerminationCause.NODE_LOST),
        ("DeletionByPodGC", TerminationCause.NODE_LOST),
        ("PreemptionByScheduler", TerminationCause.PREEMPTED),
        ("SomethingNew", TerminationCause.EVICTED),
    ],
)
def test_disruption_names_the_cause(reason: str, cause: TerminationCause) -> None:
    pod = running(conditions=disrupted(reason))
    pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}
    assert (pod_status.read_pod_status(pod).leaving, pod_status.read_pod_status(pod).cause) == (True, cause)


def test_disruption_that_was_taken_back_is_none() -> None:
    pod = running(conditions=disrupted("PreemptionByScheduler", "False"), containerStatuses=terminated(1))
    assert pod_status.read_pod_status(pod).cause == TerminationCause.NONE


def test_kubelet_that_ends_a_pod_without_deletion_makes_it_leave() -> None:
    """Under pressure and at a node's shutdown the condition comes first, the end later, a deletion never."""
    pod = running(conditions=disrupted("TerminationByKubelet"))
    assert (pod_status.read_pod_status(pod).leaving, pod_status.read_pod_status(pod).cause) == (
        True,
        TerminationCause.EVICTED,
    )
    pod["status"] |= {"phase": "Failed", "reason": "Terminated", "containerStatuses": terminated(143)}
    status = pod_status.read_pod_status(pod)
    assert (status.phase, status.exit_code, status.reason, status.cause) == (
        FAILED,
        143,
        "Terminated",
        TerminationCause.EVICTED,
    )


def test_end_of_the_role_counts_though_a_sidecar_goes_on() -> None:
    sidecar = {"name": "mesh", "state": {"running": {}}}
    assert (
        pod_status.read_pod_status(running(containerStatuses=[sidecar, *terminated(0, "Completed")])).phase == SUCCEEDED
    )
    assert pod_status.read_pod_status(running(containerStatuses=[*terminated(3), sidecar])).phase == FAILED
    assert pod_status.read_pod_status(
        running(containerStatuses=[{"name": "mesh", "state": {"terminated": {"exitCode": 1}}}])
    ).phase == (RUNNING)


def test_exit_code_of_a_lost_container_is_not_known() -> None:
    status = pod_status.read_pod_status(
        running(phase="Failed", containerStatuses=terminated(137, "ContainerStatusUnknown"))
    )
    assert (status.phase, status.exit_code) == (FAILED, None)


def test_memory_shortage_that_the_role_survived_is_none() -> None:
    status = pod_status.read_pod_status(running(phase="Succeeded", containerStatuses=terminated(0, "OOMKilled")))
    assert (status.phase, status.cause) == (SUCCEEDED, TerminationCause.NONE)


def test_pod_without_status_is_pending() -> None:
    pod = copy.deepcopy(REAL["created"])
    del pod["status"]
    assert pod_status.read_pod_status(pod).phase == PENDING


@pytest.mark.parametrize("labels", [{}, {"edl.dev/role": "worker"}, {"edl.dev/role": "x", "edl.dev/index": "0"}, None])
def test_pod_without_place_in_the_job_is_refused(labels: dict[str, str] | None) -> None:
    pod = copy.deepcopy(REAL["running"])
    pod["metadata"]["labels"] = labels
    with pytest.raises(ValueError):
        pod_status.read_pod_status(pod)


def test_object_that_is_gone() -> None:
    alive = pod_status.read_pod_status(REAL["running"])
    assert (pod_status.removed_pod_status(alive).phase, pod_status.removed_pod_status(alive).cause) == (
        GONE,
        TerminationCause.DELETED,
    )
    assert pod_status.removed_pod_status(alive, deletion_requested=True).cause == TerminationCause.NONE
    leaving = pod_status.read_pod_status(REAL["preempted, still running"])
    assert (pod_status.removed_pod_status(leaving).cause, pod_status.removed_pod_status(leaving).leaving) == (
        TerminationCause.PREEMPTED,
        False,
    )
    ended = pod_status.read_pod_status(REAL["exit code 3"])
    assert pod_status.removed_pod_status(ended) == ended
