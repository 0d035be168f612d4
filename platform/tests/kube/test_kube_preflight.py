from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from kube.test_kube_submit import SPEC
from small_cluster import Admission, SmallCluster

from edl.core.cluster import Role
from edl.kube import names
from edl.kube.errors import AwayError, BusyError
from edl.kube.kinds import (
    CLAIMS,
    JOBS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    QUOTAS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Manifest,
)
from edl.kube.submission.preflight import PreflightError, Survey, survey
from edl.kube.submission.request import Request, request_of
from edl.kube.submission.submit import create
from edl.spec.job import JobSpec, Workers
from edl.spec.placement import Pod

PULLED = replace(SPEC, pod=Pod(image_pull_secrets=("puller",)))


def ready() -> SmallCluster:
    cluster = SmallCluster()
    cluster.accounts()
    cluster.claim("files")
    cluster.node("n1")
    return cluster


def asked(cluster: SmallCluster, spec: JobSpec = SPEC, run: str | None = None) -> Survey:
    return survey(cluster, request_of(spec, namespace="team", run=run))


def refused(cluster: SmallCluster, spec: JobSpec = SPEC, run: str | None = None) -> str:
    before = dict(cluster.objects)
    with pytest.raises(PreflightError) as caught:
        asked(cluster, spec, run)
    assert caught.value.exit_code == 2
    assert cluster.objects == before
    return str(caught.value)


def of_pods(message: str, *roles: str) -> Admission:
    """An admission rule that refuses the pods of these roles."""

    def admission(thing: Manifest) -> str | None:
        return message if thing["kind"] == "Pod" and thing["metadata"]["labels"][names.ROLE] in roles else None

    return admission


def test_every_object_and_one_pod_of_each_kind_is_shown_to_the_server() -> None:
    cluster = ready()
    found = asked(cluster, replace(SPEC, workers=Workers(1, 5, priority="high=0.5")))
    pods = [thing for thing in cluster.dry_runs if thing["kind"] == "Pod"]
    classes = sorted((pod["metadata"]["labels"][names.ROLE], pod["spec"]["priorityClassName"]) for pod in pods)
    assert classes == [("master", "high"), ("ps", "high"), ("worker", "high"), ("worker", "low")]
    assert [(crowd.role, crowd.count) for crowd in found.crowds] == [
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
    assert [crowd.pod["spec"]["priority"] for crowd in asked(cluster).crowds] == [7, 7, 7]


def test_every_reason_is_in_one_message_each_once() -> None:
    cluster = SmallCluster()
    cluster.accounts()
    cluster.admissions += [
        of_pods('violates PodSecurity "restricted:latest": hostPath volumes (volume "v0")', "master", "ps"),
        of_pods("exceeded quota: team, requested: pods=1, used: pods=9, limited: pods=9", "worker"),
    ]
    assert refused(cluster, PULLED).splitlines() == [
        "Job j cannot be submitted to namespace team; nothing was created.",
        '  master and ps pods: violates PodSecurity "restricted:latest": hostPath volumes (volume "v0")',
        "    EDL's own pods pass `restricted`: look at pod.overrides, host_path volumes and security.run_as in the job "
        "file.",
        "  worker pods: exceeded quota: team, requested: pods=1, used: pods=9, limited: pods=9",
        "    Ask for less, wait until other jobs of the namespace have ended, or have its admin raise the quota.",
        "  there is no PersistentVolumeClaim files in namespace team",
        "    Create it, or change volumes or storage.claim in the job file; kubectl get pvc lists what there is.",
        "  there is no Secret puller in namespace team",
        "    Create it, or change pod.image_pull_secrets in the job file.",
    ]


def test_a_missing_priority_class_is_named_with_those_that_there_are() -> None:
    cluster = ready()
    for name in ("batch", "low", "system-node-critical"):
        cluster.put({"kind": "PriorityClass", "metadata": {"name": name}})
    cluster.admissions.append(of_pods("no PriorityClass with name high was found", "master", "ps"))
    text = refused(cluster)
    assert text.count("master and ps pods: there is no PriorityClass high") == 1
    assert "there are: batch, low." in text
    cluster.deny("list", PRIORITY_CLASSES)
    assert "kubectl get priorityclasses lists them" in refused(cluster)


def test_a_missing_service_account_is_named() -> None:
    cluster = ready()
    message = 'error looking up service account team/edl-none: serviceaccount "edl-none" not found'
    cluster.admissions.append(of_pods(message, "ps", "worker"))
    cluster.deny("list", SERVICE_ACCOUNTS)
    assert "ps and worker pods: there is no ServiceAccount edl-none" in refused(cluster)


def test_admission_stops_at_the_first_reason_and_the_message_does_not() -> None:
    cluster = ready()
    cluster.put({"kind": "PriorityClass", "metadata": {"name": "low"}})
    del cluster.objects["serviceaccounts", "team", "edl-job-master"]
    cluster.admissions.append(of_pods("no PriorityClass with name high was found", "master", "ps"))
    text = refused(cluster)
    assert "master and ps pods: there is no PriorityClass high" in text
    assert "master pods: there is no ServiceAccount edl-job-master" in text


def test_a_missing_right_is_named_with_verb_resource_namespace_and_who_grants_it() -> None:
    cluster = ready()
    cluster.deny("create", JOBS)
    text = refused(cluster)
    assert 'User "ann" cannot create resource "jobs" in API group "batch" in the namespace "team"' in text
    assert "its admin, who binds the ClusterRole edl-data-scientist" in text


def test_what_may_not_be_looked_at_is_said_and_hinders_nothing() -> None:
    cluster = ready()
    cluster.deny("get", SECRETS, CLAIMS)
    cluster.deny("list", NODES, QUOTAS)
    found = asked(cluster, PULLED)
    assert (found.nodes, found.quotas) == (None, None)
    assert found.remarks == (
        "it is not known whether PersistentVolumeClaim files exists: you may not read persistentvolumeclaims",
        "it is not known whether Secret puller exists: you may not read secrets",
    )


def test_a_claim_for_one_node_is_remarked_and_a_lost_one_refused() -> None:
    cluster = ready()
    cluster.claim("files", "ReadWriteOnce")["status"] = {"phase": "Bound"}
    (remark,) = asked(cluster).remarks
    assert "claim files is ReadWriteOnce, not ReadWriteMany" in remark
    cluster.claim("files")["status"] = {"phase": "Lost"}
    assert "PersistentVolumeClaim files has lost its volume" in refused(cluster)


def test_pods_that_ended_are_not_asked_for() -> None:
    cluster = ready()
    queries: list[str] = []
    real = cluster.list

    def listing(kind: object, **options: object) -> object:
        queries.append(str(options.get("fields", "")))
        return real(kind, **options)

    cluster.list = listing
    asked(cluster)
    assert "status.phase!=Succeeded,status.phase!=Failed" in queries


def taken(cluster: SmallCluster, *conditions: str) -> None:
    create(cluster, "j", request_of(SPEC, namespace="team").manifests, "s0")
    (job,) = cluster.of(JOBS)
    job["status"] = {"conditions": [{"type": one, "status": "True"} for one in conditions]}


def test_a_name_that_is_taken_says_since_when_and_what_to_do() -> None:
    cluster = ready()
    taken(cluster)
    text = refused(cluster)
    assert "the name j is taken by a job of 2027-01-15 08:00:00 UTC, which is at work" in text
    assert "edl delete j" in text
    assert "already exists" not in text
    assert "which is at work" in refused(cluster, run="latest")


def test_an_ended_job_is_replaced_only_when_it_is_resumed() -> None:
    cluster = ready()
    taken(cluster, "Complete")
    assert "which has ended (Done)" in refused(cluster)
    assert len(asked(cluster, run="latest").there.of(JOBS)) == 1


def test_a_job_that_is_being_deleted_is_waited_for() -> None:
    cluster = ready()
    taken(cluster)
    cluster.of(JOBS)[0]["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:10Z"
    assert "which is being deleted" in refused(cluster, run="latest")


def test_what_an_earlier_job_left_is_named() -> None:
    cluster = ready()
    cluster.put({"kind": "ConfigMap", "metadata": {"name": names.spec("j"), "labels": names.labels("j")}})
    assert "an earlier job j left something behind: ConfigMap edl-j-spec" in refused(cluster)


def test_a_name_that_others_use_is_not_this_job_s() -> None:
    cluster = ready()
    cluster.put({"kind": "Service", "metadata": {"name": names.master("j")}})
    assert f'services "{names.master("j")}" already exists, and it is not this job\'s' in refused(cluster)
    assert len(cluster.of(SERVICES)) == 1


def test_a_namespace_that_is_not_there_is_said_once() -> None:
    cluster = ready()
    real = cluster.create

    def missing(*_: object, **__: object) -> Manifest:
        from edl.kube.errors import translate

        raise translate(404, b'{"message": "namespaces \\"team\\" not found"}', where="")

    cluster.create = missing
    assert refused(cluster).count("there is no namespace team") == 1
    cluster.create = real


@pytest.mark.parametrize("error", [AwayError("no answer"), BusyError("come back later")])
@pytest.mark.parametrize("request_kind", [("GET", PODS), ("POST", PODS), ("POST", JOBS)])
def test_a_server_that_does_not_answer_is_no_finding(error: Exception, request_kind: tuple[str, object]) -> None:
    cluster = ready()
    cluster.breaks[request_kind[0], request_kind[1].plural] = error
    with pytest.raises(type(error)):
        asked(cluster)


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
    asked(cluster)


def test_a_request_names_what_its_pods_need() -> None:
    found: Request = request_of(PULLED, namespace="team")
    assert (found.claims, tuple(found.pull_secrets), found.replaces) == (("files",), ("puller",), False)
