"""The cluster port on real pods: the same cases as on the scripted API server, and what only real pods can show."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest
from e2e import namespaces
from e2e.conftest import ARTIFACTS
from e2e.images import MISSING, JobImages
from e2e.jobs import evict_pod, in_container
from e2e.namespaces import Namespace
from e2e.pods import pod
from e2e.site import TargetSite
from support.cluster_contract import PodContract, WatchThread, running, synced_watch

from edl.api.cluster_port import PodOptions, PodPhase, PodStatus, Role, TerminationCause
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.kube_cluster import KubeCluster
from edl.cluster.kubernetes.kubeconfig import load_connection
from edl.cluster.kubernetes.rate_limiter import TokenBucketLimiter
from edl.cluster.kubernetes.resource_kinds import JOBS, PODS, Manifest

pytestmark = [pytest.mark.xdist_group("contract"), pytest.mark.in_turn(2)]

OBEDIENT = """
echo 143 > /tmp/answer
trap 'answer=$(cat /tmp/answer); [ "$answer" = none ] || exit "$answer"' TERM
touch /tmp/listens
while [ ! -f /tmp/exit ]; do sleep 0.1; done
exit "$(cat /tmp/exit)"
"""
"""Does what the test says. A SIGKILL from outside cannot be sent from within; its exit code can."""
GREEDY = "x=aaaaaaaaaaaaaaaa; while true; do x=$x$x; done"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def bare_namespace(target_site: TargetSite, job_images: JobImages) -> Iterator[Namespace]:
    """A namespace that enforces ``restricted``, without anything of EDL's."""
    with namespaces.new_namespace(
        target_site, job_images, ARTIFACTS / "contract", volume=False, base=False
    ) as namespace:
        yield namespace


class PodClusterHarness:
    """A job of shell scripts, and what a test does to its pods."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.job = f"contract-{next(_numbers)}"
        self.script, self.image, self.extra = OBEDIENT, namespace.images.submitter, {}
        template = pod(names.master_name(self.job), namespace.images.submitter, "true", restartPolicy="OnFailure")
        job = {"suspend": True, "template": {"spec": template["spec"]}}
        meta = {"name": names.master_name(self.job), "labels": names.object_labels(self.job)}
        created = namespace.api.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": job})
        self._job_uid = created["metadata"]["uid"]
        self._clusters: list[KubeCluster] = []
        self.cluster = self.connect()

    def connect(self) -> KubeCluster:
        api = KubeClient(load_connection(namespace=self.namespace.name), rate_limiter=TokenBucketLimiter())
        self._clusters.append(KubeCluster(api, self.job, self._job_uid, self.namespace.name, self._render_pod))
        return self._clusters[-1]

    def _render_pod(self, role: Role, index: int, wish: PodOptions) -> Manifest:
        labels = names.object_labels(self.job, role, index) | ({names.ELEVATED_LABEL: "true"} if wish.elevated else {})
        name = names.pod_name(self.job, role, index)
        manifest = pod(name, self.image, "sh", "-c", self.script, labels=labels, restartPolicy="Never", **self.extra)
        container = manifest["spec"]["containers"][0]
        container["name"] = names.ROLE_CONTAINER
        container["resources"]["limits"] = {"memory": container["resources"]["requests"]["memory"]}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": names.master_name(self.job), "uid": self._job_uid}
        manifest["metadata"]["ownerReferences"] = [owner | {"controller": False, "blockOwnerDeletion": False}]
        return manifest

    def pod_name_of(self, uid: str) -> str:
        pods = self.namespace.api.list(PODS, labels=names.label_selector(self.job)).items
        return next(each["metadata"]["name"] for each in pods if each["metadata"]["uid"] == uid)

    def run_script(self, uid: str, script: str) -> None:
        self.namespace.kubectl("exec", self.pod_name_of(uid), "--", "sh", "-c", script)

    def await_running(self, uid: str) -> None:
        running = "--for=jsonpath={.status.phase}=Running"
        self.namespace.kubectl("wait", f"pod/{self.pod_name_of(uid)}", running, "--timeout=60s")
        self.run_script(uid, "until [ -f /tmp/listens ]; do sleep 0.05; done")

    def exit(self, uid: str, code: int) -> None:
        # The container may be gone before the command in it has ended.
        in_container(
            self.namespace, self.pod_name_of(uid), "sh", "-c", f"echo {code} > /tmp/code && mv /tmp/code /tmp/exit"
        )

    def kill(self, uid: str) -> None:
        self.exit(uid, 137)

    def terminate(self, uid: str) -> None:
        self.run_script(uid, "kill -TERM 1")

    def exit_on_sigterm(self, uid: str, code: int) -> None:
        self.run_script(uid, f"echo {code} > /tmp/answer")

    def ignore_sigterm(self, uid: str) -> None:
        self.run_script(uid, "echo none > /tmp/answer")

    def lose_node(self, uid: str) -> None:
        self._set_ready(uid, "False")

    def restore_node(self, uid: str) -> None:
        self._set_ready(uid, "True")

    def _set_ready(self, uid: str, ready: str) -> None:
        """What the node controller writes; the kubelet, which is there, soon writes the truth again."""
        condition = {"type": "Ready", "status": ready, "lastTransitionTime": "2023-11-14T22:13:20Z", "reason": None}
        patch = json.dumps({"status": {"conditions": [condition]}})
        self.namespace.kubectl(
            "patch", "pod", self.pod_name_of(uid), "--subresource=status", "--type=strategic", "-p", patch
        )

    def advance_time(self, seconds: float) -> None:
        """Real time passes by itself."""

    def close(self) -> None:
        for cluster in self._clusters:
            cluster.close()
        self.namespace.api.delete(JOBS, names.master_name(self.job))
        self.namespace.kubectl(
            "delete", "pods", "-l", names.label_selector(self.job), "--grace-period=0", "--force", "--wait=false"
        )


@pytest.fixture
def harness(bare_namespace: Namespace) -> Iterator[PodClusterHarness]:
    """A job of its own for each case."""
    harness = PodClusterHarness(bare_namespace)
    yield harness
    harness.close()


class TestPods(PodContract):
    """The contract, on the cluster of ``KUBECONFIG``."""


def start_worker(harness: PodClusterHarness) -> tuple[WatchThread, str]:
    """A watch, and a worker that runs."""
    watch = synced_watch(harness)
    return watch, running(harness)


def the_way_out(watch: WatchThread, uid: str) -> tuple[PodStatus, PodStatus]:
    """What was said while it was leaving, and of its end."""
    last = watch.ended(uid)
    return next(status for status in watch.seen if status.uid == uid and status.leaving), last


def test_deletion_by_hand(harness: PodClusterHarness) -> None:
    watch, uid = start_worker(harness)
    harness.namespace.kubectl("delete", "pod", harness.pod_name_of(uid), "--wait=false")
    leaving, last = the_way_out(watch, uid)
    assert (leaving.cause, last.cause) == (TerminationCause.DELETED, TerminationCause.DELETED)
    assert (last.phase, last.exit_code) == (PodPhase.GONE, 143)


def test_eviction(harness: PodClusterHarness) -> None:
    watch, uid = start_worker(harness)
    evict_pod(harness.namespace, harness.pod_name_of(uid))
    leaving, last = the_way_out(watch, uid)
    assert (leaving.cause, last.cause) == (TerminationCause.EVICTED, TerminationCause.EVICTED)
    assert (last.phase, last.exit_code) == (PodPhase.GONE, 143)


def test_end_for_want_of_memory_is_told_apart_from_a_kill(harness: PodClusterHarness) -> None:
    harness.script, harness.extra = GREEDY, {"memory": "32Mi"}
    watch = WatchThread(harness.cluster)
    watch.synced()
    last = watch.ended(harness.cluster.start(Role.WORKER, 0))
    assert (last.phase, last.exit_code, last.reason, last.cause) == (
        PodPhase.FAILED,
        137,
        "OOMKilled",
        TerminationCause.OUT_OF_MEMORY,
    )


def test_why_a_pod_waits_is_told(harness: PodClusterHarness) -> None:
    watch = WatchThread(harness.cluster)
    watch.synced()
    harness.extra = {"cpu": "100000"}
    huge = harness.cluster.start(Role.WORKER, 0)
    harness.extra, harness.image = {}, MISSING
    without_image = harness.cluster.start(Role.WORKER, 1)
    status = watch.waiting(huge, "Unschedulable")
    assert "Insufficient cpu" in status.message
    assert MISSING in watch.waiting(without_image, "ErrImagePull").message
