"""The pod of a copy: what it may do, when it is there, and that it never stays."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from cluster.kubernetes.restricted_standard import violations
from support.in_memory_cluster import InMemoryCluster
from support.text_keys import missing_keys

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError
from edl.api.pod_spec import RunAsSpec
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_errors import PodSecurityError, error_from_response
from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.ops import helper_pod
from edl.ops.helper_pod import ClaimPath, HelperPodSpec, parse_claim_path, run_helper_pod

VISIT = HelperPodSpec("files", "edl/submitter:1", RunAsSpec(4711, 4712), read_only=True, lifetime_seconds=600)
RUNNING = {"phase": "Running"}


@pytest.fixture
def cluster() -> InMemoryCluster:
    in_memory = InMemoryCluster()
    in_memory.claim("files")
    in_memory.admissions.append(lambda thing: thing.update(status=RUNNING))
    return in_memory


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("files:/mnist/train", ClaimPath("files", "/mnist/train")),
        ("files:mnist", ClaimPath("files", "/mnist")),
        ("files:", ClaimPath("files", "/")),
        ("/data/a:b", None),
        ("./a:b", None),
        ("mnist", None),
        (":/x", None),
    ],
)
def test_places_on_claims_and_paths_of_this_machine(text: str, where: ClaimPath | None) -> None:
    assert parse_claim_path(text) == where


def test_the_pod_passes_restricted_and_ends_by_itself() -> None:
    pod = helper_pod.render_helper_pod(VISIT, "edl-data-1")
    assert violations(pod["spec"]) == []
    spec = pod["spec"]
    assert (spec["activeDeadlineSeconds"], spec["automountServiceAccountToken"]) == (600, False)
    assert spec["serviceAccountName"] == names.POD_ACCOUNT
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsGroup"]) == (4711, 4712)
    assert spec["containers"][0]["volumeMounts"] == [{"name": "claim", "mountPath": "/claim", "readOnly": True}]


def test_the_pod_names_a_priority_class_so_that_quotas_count_it() -> None:
    assert helper_pod.render_helper_pod(VISIT, "edl-data-1")["spec"]["priorityClassName"] == "low"
    assert (
        helper_pod.render_helper_pod(replace(VISIT, priority_class="batch"), "edl-data-1")["spec"]["priorityClassName"]
        == "batch"
    )


def test_a_class_that_the_cluster_lacks_is_named_with_how_to_name_another(cluster: InMemoryCluster) -> None:
    cluster.admissions.insert(0, lambda thing: "no PriorityClass with name low was found")
    with pytest.raises(BadInputError, match="PriorityClass low") as refused, run_helper_pod(cluster, VISIT, print):
        pass
    assert "--priority" in (refused.value.hint or "")


def test_the_pod_bounds_what_it_writes_on_its_node() -> None:
    (container,) = helper_pod.render_helper_pod(VISIT, "edl-data-1")["spec"]["containers"]
    assert container["resources"]["limits"].keys() == {"memory", "ephemeral-storage"}


def test_the_policies_know_the_pod_by_its_name_and_no_pod_of_a_job() -> None:
    policy = re.compile(r"edl-data-[0-9a-f]{8}")  # in helm/edl/templates/admission-data-scientist.yaml
    assert policy.fullmatch(helper_pod.new_pod_name())
    for job in ("data", "data-0123", "data-01234567"):
        of_job = [
            names.master_name(job) + "-x7k2p",
            names.pod_name(job, Role.WORKER, 12345678),
            names.pod_name(job, Role.PS, 0),
        ]
        assert not any(map(policy.fullmatch, of_job))


def test_the_pod_is_there_for_the_block(cluster: InMemoryCluster) -> None:
    with run_helper_pod(cluster, VISIT, print) as name:
        assert ("pods", "team", name) in cluster.objects
    assert pods(cluster) == []


def test_ctrl_c_leaves_nothing_behind(cluster: InMemoryCluster) -> None:
    with pytest.raises(KeyboardInterrupt), run_helper_pod(cluster, VISIT, print):
        raise KeyboardInterrupt
    assert pods(cluster) == []


def test_a_pod_that_cannot_start_is_deleted_and_says_why(cluster: InMemoryCluster) -> None:
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}, "image": "edl/submitter:1"}
    cluster.admissions[:] = [lambda thing: thing.update(status={"phase": "Pending", "containerStatuses": [waiting]})]
    with pytest.raises(BadInputError, match=r"image.*pulled"), run_helper_pod(cluster, VISIT, print):
        pass
    assert pods(cluster) == []


def test_a_pod_that_is_waited_for_in_vain_is_deleted(cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr(helper_pod, "READY_TIMEOUT_SECONDS", 0.0)
    cluster.admissions[:] = []
    with (
        pytest.raises(helper_pod.NoResponseError, match="has not started"),
        run_helper_pod(cluster, VISIT, messages.append),
    ):
        pass
    assert pods(cluster) == []


def test_a_pod_that_is_refused(cluster: InMemoryCluster) -> None:
    cluster.admissions[:] = [lambda thing: 'violates PodSecurity "restricted:latest"']
    with pytest.raises(PodSecurityError), run_helper_pod(cluster, VISIT, print):
        pass


def test_a_claim_that_is_not_there_names_those_that_are(cluster: InMemoryCluster) -> None:
    with (
        pytest.raises(BadInputError, match=r"PersistentVolumeClaim nosuch.*namespace team") as missing,
        run_helper_pod(cluster, HelperPodSpec("nosuch", "img", RunAsSpec()), print),
    ):
        pass
    assert not missing_keys(missing.value.hint or "", "files")


def test_who_may_not_exec_hears_of_the_role(cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise error_from_response(
            403, b'{"message": "User \\"ann\\" cannot get resource \\"pods/exec\\""}', where="exec"
        )

    monkeypatch.setattr(helper_pod, "PodExec", refused)
    with pytest.raises(helper_pod.RbacDeniedError) as refusal:
        helper_pod.exec_file_server(cluster, "edl-data-1")
    assert "ClusterRole edl-data-copy" in (refusal.value.hint or "")
    assert refusal.value.exit_code == 2


def pods(cluster: InMemoryCluster) -> list[Manifest]:
    return [thing for (plural, _, _), thing in cluster.objects.items() if plural == "pods"]
