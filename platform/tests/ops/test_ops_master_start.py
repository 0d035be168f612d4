from __future__ import annotations

import pytest
from support.in_memory_cluster import RUNNING, InMemoryCluster

from edl.api.cluster_port import Role
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_errors import NoResponseError
from edl.cluster.kubernetes.resource_kinds import EVENTS, PODS, Manifest
from edl.ops.job_submission import (
    START_TIMEOUT_SECONDS,
    MasterPodStatus,
    MasterStage,
    MasterStatusReader,
    classify_master_pod,
    wait_for_start,
)


def pod(status: Manifest, *, node: str = "n1") -> Manifest:
    return {"metadata": {"name": "m"}, "spec": {"nodeName": node} if node else {}, "status": status}


def container(state: Manifest, last: Manifest | None = None) -> Manifest:
    return {"containerStatuses": [{"name": "edl", "state": state, "lastState": last or {}}]}


def waiting(reason: str, message: str = "") -> Manifest:
    return {"waiting": {"reason": reason, "message": message}}


def going(pod: Manifest) -> Manifest:
    """A pod that was told to go."""
    return pod | {"metadata": pod["metadata"] | {"deletionTimestamp": "2027-01-01T00:00:00Z"}}


def terminated(code: int, message: str = "", reason: str = "Error") -> Manifest:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


UNSCHEDULABLE = {
    "phase": "Pending",
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    ],
}
TRUTH: list[tuple[Manifest | None, MasterStage, str]] = [
    (None, MasterStage.ABSENT, ""),
    (pod({"phase": "Pending"}, node=""), MasterStage.PENDING, ""),
    (pod(UNSCHEDULABLE, node=""), MasterStage.PENDING, "Unschedulable"),
    (pod({"phase": "Pending"}), MasterStage.CREATING, ""),
    (pod(container(waiting("ContainerCreating"))), MasterStage.CREATING, "ContainerCreating"),
    (
        pod(container(waiting("CreateContainerConfigError", "failed to sync secret cache"))),
        MasterStage.CREATING,
        "Create",
    ),
    *(
        (pod(container(waiting(reason))), MasterStage.FAILED, reason)
        for reason in (
            "ImagePullBackOff",
            "InvalidImageName",
            "CreateContainerConfigError",
            "CreateContainerError",
            "RunContainerError",
        )
    ),
    (pod(container(waiting("ErrImagePull", "i/o timeout"))), MasterStage.CREATING, "ErrImagePull"),
    (pod(container({"running": {}})), MasterStage.RUNNING, ""),
    (pod(container({"running": {}}, terminated(2))), MasterStage.FAILED, "Error"),
    (pod(container(waiting("CrashLoopBackOff"), terminated(1))), MasterStage.FAILED, "Error"),
    (pod(container(waiting("CrashLoopBackOff"), terminated(0))), MasterStage.CREATING, "CrashLoopBackOff"),
    (pod(container(terminated(137, reason="OOMKilled"))), MasterStage.FAILED, "OOMKilled"),
    (pod(container(terminated(0, reason="Completed"))), MasterStage.ENDED, "Completed"),
    (pod(container(terminated(143))), MasterStage.REPLACED, "Terminated"),
    (pod(container({"running": {}}, terminated(143))), MasterStage.RUNNING, ""),
    (pod(container(waiting("CrashLoopBackOff"), terminated(143))), MasterStage.CREATING, "CrashLoopBackOff"),
    (going(pod(container(terminated(137)))), MasterStage.REPLACED, "Terminated"),
    (going(pod(container({"running": {}}))), MasterStage.RUNNING, ""),
    (pod({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}), MasterStage.FAILED, "Evicted"),
]


@pytest.mark.parametrize(("seen", "stage", "reason"), TRUTH)
def test_a_pod_status_says_how_far_the_master_is(seen: Manifest | None, stage: MasterStage, reason: str) -> None:
    pod_status = classify_master_pod(seen)
    assert pod_status.stage is stage
    assert pod_status.reason.startswith(reason)
    assert pod_status.has_started == (stage in (MasterStage.RUNNING, MasterStage.ENDED))


def test_a_failed_container_is_quoted_with_its_exit_code() -> None:
    pod_status = classify_master_pod(
        pod(container(waiting("CrashLoopBackOff"), terminated(2, "uid 1000 cannot write /data\n")))
    )
    assert (pod_status.message, pod_status.exit_code) == ("uid 1000 cannot write /data", 2)


SIDECAR = {"name": "agent", "state": {"running": {}}}
INITIALIZING = {"name": "edl", "state": waiting("PodInitializing"), "lastState": {}}


def pod_with_sidecar(edl: Manifest, *init: Manifest) -> Manifest:
    """A pod with a sidecar whose name sorts before the role's own container."""
    return pod({"containerStatuses": [SIDECAR, edl], "initContainerStatuses": list(init)})


def init(state: Manifest, last: Manifest | None = None) -> Manifest:
    return {"name": "fetch", "state": state, "lastState": last or {}}


@pytest.mark.parametrize(
    ("seen", "stage"),
    [
        (container(waiting("CrashLoopBackOff"), terminated(1)), MasterStage.FAILED),
        (container(waiting("ImagePullBackOff")), MasterStage.FAILED),
        (container(waiting("ContainerCreating")), MasterStage.CREATING),
        (container({"running": {}}), MasterStage.RUNNING),
    ],
)
def test_a_sidecar_has_no_say_in_whether_the_master_started(seen: Manifest, stage: MasterStage) -> None:
    (edl,) = seen["containerStatuses"]
    assert classify_master_pod(pod_with_sidecar(edl)).stage is stage


@pytest.mark.parametrize(
    ("first", "stage", "reason", "about"),
    [
        (init(waiting("ImagePullBackOff")), MasterStage.FAILED, "ImagePullBackOff", "fetch"),
        (init(waiting("ErrImagePull")), MasterStage.CREATING, "ErrImagePull", "fetch"),
        (init(terminated(3)), MasterStage.FAILED, "Error", "fetch"),
        (init(waiting("CrashLoopBackOff"), terminated(3)), MasterStage.FAILED, "Error", "fetch"),
        (init({"running": {}}), MasterStage.CREATING, "PodInitializing", ""),
        (init(terminated(0, reason="Completed")), MasterStage.CREATING, "PodInitializing", ""),
        (init(waiting("PodInitializing")), MasterStage.CREATING, "PodInitializing", ""),
    ],
)
def test_an_init_container_that_does_not_come_to_its_end_is_told(
    first: Manifest, stage: MasterStage, reason: str, about: str
) -> None:
    pod_status = classify_master_pod(pod_with_sidecar(INITIALIZING, first))
    assert (pod_status.stage, pod_status.reason, pod_status.container_name) == (stage, reason, about)


@pytest.mark.parametrize("state", [{"running": {}}, terminated(0)])
def test_what_an_init_container_did_is_over_once_the_master_s_own_has_begun(state: Manifest) -> None:
    edl = {"name": "edl", "state": state, "lastState": {}}
    assert classify_master_pod(pod_with_sidecar(edl, init(terminated(0), terminated(1)))).has_started


class ScriptedMasterPod:
    """What a lookout sees, one sight a look, the last again and again; time passes by sleeping only."""

    def __init__(self, *stages: MasterStage) -> None:
        self._statuses = [MasterPodStatus(stage) for stage in stages]
        self.now = 100.0
        self.reported: list[MasterStage] = []

    def look(self) -> MasterPodStatus:
        return self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self) -> tuple[MasterStage, float]:
        began = self.now
        pod_status = wait_for_start(
            self.look, lambda seen: self.reported.append(seen.stage), lambda: self.now, self.sleep
        )
        return pod_status.stage, self.now - began


@pytest.mark.parametrize("end", [MasterStage.SERVING, MasterStage.FAILED, MasterStage.ENDED])
def test_waiting_ends_with_the_master_s_start_or_failure(end: MasterStage) -> None:
    master_pod = ScriptedMasterPod(
        MasterStage.ABSENT, MasterStage.PENDING, MasterStage.PENDING, MasterStage.CREATING, MasterStage.RUNNING, end
    )
    assert master_pod.wait() == (end, 2.5)
    assert master_pod.reported == [
        MasterStage.ABSENT,
        MasterStage.PENDING,
        MasterStage.CREATING,
        MasterStage.RUNNING,
        end,
    ]


@pytest.mark.parametrize("stage", [MasterStage.ABSENT, MasterStage.PENDING, MasterStage.CREATING])
def test_what_does_not_start_is_waited_for_a_minute(stage: MasterStage) -> None:
    assert ScriptedMasterPod(stage).wait() == (stage, START_TIMEOUT_SECONDS)


def test_a_container_that_goes_on_running_counts_as_started_though_its_master_is_silent() -> None:
    assert ScriptedMasterPod(MasterStage.CREATING, MasterStage.RUNNING).wait() == (MasterStage.RUNNING, 10.0)
    flapping = ScriptedMasterPod(*[MasterStage.RUNNING] * 19, MasterStage.CREATING, MasterStage.RUNNING)
    assert flapping.wait() == (MasterStage.RUNNING, 19.5)


@pytest.fixture
def cluster() -> InMemoryCluster:
    return InMemoryCluster()


def master(cluster: InMemoryCluster, status: Manifest, uid: str = "u1", name: str | None = None) -> Manifest:
    owners = [{"kind": "Job", "name": names.master_name("j"), "uid": uid}]
    head = {"name": name or f"m-{uid}", "labels": names.object_labels("j", Role.MASTER), "ownerReferences": owners}
    return cluster.put({"kind": "Pod", "metadata": head, "spec": {"nodeName": "n1"}, "status": status})


def warn(cluster: InMemoryCluster, uid: str, message: str) -> None:
    about = {"involvedObject": {"uid": uid}, "message": message, "lastTimestamp": "2027-01-01T00:00:00Z"}
    cluster.put({"kind": "Event", "metadata": {"name": f"e-{uid}"}, **about})


def test_only_the_pod_of_this_job_counts(cluster: InMemoryCluster) -> None:
    master(cluster, RUNNING, uid="of-an-earlier-job")
    assert MasterStatusReader(cluster, "j", "u1").read_status() == MasterPodStatus(MasterStage.ABSENT)


def test_a_master_that_published_is_at_work(cluster: InMemoryCluster) -> None:
    poll_master = MasterStatusReader(cluster, "j", "u1")
    master(cluster, RUNNING)
    assert poll_master.read_status().stage is MasterStage.RUNNING
    page = cluster.put({"kind": "ConfigMap", "metadata": {"name": names.status_configmap("j")}})
    assert poll_master.read_status().stage is MasterStage.RUNNING
    page["data"] = {"status.json": '{"phase": "Starting"}'}
    assert poll_master.read_status().stage is MasterStage.SERVING


def test_the_newest_warning_says_why_nothing_comes(cluster: InMemoryCluster) -> None:
    poll_master = MasterStatusReader(cluster, "j", "u1")
    warn(cluster, "u1", "Error creating: exceeded quota")
    assert poll_master.read_status() == MasterPodStatus(MasterStage.ABSENT, message="Error creating: exceeded quota")
    master_pod = master(cluster, {"phase": "Pending"})
    warn(cluster, master_pod["metadata"]["uid"], "FailedMount: no such claim")
    assert poll_master.read_status().message == "FailedMount: no such claim"
    cluster.deny("list", EVENTS)
    assert poll_master.read_status().message == ""


def test_a_container_without_last_words_is_quoted_from_its_log(cluster: InMemoryCluster) -> None:
    cluster.logged["m-u1"] = ["Traceback:", "  boom"]
    master(cluster, container(terminated(1)))
    assert MasterStatusReader(cluster, "j", "u1").read_status().message == "Traceback:\n  boom"
    assert cluster.logs_asked == [("m-u1", "edl")]


def test_an_init_container_without_last_words_is_quoted_from_its_own_log(cluster: InMemoryCluster) -> None:
    cluster.logged["m-u1"] = ["no such bucket"]
    master(cluster, {"initContainerStatuses": [init(terminated(1))]})
    assert MasterStatusReader(cluster, "j", "u1").read_status().message == "no such bucket"
    assert cluster.logs_asked == [("m-u1", "fetch")]


def test_of_two_pods_of_one_second_the_one_that_stays_is_looked_at(cluster: InMemoryCluster) -> None:
    gone = master(cluster, container(terminated(143)))
    gone["metadata"]["deletionTimestamp"] = gone["metadata"]["creationTimestamp"]
    master(cluster, RUNNING, name="m-next")
    assert MasterStatusReader(cluster, "j", "u1").read_status().pod_name == "m-next"


def test_a_server_that_is_away_changes_nothing(cluster: InMemoryCluster) -> None:
    poll_master = MasterStatusReader(cluster, "j", "u1")
    master(cluster, RUNNING)
    known_status = poll_master.read_status()
    cluster.breaks["GET", PODS.plural] = NoResponseError("no answer")
    assert poll_master.read_status() == known_status
