"""Jobs as the command line sees them."""

from __future__ import annotations

import pytest
from support.in_memory_cluster import InMemoryCluster
from support.job_objects import conditions, put_job, put_pod, with_status
from support.text_keys import missing_keys

from edl.api.cluster_port import Role
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.resource_kinds import CONFIGMAPS, Manifest
from edl.jobfile.published_status import PublishedStatus
from edl.ops.job_view import UnknownJobError, find_job, list_job_pods, list_jobs, pod_label


@pytest.mark.parametrize(
    ("published", "status", "spec", "phase"),
    [
        ("Training", {"ready": 1}, {}, "Training"),
        ("Done", conditions(Complete=""), {}, "Done"),
        ("Training", conditions(Complete=""), {}, "Done"),
        ("Failed", conditions(Failed="BackoffLimitExceeded"), {}, "Failed"),
        ("Interrupted", conditions(Failed=""), {}, "Interrupted"),
        ("Training", conditions(Failed=""), {}, "Failed"),
        ("", {"ready": 1}, {}, "Starting"),
        ("", {"active": 1}, {}, "Pending"),
        ("", {}, {"suspend": True}, "Suspended"),
    ],
)
def test_phases(published: str, status: Manifest, spec: Manifest, phase: str) -> None:
    cluster = InMemoryCluster()
    put_job(
        cluster, published=with_status(phase=published) if published else PublishedStatus(), status=status, spec=spec
    )
    assert find_job(cluster, "mnist").phase == phase


def test_the_jobs_of_one_namespace_or_all() -> None:
    cluster = InMemoryCluster()
    put_job(cluster, "b")
    put_job(cluster, "a")
    put_job(cluster, "a", namespace="other")
    assert [(job.namespace, job.name) for job in list_jobs(cluster)] == [("team", "a"), ("team", "b")]
    assert len(list_jobs(cluster, all_namespaces=True)) == 3


def test_pages_of_another_version_hide_nothing_else() -> None:
    cluster = InMemoryCluster()
    put_job(cluster, "old", {"status.json": '{"phase": "Training"}'})
    put_job(cluster, "new")
    new, old = list_jobs(cluster)
    assert (new.phase, new.unreadable_reason) == ("Training", "")
    assert old.phase == "Starting"
    assert "status.json" in old.unreadable_reason


def test_a_job_without_its_page_is_found() -> None:
    cluster = InMemoryCluster()
    put_job(cluster)
    cluster.delete(CONFIGMAPS, names.status_configmap("mnist"))
    assert find_job(cluster, "mnist").status is None


@pytest.mark.parametrize(
    ("there", "hint"),
    [(["mnis"], "mnis"), (["a", "b"], "a, b"), ([], "no jobs")],
)
def test_an_unknown_job_names_those_that_are_known(there: list[str], hint: str) -> None:
    cluster = InMemoryCluster()
    for name in there:
        put_job(cluster, name)
    with pytest.raises(UnknownJobError, match=r"mnist.*namespace team") as unknown:
        find_job(cluster, "mnist")
    assert not missing_keys(unknown.value.hint or "", hint)
    assert unknown.value.exit_code == 2


def test_pods_in_the_order_of_people() -> None:
    cluster = InMemoryCluster()
    for role, index in ((Role.WORKER, 10), (Role.WORKER, 2), (Role.PS, 0), (Role.MASTER, 0)):
        put_pod(cluster, role, index)
    assert [pod_label(pod) for pod in list_job_pods(cluster, "mnist")] == ["master", "ps-0", "worker-2", "worker-10"]
