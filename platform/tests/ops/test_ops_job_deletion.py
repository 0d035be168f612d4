from __future__ import annotations

from collections.abc import Mapping

import pytest
from ops.test_ops_job_submission import manifests
from support.in_memory_cluster import NOW, InMemoryCluster, when

from edl.api.cluster_port import Role
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_errors import RbacDeniedError
from edl.cluster.kubernetes.job_manifests import owner_reference
from edl.cluster.kubernetes.resource_kinds import JOBS, LEASES, NODES, PODS, SECRETS, Manifest
from edl.ops.job_deletion import (
    DeletionTimeoutError,
    JobDeletion,
    JobObjects,
    is_deletion_stuck,
    list_job_objects,
    plan_deletions,
)
from edl.ops.job_submission import submit_job


class DeletionTime:
    """Passes by sleeping only; the cluster's clock goes along."""

    def __init__(self, cluster: InMemoryCluster) -> None:
        self._cluster = cluster
        self.rounds: list[JobObjects] = []

    def clock(self) -> float:
        return self._cluster.now

    def sleep(self, seconds: float) -> None:
        self._cluster.now += seconds

    def remove(self, seconds: float = 300.0) -> float:
        """How long it took."""
        began = self._cluster.now
        JobDeletion(self._cluster, "j").run_until_gone(self.rounds.append, self.clock, self.sleep, seconds)
        return self._cluster.now - began


def pod(name: str, *, uid: str = "", deleted: float | None = None, node: str = "n1", cause: str = "") -> Manifest:
    meta: Manifest = {"name": name, "uid": f"uid-of-{name}", "labels": names.object_labels("j", Role.WORKER, 0)}
    if uid:
        meta["ownerReferences"] = [owner_reference("j", uid)]
    if deleted is not None:
        meta["deletionTimestamp"] = when(deleted)
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": cause}] if cause else []
    status = {"phase": "Running", "conditions": conditions}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"nodeName": node}, "status": status}


def submitted() -> InMemoryCluster:
    cluster = InMemoryCluster()
    submitted_job = submit_job(cluster, "j", manifests(), "s1")
    cluster.put(pod("edl-j-worker-0", uid=submitted_job.uid))
    return cluster


def test_all_of_a_job_goes_and_nothing_else() -> None:
    cluster = submitted()
    cluster.claim("files")
    cluster.put({"kind": "ConfigMap", "metadata": {"name": "other", "labels": names.object_labels("other")}})
    DeletionTime(cluster).remove()
    assert {name for _, _, name in cluster.objects} == {"files", "other"}


def test_what_nobody_owns_yet_goes_too() -> None:
    """After `edl render | kubectl apply` the master sets the owners; it may never have started."""
    cluster = InMemoryCluster()
    cluster.master = None
    for manifest in manifests():
        cluster.put(manifest)
    lease = {"kind": "Lease", "metadata": {"name": names.master_name("j"), "labels": names.object_labels("j")}}
    cluster.put(lease)
    DeletionTime(cluster).remove()
    assert cluster.objects == {}


def test_what_is_left_without_its_job_goes() -> None:
    cluster = InMemoryCluster()
    cluster.put(pod("edl-j-worker-3"))
    DeletionTime(cluster).remove()
    assert cluster.objects == {}


def test_the_master_goes_first_and_what_the_job_owns_is_left_to_the_cluster() -> None:
    deletions = plan_deletions(list_job_objects(submitted(), "j"), {})
    assert [(each.kind, each.name) for each in deletions] == [
        (PODS, f"{names.master_name('j')}-abcde"),
        (JOBS, names.master_name("j")),
    ]


@pytest.mark.parametrize(
    ("late", "ready", "cause", "stuck"),
    [
        (-20, True, "", False),
        (20, True, "", False),
        (31, True, "", True),
        (31, None, "", True),
        (20, None, "", False),
        (-1, False, "", False),
        (6, False, "", True),
        (6, None, "DeletionByTaintManager", True),
        (6, None, "DeletionByPodGC", True),
        (6, True, "PreemptionByScheduler", False),
    ],
)
def test_a_pod_is_stuck_when_its_node_cannot_let_it_go(
    late: float, ready: bool | None, cause: str, stuck: bool
) -> None:
    assert is_deletion_stuck(pod("p", deleted=NOW - late, cause=cause), ready, NOW) is stuck


def test_a_disruption_that_did_not_happen_is_no_loss_of_the_node() -> None:
    """Kubernetes leaves the condition there, with status False."""
    deleted = pod("p", deleted=NOW - 6, cause="DeletionByTaintManager")
    deleted["status"]["conditions"][0]["status"] = "False"
    assert not is_deletion_stuck(deleted, None, NOW)


def dead_node() -> InMemoryCluster:
    cluster = submitted()
    cluster.node("n1", ready="Unknown")
    cluster.held = {"edl-j-worker-0", f"{names.master_name('j')}-abcde"}
    return cluster


def test_pods_that_a_dead_node_holds_are_taken_from_it_after_their_grace() -> None:
    cluster = dead_node()
    assert DeletionTime(cluster).remove() == pytest.approx(36.0, abs=1.0)
    assert cluster.objects_of_kind(PODS) == []


def test_they_are_also_taken_where_nodes_may_not_be_read() -> None:
    cluster = dead_node()
    cluster.deny("get", NODES)
    assert DeletionTime(cluster).remove() == pytest.approx(61.0, abs=1.0)


def test_a_pod_of_another_uid_is_never_taken() -> None:
    cluster = dead_node()
    removal = JobDeletion(cluster, "j")
    removal.delete_round()
    cluster.now += 40
    stale = cluster.objects["pods", "team", "edl-j-worker-0"]
    listed = list_job_objects(cluster, "j")
    (deletion,) = [each for each in plan_deletions(listed, {"n1": False}) if each.name == "edl-j-worker-0"]
    assert (deletion.uid, deletion.grace_seconds) == (stale["metadata"]["uid"], 0)


def test_what_does_not_go_in_time_is_named() -> None:
    cluster = dead_node()
    with pytest.raises(DeletionTimeoutError, match=r"10 s.*Pod .*worker-0") as caught:
        DeletionTime(cluster).remove(10.0)
    assert "edl delete" in str(caught.value)


def test_each_deletion_is_asked_for_once() -> None:
    cluster = dead_node()
    deletions: list[tuple[str, int | None]] = []
    real = cluster.delete

    def counting(kind: object, name: str, **options: object) -> Mapping[str, object]:
        deletions.append((name, options.get("grace")))
        return real(kind, name, **options)

    cluster.delete = counting
    DeletionTime(cluster).remove()
    assert sorted(deletions, key=str) == sorted(
        [
            (names.master_name("j"), None),
            ("edl-j-worker-0", 0),
            (f"{names.master_name('j')}-abcde", None),
            (f"{names.master_name('j')}-abcde", 0),
        ],
        key=str,
    )


def test_secrets_that_may_not_be_listed_go_with_their_job() -> None:
    cluster = submitted()
    cluster.deny("list", SECRETS, LEASES)
    assert list_job_objects(cluster, "j").unlistable_kinds == ("secrets", "leases")
    DeletionTime(cluster).remove()
    assert cluster.objects == {}


def test_a_token_that_nobody_owns_goes_unseen() -> None:
    cluster = InMemoryCluster()
    for manifest in manifests():
        cluster.put(manifest)
    cluster.deny("list", SECRETS)
    DeletionTime(cluster).remove()
    assert cluster.objects == {}


def test_without_the_right_to_list_pods_nothing_is_claimed() -> None:
    cluster = submitted()
    cluster.deny("list", PODS)
    with pytest.raises(RbacDeniedError, match='cannot list resource "pods"'):
        DeletionTime(cluster).remove()


def test_the_right_to_delete_is_named() -> None:
    cluster = submitted()
    cluster.deny("delete", JOBS)
    with pytest.raises(RbacDeniedError, match='User "ann" cannot delete resource "jobs"') as caught:
        DeletionTime(cluster).remove()
    assert "edl-data-scientist" in str(caught.value)
