from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.in_memory_cluster import InMemoryCluster, when

from edl.api.cluster_port import Role
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.resource_kinds import CONFIGMAPS, JOBS, PODS, Manifest
from edl.ops.job_deletion import JobObjects
from edl.ops.release.release_view import ReleaseCleanup, select_departing
from edl.ops.release.submitter_decision import MasterJob

OLD = MasterJob("mnist", "old", "submitter-a")


def owned_object(kind: str, name: str, owner: str = "", role: Role | None = None, **meta: Any) -> Manifest:
    owners = [{"kind": "Job", "name": names.master_name("mnist"), "uid": owner}] if owner else []
    version = "batch/v1" if kind == "Job" else "v1"
    metadata = {"name": name, "labels": names.object_labels("mnist", role), "ownerReferences": owners, **meta}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {}}


def job(uid: str) -> Manifest:
    return owned_object("Job", names.master_name("mnist"), uid=uid)


def names_of(found: list[Manifest]) -> set[str]:
    return {each["metadata"]["name"] for each in found}


def test_a_later_job_of_the_same_name_stays_untouched() -> None:
    cluster = InMemoryCluster()
    cluster.put(job("new"))
    cluster.put(owned_object("Pod", "new-master", "new", Role.MASTER))
    cluster.put(owned_object("ConfigMap", "new-spec", "new"))
    assert not ReleaseCleanup(cluster, "mnist").delete_round([OLD])
    assert names_of(cluster.objects_of_kind(PODS)) == {"new-master"}
    assert names_of(cluster.objects_of_kind(CONFIGMAPS)) == {"new-spec"}
    assert len(cluster.objects_of_kind(JOBS)) == 1


def test_the_old_master_is_told_to_go_before_its_workers_follow_their_job() -> None:
    cluster = InMemoryCluster()
    for name, role in (("old-master", Role.MASTER), ("old-worker", Role.WORKER)):
        cluster.put(owned_object("Pod", name, "old", role))  # the garbage collector has not come yet
    left = ReleaseCleanup(cluster, "mnist").delete_round([OLD])
    assert names_of(left.select_kind(PODS)) == {"old-master", "old-worker"}
    assert names_of(cluster.objects_of_kind(PODS)) == {"old-worker"}


def test_a_pod_that_a_dead_node_holds_is_taken_from_it() -> None:
    cluster = InMemoryCluster()
    cluster.put(owned_object("Pod", "lost", "old", Role.WORKER, deletionTimestamp=when(cluster.now)))
    clearing = ReleaseCleanup(cluster, "mnist")
    assert clearing.delete_round()
    assert cluster.objects_of_kind(PODS)
    cluster.now += 31
    assert clearing.delete_round()
    assert not clearing.delete_round()


def test_what_was_made_under_another_name_is_waited_for_too() -> None:
    cluster = InMemoryCluster()
    cluster.held.add("old-master")
    cluster.put(job("old"))
    cluster.put(owned_object("Pod", "old-master", "old", Role.MASTER))
    clearing = ReleaseCleanup(cluster, "digits")
    assert clearing.delete_round([OLD])
    assert clearing.delete_round()
    cluster.delete(PODS, "old-master", grace=0)
    assert not clearing.delete_round()


UIDS = st.sampled_from(["", "a", "b", "c"])


@given(st.sets(st.sampled_from(["a", "b"])), st.lists(st.tuples(UIDS, st.booleans()), max_size=6), st.sets(UIDS))
def test_what_departs_is_deleted_or_owned_by_nobody_who_stays(
    jobs: set[str], parts: list[tuple[str, bool]], going: set[str]
) -> None:
    objects = [job(uid) for uid in sorted(jobs)]
    for number, (owner, leaving) in enumerate(parts):
        gone = {"deletionTimestamp": when(0.0)} if leaving else {}
        objects.append(owned_object("ConfigMap", f"part-{number}", owner, uid=f"uid-{number}", **gone))
    departing = select_departing(JobObjects(tuple(objects), 0.0), going).objects
    for each in objects:
        meta = each["metadata"]
        owners = {owner["uid"] for owner in meta["ownerReferences"]}
        stays = meta["uid"] not in going if each["kind"] == "Job" else not owners or bool(owners & (jobs - going))
        assert (each in departing) == ("deletionTimestamp" in meta or not stays)
