"""A `KubeCluster` at the scripted API server, and what a test does to its pods."""

from __future__ import annotations

import urllib3
from cluster.kubernetes.api_server import SIGKILL, SIGTERM, ApiServer

from edl.api.cluster_port import PodOptions, Role
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import KubeClient, KubeConnection, RateLimiter
from edl.cluster.kubernetes.kube_cluster import KubeCluster
from edl.cluster.kubernetes.pod_watch import WatchSettings
from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.core.backoff import ExponentialBackoff

JOB, JOB_UID, NAMESPACE = "mnist", "uid-of-the-job", "team"
BRISK = WatchSettings(timeout_seconds=30, idle_timeout=1.0, backoff=ExponentialBackoff(0.01, 0.05), jitter=lambda: 0.5)


def owner(uid: str = JOB_UID) -> Manifest:
    return {"apiVersion": "batch/v1", "kind": "Job", "name": names.master_name(JOB), "uid": uid, "controller": False}


def render(role: Role, index: int, wish: PodOptions) -> Manifest:
    """A pod as small as it can be."""
    labels = names.object_labels(JOB, role, index) | ({names.ELEVATED_LABEL: "true"} if wish.elevated else {})
    name = names.pod_name(JOB, role, index)
    meta = {"name": name, "namespace": NAMESPACE, "labels": labels, "ownerReferences": [owner()]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {"containers": [{"name": names.ROLE_CONTAINER}]},
    }


class KubeClusterHarness:
    def __init__(self, watch_settings: WatchSettings = BRISK) -> None:
        self.server = ApiServer()
        self._watch_settings = watch_settings
        self._pools: list[urllib3.PoolManager] = []
        self._clusters: list[KubeCluster] = []
        self.cluster = self.connect()

    def api(self, pace: RateLimiter | None = None) -> KubeClient:
        pool = urllib3.PoolManager(maxsize=4)
        self._pools.append(pool)
        return KubeClient(KubeConnection(self.server.host, pool, dict, NAMESPACE), rate_limiter=pace)

    def connect(self, pace: RateLimiter | None = None) -> KubeCluster:
        cluster = KubeCluster(
            self.api(pace), JOB, JOB_UID, NAMESPACE, render, watch_settings=self._watch_settings, gc_interval=0.05
        )
        self._clusters.append(cluster)
        return cluster

    def await_running(self, uid: str) -> None:
        self.server.await_running(uid)

    def exit(self, uid: str, code: int) -> None:
        self.server.exit(uid, code)

    def kill(self, uid: str) -> None:
        self.server.exit(uid, SIGKILL)

    def terminate(self, uid: str) -> None:
        self.server.exit(uid, SIGTERM)

    def exit_on_sigterm(self, uid: str, code: int) -> None:
        self.server.behave(uid, code)

    def ignore_sigterm(self, uid: str) -> None:
        self.server.behave(uid, None)

    def lose_node(self, uid: str) -> None:
        self.server.set_ready(uid, False)

    def restore_node(self, uid: str) -> None:
        self.server.set_ready(uid, True)

    def advance_time(self, seconds: float) -> None:
        self.server.grace_over()

    def close(self) -> None:
        for cluster in self._clusters:
            cluster.close()
        self.server.close()
        for pool in self._pools:
            pool.clear()
