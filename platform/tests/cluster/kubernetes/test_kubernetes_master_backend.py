"""What a master in a pod stands on."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.in_memory_cluster import InMemoryCluster

from edl.api.cluster_port import PodOptions, Role
from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec, MasterSpec, ModelSpec
from edl.api.pod_spec import IdentityLabels, PodSpec, StorageSpec
from edl.cluster.kubernetes import master_backend, names
from edl.cluster.kubernetes.api_client import JSON_PATCH, ResourceList
from edl.cluster.kubernetes.api_errors import ForbiddenError, InvalidObjectError, NoResponseError
from edl.cluster.kubernetes.master_backend import KubeMasterBackend, MasterPodInfo
from edl.cluster.kubernetes.resource_kinds import CONFIGMAPS, JOBS, LEASES, PODS, SECRETS, Manifest, ResourceKind

SPEC = JobSpec(name="digits", model=ModelSpec("m.custom_model"), image="edl:1")
ON_A_VOLUME = replace(SPEC, storage=StorageSpec(claim="runs"))
VARIABLES = {
    "EDL_JOB_UID": "job-uid",
    "EDL_NAMESPACE": "team",
    "EDL_POD": "edl-digits-master-x",
    "EDL_UID": "pod-uid",
    "EDL_RUN_DIR": "/data/edl/team/digits/job-uid",
    "EDL_TOKEN_SECRET": "mine",
}


class MasterApiServer(InMemoryCluster):
    """Records what a master creates and patches, and refuses lists and patches of its Job as told."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Manifest] = []
        self.answers: list[Exception | None] = []
        self.patches: list[Any] = []
        self.bad_lists: list[Exception] = []
        self.fences: list[Callable[[], bool]] = []

    @property
    def pods(self) -> Sequence[str]:
        return [pod["metadata"]["name"] for pod in self.objects_of_kind(PODS)]

    def with_fence(self, may_write: Callable[[], bool]) -> MasterApiServer:
        self.fences.append(may_write)
        return self

    def list(self, kind: ResourceKind, **selectors: Any) -> ResourceList:
        if self.bad_lists:
            raise self.bad_lists.pop(0)
        return super().list(kind, **selectors)

    def delete(self, kind: ResourceKind, name: str, **options: Any) -> Manifest:
        if kind is PODS:
            assert (options["uid"], options["grace"]) == (self.stored(PODS, name)["metadata"]["uid"], 0)
        return super().delete(kind, name, **options)

    def add_pod(self, role: Role, index: int, phase: str) -> None:
        name = names.pod_name("digits", role, index)
        meta = {"name": name, "uid": name, "labels": names.object_labels("digits", role, index)}
        owned = meta | {"ownerReferences": [{"uid": "job-uid"}]}
        self.put({"apiVersion": "v1", "kind": "Pod", "metadata": owned, "status": {"phase": phase}})

    def create(self, manifest: Manifest, **options: Any) -> Manifest:
        self.made.append(manifest)
        return super().create(manifest, **options)

    def patch(self, kind: ResourceKind, name: str, body: Any, **options: Any) -> Manifest:
        if options.get("style") != JSON_PATCH:
            return super().patch(kind, name, body, **options)
        self.patches.append((name, body))
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        return {}


@pytest.fixture
def server() -> MasterApiServer:
    return MasterApiServer()


@pytest.fixture
def backend(server: MasterApiServer) -> Any:
    kube_backend = KubeMasterBackend(SPEC, MasterPodInfo.from_environment("digits", VARIABLES), lambda pace: server)
    yield kube_backend
    kube_backend.close()
    kube_backend.cluster.close()


def test_it_has_the_lease_before_anything_is_asked(server: MasterApiServer, backend: KubeMasterBackend) -> None:
    assert server.requests == []
    assert backend.acquire(threading.Event())
    assert server.requests[:2] == [("GET", "edl-digits-master"), ("POST", "edl-digits-master")]
    assert server.stored(LEASES, names.master_name("digits"))["spec"]["holderIdentity"] == "edl-digits-master-x_pod-uid"
    backend.close()
    assert "holderIdentity" not in server.stored(LEASES, names.master_name("digits"))["spec"]


def test_what_it_decides_is_carried_out_only_while_it_has_the_lease(
    server: MasterApiServer, backend: KubeMasterBackend
) -> None:
    """Pods and pages: each has a fence, which opens with the Lease and closes with it."""
    assert [may() for may in server.fences] == [False, False]
    assert backend.acquire(threading.Event())
    assert [may() for may in server.fences] == [True, True]
    backend.close()
    assert [may() for may in server.fences] == [False, False]


def test_a_master_that_is_told_to_go_does_not_take_it(server: MasterApiServer, backend: KubeMasterBackend) -> None:
    stopping = threading.Event()
    stopping.set()
    assert not backend.acquire(stopping)
    assert server.requests == []


def test_pods_are_those_of_this_job_and_run(server: MasterApiServer, backend: KubeMasterBackend) -> None:
    backend.cluster.start(Role.WORKER, 3, PodOptions())
    (pod,) = server.made
    assert pod["metadata"]["name"] == "edl-digits-worker-3"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "job-uid"
    variables = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    assert variables["EDL_RUN_DIR"] == VARIABLES["EDL_RUN_DIR"]
    assert variables["EDL_MASTER_ADDRESS"] == "edl-digits-master.team:7070"
    assert "mine" in str(pod["spec"]["volumes"])


def test_pods_have_a_controller_so_that_drain_takes_them(server: MasterApiServer, backend: KubeMasterBackend) -> None:
    """The ConfigMap of the job, which the Job owns; it is asked for once."""
    server.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": names.spec_configmap("digits")}})
    for index in (0, 1):
        backend.cluster.start(Role.PS, index, PodOptions())
    wanted = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "edl-digits-spec",
        "uid": server.stored(CONFIGMAPS, names.spec_configmap("digits"))["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }
    for pod in server.made:
        job, keeper = pod["metadata"]["ownerReferences"]
        assert (job["kind"], job["controller"], keeper) == ("Job", False, wanted)
    assert server.requests.count(("GET", "edl-digits-spec")) == 1


def test_pods_start_also_where_their_controller_is_gone_which_is_asked_once(
    server: MasterApiServer, backend: KubeMasterBackend
) -> None:
    for index in (0, 1):
        backend.cluster.start(Role.PS, index, PodOptions())
    assert [[each["kind"] for each in pod["metadata"]["ownerReferences"]] for pod in server.made] == [["Job"]] * 2
    assert server.requests.count(("GET", "edl-digits-spec")) == 1


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_backend.time, "sleep", lambda seconds: None)


@pytest.mark.usefixtures("short_timeouts")
def test_the_log_pod_is_created_once_and_stays_with_the_job(server: MasterApiServer) -> None:
    spec = replace(ON_A_VOLUME, master=MasterSpec(log_pod=True), pod=PodSpec(name_prefix="elasticdl"))
    pod_info = MasterPodInfo.from_environment("digits", VARIABLES)
    for _ in range(2):
        backend = KubeMasterBackend(spec, pod_info, lambda pace: server)
        assert backend.acquire(threading.Event())
        for thread in threading.enumerate():
            if thread.name == "ownership":
                thread.join(10)
        assert list(server.pods) == ["elasticdl-digits-master"]
        assert backend.conclude(failed=False) == 0
        backend.close()
        backend.cluster.close()
    assert list(server.pods) == ["elasticdl-digits-master"], "it ends by itself"
    pod = server.stored(PODS, "elasticdl-digits-master")
    assert [each["uid"] for each in pod["metadata"]["ownerReferences"]] == ["job-uid"]
    assert names.ROLE_LABEL not in pod["metadata"]["labels"], "neither the Service nor a master takes it for a role"


@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize(("failed", "value"), [(False, "Finished"), (True, "Failed")])
def test_the_end_is_a_label_of_what_users_take_for_the_master(
    server: MasterApiServer, failed: bool, value: str
) -> None:
    labels = IdentityLabels(status="example.com/status")
    spec = replace(ON_A_VOLUME, master=MasterSpec(log_pod=True), pod=PodSpec(identity_labels=labels))
    backend = KubeMasterBackend(spec, MasterPodInfo.from_environment("digits", VARIABLES), lambda pace: server)
    backend._create_log_pod()
    log_pod = server.stored(PODS, "edl-digits-master")["metadata"]["uid"]
    assert server.patches == []
    backend.conclude(failed=failed)
    labelled = {name: body for name, body in server.patches if body[1]["path"].startswith("/metadata/labels")}
    uids = {"edl-digits-master": log_pod, "edl-digits-master-x": "pod-uid"}
    for name, uid in uids.items():
        assert labelled[name] == [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": "/metadata/labels/example.com~1status", "value": value},
        ]
    of_job = [body[0]["value"] for name, body in server.patches if name == names.master_name("digits")]
    assert "job-uid" in of_job
    backend.close()
    backend.cluster.close()


@pytest.mark.usefixtures("short_timeouts")
def test_a_job_whose_end_cannot_be_labelled_ends(server: MasterApiServer) -> None:
    spec = replace(SPEC, pod=PodSpec(identity_labels=IdentityLabels(status="status")))
    backend = KubeMasterBackend(spec, MasterPodInfo.from_environment("digits", VARIABLES), lambda pace: server)
    server.answers += [ForbiddenError("patch"), ForbiddenError("patch")]
    assert backend.conclude(failed=False) == 0
    backend.close()
    backend.cluster.close()


@pytest.mark.parametrize(("owner", "phase"), [("an earlier Job", "Running"), ("job-uid", "Failed")])
def test_a_log_pod_of_a_run_before_is_replaced(server: MasterApiServer, owner: str, phase: str) -> None:
    meta = {"name": "edl-digits-master", "uid": "old", "labels": names.object_labels("digits")}
    owned = meta | {"ownerReferences": [{"uid": owner}]}
    server.put({"apiVersion": "v1", "kind": "Pod", "metadata": owned, "status": {"phase": phase}})
    spec = replace(ON_A_VOLUME, master=MasterSpec(log_pod=True))
    backend = KubeMasterBackend(spec, MasterPodInfo.from_environment("digits", VARIABLES), lambda pace: server)
    backend._create_log_pod()
    assert server.stored(PODS, "edl-digits-master")["metadata"]["uid"] != "old"
    backend.close()
    backend.cluster.close()


def test_a_job_that_is_done_leaves_no_pod_and_needs_no_word(
    server: MasterApiServer, backend: KubeMasterBackend
) -> None:
    server.add_pod(Role.WORKER, 0, "Succeeded")
    server.add_pod(Role.PS, 0, "Running")
    server.bad_lists = [NoResponseError("away"), NoResponseError("away")]
    backend.conclude(failed=False)
    assert server.pods == []
    assert server.patches == []


@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize(("spec", "left"), [(SPEC, ["edl-digits-worker-1"]), (ON_A_VOLUME, [])])
def test_a_crashed_pod_stays_where_no_volume_has_its_log(
    server: MasterApiServer, spec: JobSpec, left: list[str]
) -> None:
    backend = KubeMasterBackend(spec, MasterPodInfo.from_environment("digits", VARIABLES), lambda pace: server)
    for index, phase in enumerate(("Failed", "Failed", "Succeeded")):
        server.add_pod(Role.WORKER, index, phase)
    backend.conclude(failed=True)
    assert server.pods == left
    assert len(server.patches) == 1
    backend.close()


@pytest.mark.usefixtures("short_timeouts")
def test_a_master_that_may_not_list_pods_ends_all_the_same(server: MasterApiServer, backend: KubeMasterBackend) -> None:
    server.bad_lists = [ForbiddenError("no")]
    backend.conclude(failed=False)
    assert server.bad_lists == []


@pytest.mark.usefixtures("short_timeouts")
def test_a_job_that_has_failed_gets_no_other_master(server: MasterApiServer, backend: KubeMasterBackend) -> None:
    server.answers = [NoResponseError("away"), NoResponseError("away")]
    backend.conclude(failed=True)
    assert len(server.patches) == 3
    name, operations = server.patches[-1]
    assert name == "edl-digits-master"
    assert operations == [
        {"op": "test", "path": "/metadata/uid", "value": "job-uid"},
        {"op": "replace", "path": "/spec/backoffLimit", "value": 0},
    ]


TOKEN = names.token_secret("digits")


@pytest.fixture
def rendered_backend(server: MasterApiServer) -> KubeMasterBackend:
    """A job that came from ``edl render``."""
    meta = {"name": names.master_name("digits"), "uid": "job-uid"}
    server.put({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta})
    server.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": TOKEN}})
    pod_info = MasterPodInfo.from_environment("digits", {k: v for k, v in VARIABLES.items() if k != "EDL_TOKEN_SECRET"})
    kube_backend = KubeMasterBackend(SPEC, pod_info, lambda pace: server)
    assert kube_backend.acquire(threading.Event())
    return kube_backend


@pytest.mark.usefixtures("short_timeouts")
@pytest.mark.parametrize("failed", [False, True])
def test_a_job_that_is_over_leaves_no_token(
    server: MasterApiServer, rendered_backend: KubeMasterBackend, failed: bool
) -> None:
    rendered_backend.conclude(failed=failed)
    assert not server.has(SECRETS, TOKEN)
    rendered_backend.close()
    assert server.requests[-1][0] != "DELETE"


def test_the_token_is_there_for_the_master_that_tells_the_job_of_its_failure(
    server: MasterApiServer, rendered_backend: KubeMasterBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_backend, "CONCLUDE_SECONDS", 0.0)
    server.answers = [NoResponseError("away")]
    rendered_backend.conclude(failed=True)
    assert server.has(SECRETS, TOKEN)
    rendered_backend.close()
    assert server.has(SECRETS, TOKEN)


def test_a_master_whose_job_is_gone_takes_the_token_along_and_one_that_is_moved_does_not(
    server: MasterApiServer, rendered_backend: KubeMasterBackend
) -> None:
    rendered_backend.close()
    assert server.has(SECRETS, TOKEN)
    server.remove(JOBS, names.master_name("digits"))
    rendered_backend.close()
    assert not server.has(SECRETS, TOKEN)


def test_a_master_that_may_not_decide_yet_takes_the_token_of_a_deleted_job_along(server: MasterApiServer) -> None:
    server.put({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": TOKEN}})
    pod_info = replace(MasterPodInfo.from_environment("digits", VARIABLES), token_secret=TOKEN)
    waiting = KubeMasterBackend(SPEC, pod_info, lambda pace: server)
    waiting.close()
    assert not server.has(SECRETS, TOKEN)


def test_a_later_job_of_the_same_name_is_left_alone(server: MasterApiServer, backend: KubeMasterBackend) -> None:
    server.answers = [InvalidObjectError("the test failed")]
    backend.conclude(failed=True)
    assert len(server.patches) == 1


@pytest.mark.parametrize("name", ["EDL_JOB_UID", "EDL_NAMESPACE", "EDL_POD", "EDL_UID", "EDL_RUN_DIR"])
def test_a_pod_that_lacks_a_variable_is_told_which(name: str) -> None:
    with pytest.raises(BadInputError, match=name):
        MasterPodInfo.from_environment("digits", {k: v for k, v in VARIABLES.items() if k != name})


def test_a_master_on_one_machine_never_imports_the_client() -> None:
    code = "import sys, edl.master.master_process; sys.exit('kubernetes' in sys.modules or 'urllib3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
