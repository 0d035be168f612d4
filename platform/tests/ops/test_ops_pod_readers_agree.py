"""What the master, `edl submit` and `edl status` say of one pod fits together: all of them ask one reader."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from edl.api.cluster_port import PodPhase, TerminationCause
from edl.cluster.kubernetes import names, resource_kinds
from edl.cluster.kubernetes.pod_status import is_pod_over, read_pod_status, role_container
from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.ops.job_submission import MasterStage, classify_master_pod
from edl.ops.pod_logs import LogSelection, select_log_pods
from edl.ops.pod_problems import find_pod_problem

ROLE = names.ROLE_CONTAINER


def pod(name: str = "p", **status: Any) -> Manifest:
    return {
        "metadata": {
            "name": name,
            "uid": f"u-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {names.ROLE_LABEL: "worker", names.INDEX_LABEL: "0"},
        },
        "spec": {"nodeName": "n1"},
        "status": status,
    }


def container(state: Manifest, name: str = ROLE, last: Manifest | None = None) -> Manifest:
    return {"name": name, "image": "i:1", "state": state, "lastState": last or {}}


def waiting(reason: str, message: str = "") -> Manifest:
    return {"waiting": {"reason": reason, "message": message}}


def ended_pod(code: int, reason: str = "Error", message: str = "") -> Manifest:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


RUNNING: Manifest = {"running": {}}


def test_the_end_of_a_sidecar_is_not_the_end_of_the_pod() -> None:
    pod_manifest = pod(phase="Running", containerStatuses=[container(ended_pod(1), "agent"), container(RUNNING)])
    assert not read_pod_status(pod_manifest).has_ended
    assert find_pod_problem(pod_manifest) is None
    assert classify_master_pod(pod_manifest).stage is MasterStage.RUNNING


def test_the_end_of_the_role_is_the_end_of_the_pod_whatever_a_sidecar_does() -> None:
    pod_manifest = pod(
        phase="Running", containerStatuses=[container(RUNNING, "agent"), container(ended_pod(3, message="no disk"))]
    )
    status, problem, master = (
        read_pod_status(pod_manifest),
        find_pod_problem(pod_manifest),
        classify_master_pod(pod_manifest),
    )
    assert (status.phase, status.exit_code, status.message) == (PodPhase.FAILED, 3, "no disk")
    assert problem is not None
    assert problem.is_final
    assert "no disk" in problem.text
    assert (master.stage, master.exit_code, master.message) == (MasterStage.FAILED, 3, "no disk")


def test_nobody_believes_the_exit_code_of_a_lost_container() -> None:
    pod_manifest = pod(phase="Failed", containerStatuses=[container(ended_pod(137, "ContainerStatusUnknown"))])
    assert read_pod_status(pod_manifest).exit_code is None
    assert classify_master_pod(pod_manifest).exit_code is None
    problem = find_pod_problem(pod_manifest)
    assert problem is not None
    assert "137" not in problem.text


def test_an_init_container_that_failed_is_the_end_of_the_pod() -> None:
    pod_manifest = pod(
        phase="Failed",
        initContainerStatuses=[container(ended_pod(4), "fetch")],
        containerStatuses=[container(waiting("PodInitializing"))],
    )
    assert read_pod_status(pod_manifest).exit_code == 4
    assert classify_master_pod(pod_manifest).exit_code == 4
    problem = find_pod_problem(pod_manifest)
    assert problem is not None
    assert "4" in problem.text


@pytest.mark.parametrize(
    ("state", "in_vain"),
    [
        (waiting("ErrImagePull"), False),
        (waiting("ImagePullBackOff"), True),
        (waiting("ImageInspectError"), True),
        (waiting("CreateContainerConfigError", 'secret "s" not found'), True),
        # The kubelet has not seen the Secret yet that was made a moment ago.
        (waiting("CreateContainerConfigError", "failed to sync secret cache: timed out"), False),
    ],
)
def test_commands_agree_on_which_waiting_is_in_vain(state: Manifest, in_vain: bool) -> None:
    pod_manifest = pod(phase="Pending", containerStatuses=[container(state)])
    problem = find_pod_problem(pod_manifest)
    assert problem is not None
    assert problem.is_final == in_vain
    assert (classify_master_pod(pod_manifest).stage is MasterStage.FAILED) == in_vain
    assert not read_pod_status(pod_manifest).has_ended


def test_what_the_scheduler_says_is_read_once_it_has_refused() -> None:
    refused = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 Insufficient cpu."}
    pod_manifest = pod(phase="Pending", conditions=[refused])
    problem, master = find_pod_problem(pod_manifest), classify_master_pod(pod_manifest)
    assert problem is not None
    assert read_pod_status(pod_manifest).reason == master.reason == problem.reason == "Unschedulable"
    assert master.stage is MasterStage.PENDING


def test_a_process_that_was_killed_did_not_know_of_it_and_an_error_is_quoted_without_noise() -> None:
    noisy = "Traceback:\n  File\nValueError: bad\n2026-01-01 00:00:00.1: I tensorflow/x.cc] bye\n"
    pod_manifest = pod(phase="Failed", containerStatuses=[container(ended_pod(1, message=noisy))])
    problem = find_pod_problem(pod_manifest)
    assert problem is not None
    assert read_pod_status(pod_manifest).message == problem.cluster_message == "ValueError: bad"


def test_logs_are_read_from_the_pod_whose_role_has_run_not_its_sidecar() -> None:
    beside = pod("beside", phase="Pending", containerStatuses=[container(RUNNING, "agent"), container(waiting(""))])
    ran = pod("ran", phase="Running", containerStatuses=[container(RUNNING, "agent"), container(RUNNING)])
    role = read_pod_status(ran).role
    for pods in ([beside, ran], [ran, beside]):
        (chosen,) = select_log_pods(pods, LogSelection(role, 0))
        assert chosen is ran
    own = role_container(beside)
    assert own is not None
    assert not own.has_run


def test_lack_of_memory_is_called_so_by_all() -> None:
    pod_manifest = pod(phase="Failed", containerStatuses=[container(ended_pod(137, "OOMKilled"))])
    problem = find_pod_problem(pod_manifest)
    assert read_pod_status(pod_manifest).cause is TerminationCause.OUT_OF_MEMORY
    assert problem is not None
    assert problem.reason == classify_master_pod(pod_manifest).reason == "OOMKilled"
    assert is_pod_over(pod_manifest)


def test_only_the_readers_know_the_field_that_says_an_object_is_being_deleted() -> None:
    package = Path(resource_kinds.__file__).parents[2]
    readers = {
        path.name
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value == "deletionTimestamp"
    }
    assert readers == {"resource_kinds.py"}


@pytest.mark.parametrize("meta", [{}, {"deletionTimestamp": None}, {"deletionTimestamp": ""}])
def test_an_object_without_a_deletion_time_stays(meta: dict[str, str | None]) -> None:
    assert not resource_kinds.is_being_deleted({"metadata": meta})
