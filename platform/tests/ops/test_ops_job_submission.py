from __future__ import annotations

from collections.abc import Callable

import pytest
from support.in_memory_cluster import InMemoryCluster
from support.text_keys import missing_keys

from edl.api.errors import EdlError
from edl.api.job_spec import DataSpec, JobSpec, ModelSpec
from edl.api.pod_spec import VolumeSpec
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_errors import ConflictError, InvalidObjectError, NoResponseError
from edl.cluster.kubernetes.job_manifests import render_job
from edl.cluster.kubernetes.resource_kinds import (
    CONFIGMAPS,
    JOBS,
    PODS,
    SECRETS,
    SERVICES,
    Manifest,
    ResourceKind,
    manifest_kind,
)
from edl.ops.job_submission import (
    create_dependents,
    create_suspended_job,
    is_begun,
    roll_back_submission,
    submit_job,
    unsuspend_job,
)

SPEC = JobSpec(
    "j",
    ModelSpec("m.model"),
    image="image:1",
    data=DataSpec(training=("/data/train",)),
    volumes=(VolumeSpec("/data", claim="files"),),
)


def manifests() -> list[Manifest]:
    return render_job(SPEC, namespace="team", token="t")


def names_of(cluster: InMemoryCluster, kind: ResourceKind) -> list[str]:
    return [thing["metadata"]["name"] for thing in cluster.objects_of_kind(kind)]


def test_the_job_comes_first_and_owns_all_else_before_it_may_run() -> None:
    cluster = InMemoryCluster()
    created_kinds: list[str] = []
    suspended: list[bool] = []

    def hear(thing: Manifest) -> None:
        created_kinds.append(thing["kind"])
        suspended.append(cluster.objects_of_kind(JOBS)[0]["spec"]["suspend"])

    submitted_job = submit_job(cluster, "j", manifests(), "s1", hear)
    assert created_kinds == ["Job", "ConfigMap", "ConfigMap", "Secret", "Service"]
    assert all(suspended)
    (job,) = cluster.objects_of_kind(JOBS)
    assert (submitted_job.uid, submitted_job.job_object_name, submitted_job.namespace) == (
        job["metadata"]["uid"],
        names.master_name("j"),
        "team",
    )
    assert not job["spec"]["suspend"]
    for kind in (CONFIGMAPS, SECRETS, SERVICES):
        for thing in cluster.objects_of_kind(kind):
            (owner,) = thing["metadata"]["ownerReferences"]
            assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (submitted_job.uid, False, False)
    assert len(cluster.objects_of_kind(PODS)) == 1


@pytest.mark.parametrize("kind", [JOBS, CONFIGMAPS, SECRETS, SERVICES])
@pytest.mark.parametrize("error", [InvalidObjectError("no"), NoResponseError("no answer"), KeyboardInterrupt()])
def test_whatever_fails_on_the_way_nothing_is_left(kind: ResourceKind, error: BaseException) -> None:
    cluster = InMemoryCluster()
    cluster.breaks["POST", kind.plural] = error
    with pytest.raises(type(error)):
        submit_job(cluster, "j", manifests(), "s1")
    assert cluster.objects == {}


def test_a_job_that_may_not_be_started_is_removed() -> None:
    cluster = InMemoryCluster()
    cluster.deny("patch", JOBS)
    with pytest.raises(EdlError, match="cannot patch"):
        submit_job(cluster, "j", manifests(), "s1")
    assert cluster.objects == {}


def test_what_cannot_be_removed_either_is_named() -> None:
    cluster = InMemoryCluster()
    cluster.breaks["POST", SECRETS.plural] = InvalidObjectError("no")
    cluster.breaks["DELETE", JOBS.plural] = NoResponseError("no answer")
    with pytest.raises(InvalidObjectError) as caught:
        submit_job(cluster, "j", manifests(), "s1")
    assert not missing_keys(str(caught.value), "edl-j-master", "suspended", "no answer")


def losing_answers(cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each creation is carried out, its answer gets lost, and the client asks again."""
    once: Callable[..., Manifest] = cluster.create

    def twice(manifest: Manifest) -> Manifest:
        once(manifest)
        return once(manifest)

    monkeypatch.setattr(cluster, "create", twice)


def test_a_creation_that_arrives_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = InMemoryCluster()
    losing_answers(cluster, monkeypatch)
    submit_job(cluster, "j", manifests(), "s1")
    assert len(cluster.objects_of_kind(PODS)) == 1


def test_a_job_of_somebody_else_stays_untouched() -> None:
    cluster = InMemoryCluster()
    submit_job(cluster, "j", manifests(), "s1")
    before = dict(cluster.objects)
    with pytest.raises(ConflictError):
        submit_job(cluster, "j", manifests(), "s2")
    assert cluster.objects == before


def test_an_object_of_somebody_else_stays_and_the_job_goes() -> None:
    cluster = InMemoryCluster()
    other = next(thing for thing in manifests() if manifest_kind(thing) is SERVICES)
    cluster.put(other)
    with pytest.raises(ConflictError):
        submit_job(cluster, "j", manifests(), "s1")
    assert names_of(cluster, SERVICES) == [names.master_name("j")]
    assert len(cluster.objects) == 1


def test_the_steps_of_a_submission_can_be_done_twice_and_by_two() -> None:
    cluster = InMemoryCluster()
    cluster.deny("get", SECRETS)
    *parts, job = manifests()
    submitted_job = create_suspended_job(cluster, "j", job, "s1")
    assert create_suspended_job(cluster, "j", job, "s1") == submitted_job
    for _ in range(2):
        create_dependents(cluster, submitted_job, parts)
    assert not is_begun(cluster.objects_of_kind(JOBS)[0])
    unsuspend_job(cluster, submitted_job)
    unsuspend_job(cluster, submitted_job)
    assert is_begun(cluster.objects_of_kind(JOBS)[0])
    assert (
        len(cluster.objects_of_kind(JOBS)),
        len(cluster.objects_of_kind(CONFIGMAPS)),
        len(cluster.objects_of_kind(SECRETS)),
    ) == (1, 2, 1)


def test_nothing_is_withdrawn_that_was_begun_or_is_of_somebody_else() -> None:
    cluster = InMemoryCluster()
    *_, job = manifests()
    roll_back_submission(cluster, names.master_name("j"), "s1")
    submitted_job = create_suspended_job(cluster, "j", job, "s1")
    roll_back_submission(cluster, names.master_name("j"), "s2")
    assert cluster.objects_of_kind(JOBS)
    unsuspend_job(cluster, submitted_job)
    roll_back_submission(cluster, names.master_name("j"), "s1")
    assert cluster.objects_of_kind(JOBS)


def test_another_job_of_that_name_is_not_begun() -> None:
    cluster = InMemoryCluster()
    *_, job = manifests()
    submitted_job = create_suspended_job(cluster, "j", job, "s1")
    roll_back_submission(cluster, names.master_name("j"), "s1")
    create_suspended_job(cluster, "j", job, "s2")
    with pytest.raises(InvalidObjectError, match="uid"):
        unsuspend_job(cluster, submitted_job)
    assert not is_begun(cluster.objects_of_kind(JOBS)[0])
