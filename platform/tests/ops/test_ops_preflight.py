from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from ops.test_ops_job_submission import SPEC
from support.in_memory_cluster import Admission, InMemoryCluster
from support.text_keys import missing_keys

from edl.api.cluster_port import Role
from edl.api.job_spec import JobSpec, WorkerSpec
from edl.api.pod_spec import PodSpec
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_errors import NoResponseError, ServerBusyError
from edl.cluster.kubernetes.resource_kinds import (
    JOBS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    VOLUME_CLAIMS,
    Manifest,
)
from edl.ops.job_submission import submit_job
from edl.ops.preflight import PreflightError, PreflightResult, run_preflight
from edl.ops.submission_request import SubmissionRequest, build_request

PULLED = replace(SPEC, pod=PodSpec(image_pull_secrets=("puller",)))


def ready() -> InMemoryCluster:
    cluster = InMemoryCluster()
    cluster.accounts()
    cluster.claim("files")
    cluster.node("n1")
    return cluster


def check_cluster(cluster: InMemoryCluster, spec: JobSpec = SPEC, run: str | None = None) -> PreflightResult:
    return run_preflight(cluster, build_request(spec, namespace="team", run=run))


def preflight_refusal(cluster: InMemoryCluster, spec: JobSpec = SPEC, run: str | None = None) -> str:
    before = dict(cluster.objects)
    with pytest.raises(PreflightError) as caught:
        check_cluster(cluster, spec, run)
    assert caught.value.exit_code == 2
    assert cluster.objects == before
    return str(caught.value)


def of_pods(message: str, *roles: str) -> Admission:
    """An admission rule that refuses the pods of these roles."""

    def admission(thing: Manifest) -> str | None:
        return message if thing["kind"] == "Pod" and thing["metadata"]["labels"][names.ROLE_LABEL] in roles else None

    return admission


def test_every_object_and_one_pod_of_each_kind_is_shown_to_the_server() -> None:
    cluster = ready()
    preflight = check_cluster(cluster, replace(SPEC, workers=WorkerSpec(1, 5, priority="high=0.5")))
    pods = [thing for thing in cluster.dry_runs if thing["kind"] == "Pod"]
    classes = sorted((pod["metadata"]["labels"][names.ROLE_LABEL], pod["spec"]["priorityClassName"]) for pod in pods)
    assert classes == [("master", "high"), ("ps", "high"), ("worker", "high"), ("worker", "low")]
    assert [(crowd.role, crowd.count) for crowd in preflight.pod_groups] == [
        (Role.MASTER, 1),
        (Role.PS, 1),
        (Role.WORKER, 3),
        (Role.WORKER, 2),
    ]
    assert sorted(thing["kind"] for thing in cluster.dry_runs if thing["kind"] != "Pod") == [
        "ConfigMap",
        "ConfigMap",
        "Job",
        "Secret",
        "Service",
    ]
    assert cluster.created == []


def test_the_pods_are_those_that_the_server_admits() -> None:
    def classes(thing: Manifest) -> None:
        if thing["kind"] == "Pod":
            thing["spec"]["priority"] = 7

    cluster = ready()
    cluster.admissions.append(classes)
    assert [crowd.pod["spec"]["priority"] for crowd in check_cluster(cluster).pod_groups] == [7, 7, 7]


def test_every_reason_is_in_one_message_each_once() -> None:
    cluster = InMemoryCluster()
    cluster.accounts()
    cluster.admissions += [
        of_pods('violates PodSecurity "restricted:latest": hostPath volumes (volume "v0")', "master", "ps"),
        of_pods("exceeded quota: team, requested: pods=1, used: pods=9, limited: pods=9", "worker"),
    ]
    head, *lines = preflight_refusal(cluster, PULLED).splitlines()
    assert not missing_keys(head, "Job j", "namespace team")
    reasons, remedies = lines[::2], lines[1::2]
    assert all(line.startswith("  ") and line[2] != " " for line in reasons)
    assert all(line.startswith("    ") for line in remedies)
    security, quota, claim, secret = zip(reasons, remedies, strict=True)
    violated = 'violates PodSecurity "restricted:latest": hostPath volumes (volume "v0")'
    assert not missing_keys(security[0], "master", "ps", violated)
    assert not missing_keys(security[1], "restricted", "pod.overrides", "host_path", "security.run_as")
    assert not missing_keys(
        quota[0], "worker", "exceeded quota: team, requested: pods=1, used: pods=9, limited: pods=9"
    )
    assert not missing_keys(quota[1], "quota")
    assert not missing_keys(claim[0], "PersistentVolumeClaim files", "namespace team")
    assert not missing_keys(claim[1], "volumes", "storage.claim", "kubectl get pvc")
    assert not missing_keys(secret[0], "Secret puller", "namespace team")
    assert not missing_keys(secret[1], "pod.image_pull_secrets")


def test_a_missing_priority_class_is_named_with_those_that_there_are() -> None:
    cluster = ready()
    for name in ("batch", "low", "system-node-critical"):
        cluster.put({"kind": "PriorityClass", "metadata": {"name": name}})
    cluster.admissions.append(of_pods("no PriorityClass with name high was found", "master", "ps"))
    text = preflight_refusal(cluster)
    assert text.count("PriorityClass high") == 1
    assert not missing_keys(text, "master", "ps", "batch, low")
    cluster.deny("list", PRIORITY_CLASSES)
    assert not missing_keys(preflight_refusal(cluster), "kubectl get priorityclasses")


def test_a_missing_service_account_is_named() -> None:
    cluster = ready()
    message = 'error looking up service account team/edl-none: serviceaccount "edl-none" not found'
    cluster.admissions.append(of_pods(message, "ps", "worker"))
    cluster.deny("list", SERVICE_ACCOUNTS)
    assert not missing_keys(preflight_refusal(cluster), "ps", "worker", "ServiceAccount edl-none")


def test_admission_stops_at_the_first_reason_and_the_message_does_not() -> None:
    cluster = ready()
    cluster.put({"kind": "PriorityClass", "metadata": {"name": "low"}})
    del cluster.objects["serviceaccounts", "team", "edl-job-master"]
    cluster.admissions.append(of_pods("no PriorityClass with name high was found", "master", "ps"))
    text = preflight_refusal(cluster)
    assert not missing_keys(text, "PriorityClass high", "ServiceAccount edl-job-master")


def test_a_missing_right_is_named_with_verb_resource_namespace_and_who_grants_it() -> None:
    cluster = ready()
    cluster.deny("create", JOBS)
    text = preflight_refusal(cluster)
    assert not missing_keys(text, '"ann"', "create", '"jobs"', '"team"', "ClusterRole edl-data-scientist")


def test_what_may_not_be_looked_at_is_said_and_hinders_nothing() -> None:
    cluster = ready()
    cluster.deny("get", SECRETS, VOLUME_CLAIMS)
    cluster.deny("list", NODES, RESOURCE_QUOTAS)
    preflight = check_cluster(cluster, PULLED)
    assert (preflight.nodes, preflight.quotas) == (None, None)
    claim, secret = preflight.remarks
    assert not missing_keys(claim, "unknown", "PersistentVolumeClaim files", "persistentvolumeclaims")
    assert not missing_keys(secret, "unknown", "Secret puller", "secrets")


def test_a_claim_for_one_node_is_remarked_and_a_lost_one_refused() -> None:
    cluster = ready()
    cluster.claim("files", "ReadWriteOnce")["status"] = {"phase": "Bound"}
    (remark,) = check_cluster(cluster).remarks
    assert not missing_keys(remark, "claim files", "ReadWriteOnce", "ReadWriteMany")
    cluster.claim("files")["status"] = {"phase": "Lost"}
    assert not missing_keys(preflight_refusal(cluster), "PersistentVolumeClaim files", "volume")


def test_pods_that_ended_are_not_asked_for() -> None:
    cluster = ready()
    queries: list[str] = []
    real = cluster.list

    def listing(kind: object, **options: object) -> object:
        queries.append(str(options.get("fields", "")))
        return real(kind, **options)

    cluster.list = listing
    check_cluster(cluster)
    assert "status.phase!=Succeeded,status.phase!=Failed" in queries


def put_quota_conditions(cluster: InMemoryCluster, *conditions: str) -> None:
    submit_job(cluster, "j", build_request(SPEC, namespace="team").manifests, "s0")
    (job,) = cluster.objects_of_kind(JOBS)
    job["status"] = {"conditions": [{"type": one, "status": "True"} for one in conditions]}


def test_a_name_that_is_taken_says_since_when_and_what_to_do() -> None:
    cluster = ready()
    put_quota_conditions(cluster)
    text = preflight_refusal(cluster)
    assert not missing_keys(text, "2027-01-15 08:00:00 UTC", "which is active", "edl delete j")
    assert "already exists" not in text
    assert not missing_keys(preflight_refusal(cluster, run="latest"), "which is active")


def test_an_ended_job_is_replaced_only_when_it_is_resumed() -> None:
    cluster = ready()
    put_quota_conditions(cluster, "Complete")
    assert not missing_keys(preflight_refusal(cluster), "ended", "Done")
    assert len(check_cluster(cluster, run="latest").job_objects.select_kind(JOBS)) == 1


def test_a_job_that_is_being_deleted_is_waited_for() -> None:
    cluster = ready()
    put_quota_conditions(cluster)
    cluster.objects_of_kind(JOBS)[0]["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:10Z"
    assert not missing_keys(preflight_refusal(cluster, run="latest"), "being deleted")


def test_what_an_earlier_job_left_is_named() -> None:
    cluster = ready()
    cluster.put(
        {"kind": "ConfigMap", "metadata": {"name": names.spec_configmap("j"), "labels": names.object_labels("j")}}
    )
    assert not missing_keys(preflight_refusal(cluster), "earlier job j", "ConfigMap edl-j-spec")


def test_a_name_that_others_use_is_not_this_job_s() -> None:
    cluster = ready()
    cluster.put({"kind": "Service", "metadata": {"name": names.master_name("j")}})
    assert not missing_keys(preflight_refusal(cluster), f'services "{names.master_name("j")}" already exists')
    assert len(cluster.objects_of_kind(SERVICES)) == 1


def test_a_namespace_that_is_not_there_is_said_once() -> None:
    cluster = ready()
    real = cluster.create

    def missing(*_: object, **__: object) -> Manifest:
        from edl.cluster.kubernetes.api_errors import error_from_response

        raise error_from_response(404, b'{"message": "namespaces \\"team\\" not found"}', where="")

    cluster.create = missing
    assert preflight_refusal(cluster).count("no namespace team") == 1
    cluster.create = real


@pytest.mark.parametrize("error", [NoResponseError("no answer"), ServerBusyError("come back later")])
@pytest.mark.parametrize("request_kind", [("GET", PODS), ("POST", PODS), ("POST", JOBS)])
def test_a_server_that_does_not_answer_is_no_finding(error: Exception, request_kind: tuple[str, object]) -> None:
    cluster = ready()
    cluster.breaks[request_kind[0], request_kind[1].plural] = error
    with pytest.raises(type(error)):
        check_cluster(cluster)


def test_everything_is_asked_at_once() -> None:
    """The dry runs of all pods are under way at the same time: each waits for the others."""
    cluster = ready()
    meeting = threading.Barrier(3, timeout=20)
    real = cluster.create

    def meet(manifest: Manifest, **options: object) -> Manifest:
        if manifest["kind"] == "Pod":
            meeting.wait()
        return real(manifest, **options)

    cluster.create = meet
    check_cluster(cluster)


def test_a_request_names_what_its_pods_need() -> None:
    request: SubmissionRequest = build_request(PULLED, namespace="team")
    assert (request.claims, tuple(request.pull_secrets), request.replaces_ended) == (("files",), ("puller",), False)
