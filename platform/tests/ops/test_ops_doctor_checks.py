"""What the doctor says about a cluster: each finding with its remedy."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.in_memory_cluster import InMemoryCluster
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import ApiResponse
from edl.cluster.kubernetes.api_errors import (
    HELM_ADD_TEAM_COMMAND,
    RbacDeniedError,
    helm_install_command,
    install_hint,
    permission_hint,
)
from edl.cluster.kubernetes.resource_kinds import (
    NAMESPACES,
    PRIORITY_CLASSES,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    Manifest,
)
from edl.cluster.kubernetes.service_account import connect_service_account
from edl.ops.doctor_checks import (
    DoctorFinding,
    FindingLevel,
    PriorityClassNames,
    check_image_pull,
    check_uninstall,
    examine_cluster,
    judge_claims,
    judge_pod_security,
    judge_priorities,
    judge_version,
)


class DoctorCluster(InMemoryCluster):
    """A cluster with a version, and rights that a test takes away."""

    def __init__(self) -> None:
        super().__init__()
        self.forbidden: set[str] = set()
        self.master_lacks: set[str] = set()
        self.may_review = True

    def request(
        self, method: str, path: str, *, query: Any = None, body: Any = None, content_type: str = ""
    ) -> ApiResponse:
        if path == "/version":
            return ApiResponse({"major": "1", "minor": "34", "gitVersion": "v1.34.1"}, self.now)
        if path.endswith("selfsubjectaccessreviews"):
            return ApiResponse({"status": {"allowed": self._asked(body) not in self.forbidden}}, self.now)
        if path.endswith("/namespaces/team/localsubjectaccessreviews"):
            if not self.may_review:
                raise RbacDeniedError("you may not ask about others")
            assert body["spec"]["user"] == "system:serviceaccount:team:edl-job-master"
            return ApiResponse({"status": {"allowed": self._asked(body) not in self.master_lacks}}, self.now)
        return super().request(method, path, query=query, body=body)

    @staticmethod
    def _asked(review: Mapping[str, Any]) -> str:
        right = review["spec"]["resourceAttributes"]
        return f"{right['verb']} {right['resource']}{'/' if right['subresource'] else ''}{right['subresource']}"


@pytest.fixture
def doctor_cluster() -> DoctorCluster:
    cluster = DoctorCluster()
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": labels}})
    for account in (names.MASTER_ACCOUNT, names.POD_ACCOUNT):
        cluster.put({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}})
    for name, value in (("high", 1000), ("low", 10)):
        meta = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        cluster.put({**meta, "value": value})
    cluster.claim("files")["status"] = {"phase": "Bound"}
    return cluster


def findings_of(cluster: InMemoryCluster, level: FindingLevel) -> list[str]:
    return [each.text for each in examine_cluster(cluster, PriorityClassNames()) if each.level is level]


def test_a_healthy_cluster(doctor_cluster: DoctorCluster) -> None:
    assert findings_of(doctor_cluster, FindingLevel.OK)[0] == "Kubernetes v1.34.1"
    assert findings_of(doctor_cluster, FindingLevel.WARN) == findings_of(doctor_cluster, FindingLevel.FAIL) == []


def test_missing_rights_say_what_they_are_for_and_who_has_them(doctor_cluster: DoctorCluster) -> None:
    doctor_cluster.forbidden = {"create pods", "create secrets", "list nodes", "get pods/exec", "create pods/exec"}
    bad = [each for each in examine_cluster(doctor_cluster, PriorityClassNames()) if each.level is not FindingLevel.OK]
    assert [each.level for each in bad] == [FindingLevel.FAIL, FindingLevel.WARN, FindingLevel.WARN]
    assert not missing_keys(bad[0].text, "create secrets", "create pods", "namespace team", "edl submit")
    assert not missing_keys(bad[1].text, "list nodes", "all namespaces", "edl submit")
    assert not missing_keys(bad[2].text, "get pods/exec", "create pods/exec", "edl data cp", "edl logs")
    assert ["edl-data-scientist" in bad[0].remedy, "edl-data-copy" in bad[2].remedy] == [True, True]


def test_a_master_without_its_rights_can_run_no_job(doctor_cluster: DoctorCluster) -> None:
    doctor_cluster.master_lacks = {"create pods", "watch pods"}
    (bad,) = [
        each for each in examine_cluster(doctor_cluster, PriorityClassNames()) if each.level is not FindingLevel.OK
    ]
    assert bad.level is FindingLevel.FAIL
    assert not missing_keys(bad.text, "edl-job-master", "create pods, watch pods", "namespace team")
    assert "RoleBinding" in bad.remedy


@pytest.mark.parametrize(
    ("subject", "level"),
    [
        ({"kind": "ServiceAccount", "name": "edl-job-master"}, FindingLevel.OK),
        ({"kind": "ServiceAccount", "name": "edl-job-master", "namespace": "team"}, FindingLevel.OK),
        ({"kind": "ServiceAccount", "name": "edl-job-master", "namespace": "other"}, FindingLevel.FAIL),
        ({"kind": "User", "name": "edl-job-master"}, FindingLevel.FAIL),
    ],
)
def test_who_may_not_ask_about_others_reads_the_bindings(
    doctor_cluster: DoctorCluster, subject: dict[str, str], level: FindingLevel
) -> None:
    doctor_cluster.may_review = False
    role = {"kind": "ClusterRole", "name": "edl-job-master"}
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "b"}}
    doctor_cluster.put({**binding, "roleRef": role, "subjects": [subject]})
    (one,) = [
        each
        for each in examine_cluster(doctor_cluster, PriorityClassNames())
        if each.subject == "rights" and names.MASTER_ACCOUNT in each.text
    ]
    assert one.level is level


def test_masters_of_whom_nobody_may_ask_are_not_vouched_for(doctor_cluster: DoctorCluster) -> None:
    doctor_cluster.may_review = False
    doctor_cluster.deny("list", ROLE_BINDINGS)
    (one,) = [
        each for each in examine_cluster(doctor_cluster, PriorityClassNames()) if each.level is not FindingLevel.OK
    ]
    assert (one.level, missing_keys(one.text, "edl-job-master", "unknown")) == (FindingLevel.WARN, [])


def test_what_belongs_to_the_cluster_is_seen_by_its_viewers(doctor_cluster: DoctorCluster) -> None:
    doctor_cluster.deny("get", PRIORITY_CLASSES, NAMESPACES)
    hidden = [each for each in examine_cluster(doctor_cluster, PriorityClassNames()) if each.level is FindingLevel.WARN]
    assert [each.subject for each in hidden] == ["namespace", "priorities"]
    assert "ClusterRole edl-cluster-viewer" in hidden[1].remedy


def test_what_is_missing_is_named_with_what_creates_it(doctor_cluster: DoctorCluster) -> None:
    for plural, place, name in [("serviceaccounts", "team", names.POD_ACCOUNT), ("priorityclasses", "", "low")]:
        del doctor_cluster.objects[plural, place, name]
    bad = [each for each in examine_cluster(doctor_cluster, PriorityClassNames()) if each.level is FindingLevel.FAIL]
    account, priority = bad
    assert not missing_keys(account.text, "no ServiceAccount edl-none", "namespace team")
    assert not missing_keys(priority.text, "no PriorityClass low")
    for each in bad:
        assert helm_install_command("team") in each.remedy
        assert HELM_ADD_TEAM_COMMAND in each.remedy, "for a second team the cluster's part is there already"
        assert "kubectl apply -k kustomize/base -n team" in each.remedy


def test_the_commands_of_remedies_are_those_of_the_documentation() -> None:
    """With a list of teams, by which the policies know the namespaces that jobs may be in."""
    root = Path(__file__).resolve().parents[3]
    assert (
        helm_install_command("team-a").strip("`").removesuffix('"')
        in (root / "docs/tutorials/on-a-cluster.md").read_text()
    )
    operations = (root / "docs" / "operations.md").read_text().replace("--namespace", "-n")
    assert HELM_ADD_TEAM_COMMAND.strip("`") in operations
    for source in (root / "platform" / "edl").rglob("*.py"):
        has_command = "helm install" in source.read_text(encoding="utf-8")
        assert not has_command or source == Path(inspect.getfile(helm_install_command)), (
            f"{source}: take installation's"
        )


def test_what_a_master_lacks_is_installed_the_same_way() -> None:
    with pytest.raises(BadInputError) as caught:
        connect_service_account({}, "team-a", pool_size=1)
    denial = 'pods is forbidden: User "system:serviceaccount:team-a:edl-job-master" cannot list resource "pods"'
    for hint in (caught.value.hint, permission_hint(denial)):
        assert hint is not None
        assert install_hint("team-a") in hint


def test_what_may_not_be_looked_at_is_not_a_failure(doctor_cluster: DoctorCluster) -> None:
    doctor_cluster.deny("get", SERVICE_ACCOUNTS)
    assert findings_of(doctor_cluster, FindingLevel.FAIL) == []
    (unseen,) = findings_of(doctor_cluster, FindingLevel.WARN)
    assert not missing_keys(unseen, "serviceaccounts")


def test_a_namespace_that_is_not_there(doctor_cluster: DoctorCluster) -> None:
    del doctor_cluster.objects["namespaces", "", "team"]
    (missing,) = findings_of(doctor_cluster, FindingLevel.FAIL)
    assert not missing_keys(missing, "no namespace team")


@pytest.mark.parametrize(
    ("said", "level"),
    [
        ({"major": "1", "minor": "34+", "gitVersion": "v1.34.0-gke"}, FindingLevel.OK),
        ({"major": "1", "minor": "30", "gitVersion": "v1.30.0"}, FindingLevel.OK),
        ({"major": "1", "minor": "29", "gitVersion": "v1.29.15"}, FindingLevel.FAIL),
        ({"major": "2", "minor": "0", "gitVersion": "v2.0.0"}, FindingLevel.OK),
        ({}, FindingLevel.WARN),
    ],
)
def test_versions(said: dict[str, str], level: FindingLevel) -> None:
    assert judge_version(said).level is level


@pytest.mark.parametrize(
    ("labels", "status", "level"),
    [
        ({"pod-security.kubernetes.io/enforce": "restricted"}, {}, FindingLevel.OK),
        ({"pod-security.kubernetes.io/enforce": "baseline"}, {}, FindingLevel.WARN),
        ({}, {}, FindingLevel.WARN),
        ({"pod-security.kubernetes.io/enforce": "restricted"}, {"phase": "Terminating"}, FindingLevel.FAIL),
    ],
)
def test_namespaces(labels: dict[str, str], status: Manifest, level: FindingLevel) -> None:
    assert judge_pod_security({"metadata": {"name": "team", "labels": labels}, "status": status}).level is level


@pytest.mark.parametrize(
    ("phase", "modes", "level", "keys"),
    [
        ("Bound", ["ReadWriteMany"], FindingLevel.OK, ("bound", "ReadWriteMany")),
        ("Bound", ["ReadWriteOnce"], FindingLevel.WARN, ("ReadWriteOnce", "nodes")),
        ("Pending", ["ReadWriteMany"], FindingLevel.WARN, ("volume", "Pending")),
        ("Lost", ["ReadWriteMany"], FindingLevel.FAIL, ("lost", "volume")),
    ],
)
def test_claims(phase: str, modes: list[str], level: FindingLevel, keys: tuple[str, ...]) -> None:
    claim = {"metadata": {"name": "files"}, "spec": {"accessModes": modes}, "status": {"phase": phase}}
    (one,) = judge_claims([claim], "team")
    assert one.level is level
    assert not missing_keys(one.text, "files", *keys)


def test_no_claim_at_all_costs_the_checkpoints() -> None:
    (one,) = judge_claims([], "team")
    assert (one.level, "checkpoints" in one.text) == (FindingLevel.WARN, True)


@pytest.mark.parametrize(
    ("high", "low", "level"), [(2, 1, FindingLevel.OK), (1, 1, FindingLevel.FAIL), (1, 2, FindingLevel.FAIL)]
)
def test_services_must_be_above_workers(high: int, low: int, level: FindingLevel) -> None:
    assert judge_priorities(PriorityClassNames(), high, low).level is level


@pytest.mark.parametrize(
    ("status", "level"),
    [
        ({"phase": "Running"}, FindingLevel.OK),
        (
            {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
            FindingLevel.FAIL,
        ),
    ],
)
def test_an_image_is_pulled_and_nothing_stays(
    doctor_cluster: DoctorCluster, status: Manifest, level: FindingLevel
) -> None:
    doctor_cluster.admissions.append(lambda thing: thing.update(status=status))
    assert check_image_pull(doctor_cluster, "img:1", PriorityClassNames(), print).level is level
    assert not [key for key in doctor_cluster.objects if key[0] == "pods"]


def test_an_image_that_cannot_be_pulled_is_tried_by_a_pod_of_its_own(doctor_cluster: DoctorCluster) -> None:
    waiting = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}
    doctor_cluster.admissions.append(lambda thing: thing.update(status=waiting))
    one = check_image_pull(doctor_cluster, "img:1", PriorityClassNames(), print)
    assert not missing_keys(one.text, "img:1", "pod", "image", "pulled")
    assert "registry" in one.remedy
    assert "job file" not in one.remedy
    assert "pod." not in one.remedy


def test_a_refused_pod_is_a_failure(doctor_cluster: DoctorCluster) -> None:
    doctor_cluster.admissions.append(lambda thing: "exceeded quota: team")
    one = check_image_pull(doctor_cluster, "img:1", PriorityClassNames(), print)
    assert one.level is FindingLevel.FAIL
    assert "exceeded quota" in one.text


def test_the_pulled_image_has_the_priority_of_workers(doctor_cluster: DoctorCluster) -> None:
    created: list[str] = []
    doctor_cluster.admissions.append(lambda thing: created.append(thing["spec"]["priorityClassName"]))
    doctor_cluster.admissions.append(lambda thing: thing.update(status={"phase": "Running"}))
    check_image_pull(doctor_cluster, "img:1", PriorityClassNames(low="batch"), print)
    assert created == ["batch"]


def test_other_names_of_the_priority_classes(doctor_cluster: DoctorCluster) -> None:
    bad = [
        each.text
        for each in examine_cluster(doctor_cluster, PriorityClassNames("services", "batch"))
        if each.level is FindingLevel.FAIL
    ]
    assert [
        missing_keys(text, f"no PriorityClass {name}") for text, name in zip(bad, ("services", "batch"), strict=True)
    ] == [
        [],
        [],
    ]


def looked_at(doctor_cluster: DoctorCluster) -> DoctorFinding:
    """What is said about Secrets."""
    first, *_ = [each for each in examine_cluster(doctor_cluster, PriorityClassNames()) if each.subject == "admission"]
    return first


@pytest.mark.parametrize(
    ("refusal", "level", "keys"),
    [
        ('violates PodSecurity "restricted:latest"', FindingLevel.OK, ("restricted",)),
        (None, FindingLevel.WARN, ("below restricted",)),
        ("a webhook says no", FindingLevel.WARN, ("is unknown",)),
    ],
)
def test_who_may_not_read_the_namespace_tries_a_pod_that_only_restricted_refuses(
    doctor_cluster: DoctorCluster, refusal: str | None, level: FindingLevel, keys: tuple[str, ...]
) -> None:
    doctor_cluster.deny("get", NAMESPACES)
    doctor_cluster.admissions.append(
        lambda thing: refusal if thing["kind"] == "Pod" and "securityContext" not in thing["spec"] else None
    )
    (one,) = [each for each in examine_cluster(doctor_cluster, PriorityClassNames()) if each.subject == "namespace"]
    assert one.level is level
    assert not missing_keys(one.text, "namespace team", *keys)
    assert ("enforce=restricted" in one.remedy) is (refusal is None)
    assert doctor_cluster.created == []


@pytest.mark.parametrize(
    ("refusal", "level"),
    [
        (
            "ValidatingAdmissionPolicy 'edl-data-scientist-pods' denied request: A pod must name a class",
            FindingLevel.OK,
        ),
        ("exceeded quota: edl-without-class", FindingLevel.OK),
        (None, FindingLevel.WARN),
        ("a webhook says no", FindingLevel.WARN),
    ],
)
def test_whether_pods_without_a_class_are_counted_by_no_quota(
    doctor_cluster: DoctorCluster, refusal: str | None, level: FindingLevel
) -> None:
    doctor_cluster.forbidden = {"get secrets"}
    doctor_cluster.admissions.append(lambda thing: None if "priorityClassName" in str(thing) else refusal)
    _, uncounted = [
        each for each in examine_cluster(doctor_cluster, PriorityClassNames()) if each.subject == "admission"
    ]
    assert uncounted.level is level
    assert doctor_cluster.created == []


def test_whether_pods_may_use_foreign_secrets_is_tried_without_creating_one(doctor_cluster: DoctorCluster) -> None:
    doctor_cluster.forbidden = {"get secrets"}
    assert looked_at(doctor_cluster).level is FindingLevel.WARN
    assert "helm install" in looked_at(doctor_cluster).remedy
    refusal = "pods \"edl-data-1\" is forbidden: ValidatingAdmissionPolicy 'edl-data-scientist-pods' denied request: no"
    doctor_cluster.admissions.append(lambda thing: refusal if "foreign" in str(thing) else None)
    assert looked_at(doctor_cluster).level is FindingLevel.OK
    assert doctor_cluster.created == []


def test_a_refusal_for_another_reason_vouches_for_nothing(doctor_cluster: DoctorCluster) -> None:
    doctor_cluster.forbidden = {"get secrets"}
    doctor_cluster.admissions.append(lambda thing: "exceeded quota: team")
    one = looked_at(doctor_cluster)
    assert (one.level, "is unknown" in one.text) == (FindingLevel.WARN, True)


def test_who_may_read_secrets_is_not_held_to_the_policies(doctor_cluster: DoctorCluster) -> None:
    assert looked_at(doctor_cluster).level is FindingLevel.OK
    assert doctor_cluster.dry_runs == []


def test_a_release_that_other_teams_need_is_not_to_be_uninstalled(doctor_cluster: DoctorCluster) -> None:
    """Of its own teams, other accounts' bindings, and Roles of the same name, nothing is said."""

    def bind(namespace: str, release: str = "", *, kind: str = "ClusterRole", role: str = "edl-job-master") -> None:
        release_annotations = (
            {"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": "team"} if release else {}
        )
        meta = {"name": f"{role}-{kind}".lower(), "namespace": namespace, "annotations": release_annotations}
        head = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": meta}
        doctor_cluster.put({**head, "roleRef": {"kind": kind, "name": role}})

    bind("own", "edl")
    bind("team", role="edl-data-scientist")
    bind("team", kind="Role")
    (fine,) = check_uninstall(doctor_cluster, "edl")
    assert fine.level is FindingLevel.OK
    bind("vision", "edl-vision")
    bind("speech")
    refused = list(check_uninstall(doctor_cluster, "edl"))
    assert [each.level for each in refused] == [FindingLevel.FAIL, FindingLevel.FAIL]
    speech, vision = (each.text for each in refused)
    assert not missing_keys(speech, "namespace speech", "edl", "no release")
    assert not missing_keys(vision, "namespace vision", "edl", "release edl-vision")
    assert "helm uninstall edl -n team --no-hooks" in refused[0].remedy
