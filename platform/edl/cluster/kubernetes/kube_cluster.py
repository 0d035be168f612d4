"""The cluster port of a master in a pod: starts, deletes and watches pods through the API server."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from edl.api.cluster_port import DEFAULT_OPTIONS, PodOptions, PodPhase, PodStatus, Role, TerminationCause, WatchSynced
from edl.api.errors import BadInputError, EdlError, RetryableError
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.api_errors import (
    ConflictError,
    ForbiddenError,
    NoResponseError,
    NotFoundError,
    ServerBusyError,
)
from edl.cluster.kubernetes.pod_watch import PodCache, PodRecord, PodWatch, WatchSettings
from edl.cluster.kubernetes.resource_kinds import PODS, Manifest

# --------------------------------------------------------------------------------------------------
# Removes pod objects: ended pods beyond a number per role, and pods whose deletion got stuck.
#
# A pod on a dead node stays Terminating until its kubelet returns, and its name stays in use. When its grace period is
# over, it is deleted with grace period 0. Its process may still run there, but cannot do harm, because its incarnation
# is refused.


log = logging.getLogger(__name__)

KEPT_ENDED_PODS = 5
"""Ended pods of a role that are kept for `kubectl logs` and `kubectl describe`."""
LOST_NODE_SECONDS, STUCK_SECONDS = 5.0, 30.0
"""Time that a pod may exceed its grace period: if its node is known to be lost, and otherwise."""
GC_INTERVAL_SECONDS = 2.0


def stuck_deletions(records: Iterable[PodRecord], now: float) -> list[PodRecord]:
    """Pods that were told to exit and still exist, long after their grace period."""
    return [
        record
        for record in records
        if record.leaving_since is not None and now > record.leaving_since + _allowed_seconds(record)
    ]


def excess_pods(records: Iterable[PodRecord], keep_count: int = KEPT_ENDED_PODS) -> list[PodRecord]:
    """Ended pods, except the newest of each role."""
    ended: defaultdict[Role, list[PodRecord]] = defaultdict(list)
    for record in records:
        if record.status.has_ended and record.leaving_since is None:
            ended[record.status.role].append(record)
    # by creation time, then index: the newest pods are kept
    by_age = (sorted(ended_pods, key=_age_key) for ended_pods in ended.values())
    return [record for ended_pods in by_age for record in ended_pods[: max(len(ended_pods) - keep_count, 0)]]


def newest_crashed_pods(records: Iterable[PodRecord]) -> list[PodRecord]:
    """The newest crashed pod of each role. Without a volume, its log is nowhere else."""
    crashed = [record for record in records if record.status.phase is PodPhase.FAILED and record.leaving_since is None]
    newest = {record.status.role: record for record in sorted(crashed, key=_age_key)}
    return list(newest.values())


def _age_key(record: PodRecord) -> tuple[str, int]:
    return record.created_at, record.status.index


def _allowed_seconds(record: PodRecord) -> float:
    return record.grace_seconds + (
        LOST_NODE_SECONDS if record.status.cause == TerminationCause.NODE_LOST else STUCK_SECONDS
    )


class PodGarbageCollector:
    """Checks the pods every few seconds on its own thread, and retries deletions that failed.

    Args:
        pod_cache: the pods of the job.
        delete_pod: deletes a pod by uid with a grace period in seconds; raises EdlError if that fails.
    """

    def __init__(
        self,
        pod_cache: PodCache,
        delete_pod: Callable[[str, int], None],
        *,
        now: Callable[[], float] = time.monotonic,
        interval: float = GC_INTERVAL_SECONDS,
    ) -> None:
        self._pod_cache, self._delete_pod, self._clock, self._interval = pod_cache, delete_pod, now, interval
        self._postponed: dict[str, int] = {}
        self._warned_uids: set[str] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, if it does not run yet."""
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run_loop, name="pods-undertaker", daemon=True)
                self._thread.start()

    def retry_later(self, uid: str, grace: int) -> None:
        """Retry a failed deletion in each round, until the server has answered it."""
        with self._lock:
            self._postponed[uid] = grace
        self.start()

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()

    def collect_once(self) -> None:
        """Run one round: retry deletions, then remove stuck and excess pods."""
        with self._lock:
            waiting = dict(self._postponed)
        for uid, grace in waiting.items():
            if self._try_delete(uid, grace):
                with self._lock:
                    self._postponed.pop(uid, None)
        records = self._pod_cache.records()
        late = stuck_deletions(records, self._clock())
        for record in late:
            self._warn_once(
                record.uid,
                f"pod {record.name} still exists after its grace period ({record.status.cause or 'leaving'}): removed",
            )
        # grace period 0 removes the object even if no kubelet answers; a process that still runs can do no harm
        for record in (*late, *excess_pods(records)):
            self._try_delete(record.uid, 0)

    def _run_loop(self) -> None:
        while not self._closed.wait(self._interval):
            self.collect_once()

    def _try_delete(self, uid: str, grace: int) -> bool:
        if self._closed.is_set():
            return False
        try:
            self._delete_pod(uid, grace)
        except EdlError as error:
            self._warn_once(uid, f"pod {uid} is not deleted yet: {error}")
            return False
        return True

    def _warn_once(self, uid: str, text: str) -> None:
        """Log a warning, once for each pod."""
        if uid not in self._warned_uids:
            self._warned_uids.add(uid)
            log.warning("%s", text)


PodRenderer = Callable[[Role, int, PodOptions], Manifest]
"""The manifest of a pod, with the Job as its owner."""


class KubeCluster:
    """The pods of one job on Kubernetes. Safe to use from several threads.

    Args:
        api: client with a rate limiter and without retries: the callers of this class decide what to request again.
        job: name of the job.
        job_uid: uid of its ``batch/v1`` Job, which owns all pods of the job.
        namespace: namespace of the job.
        render: renders the manifest of a pod.
        watch_settings: timeouts and delays of the watch.
        gc_interval: seconds between two rounds of the garbage collector.
    """

    def __init__(
        self,
        api: KubeClient,
        job: str,
        job_uid: str,
        namespace: str,
        render: PodRenderer,
        *,
        watch_settings: WatchSettings | None = None,
        gc_interval: float = GC_INTERVAL_SECONDS,
    ) -> None:
        self._api, self._namespace, self._render, self._watch_settings = api, namespace, render, watch_settings
        # the master's own pod belongs to the Job controller
        self._selector = f"{names.label_selector(job)},{names.ROLE_LABEL}!={Role.MASTER}"
        self._pod_cache = PodCache(job_uid)
        self._garbage_collector = PodGarbageCollector(self._pod_cache, self._delete_by_uid, interval=gc_interval)
        self._lock = threading.Lock()
        self._closed = False
        self._watches: set[PodWatch] = set()

    def start(self, role: Role, index: int, options: PodOptions = DEFAULT_OPTIONS) -> str:
        """Request a pod; see ``edl.api.cluster_port.JobCluster.start``."""
        if role == Role.MASTER or index < 0:
            raise BadInputError(f"A master cannot start {role} {index}")
        self._require_open()
        manifest = self._render(role, index, options)
        try:
            return self._create_pod(manifest)
        except ConflictError as error:
            if error.reason != "AlreadyExists":  # the quota object changed while it was evaluated
                raise RetryableError(error.message, where=error.where) from error
        return self._resolve_existing(manifest)

    def delete(self, uid: str, *, grace: float) -> None:
        """Tell a pod to exit; see ``JobCluster.delete``. A request that fails for now is retried later."""
        self._require_open()
        # before the request, so that a watch event does not report the deletion as somebody else's
        self._pod_cache.mark_deletion_requested(uid)
        # Kubernetes counts grace periods in whole seconds
        seconds = math.ceil(max(grace, 0.0))
        try:
            self._delete_by_uid(uid, seconds)
        except (NoResponseError, ServerBusyError, ForbiddenError):
            self._garbage_collector.retry_later(uid, seconds)

    def watch(self) -> Iterator[PodStatus | WatchSynced]:
        """Yield pods and changes; see ``edl.api.cluster_port.JobCluster.watch``.

        Raises:
            ForbiddenError: this account may not list pods.
        """
        watching = PodWatch(self._api, self._namespace, self._selector, self._pod_cache, self._watch_settings)
        with self._lock:
            if self._closed:
                return
            self._watches.add(watching)
        self._garbage_collector.start()
        try:
            yield from watching.watch_pods()
        finally:
            with self._lock:
                self._watches.discard(watching)

    def close(self) -> None:
        """End every watch; later calls raise ``RetryableError``. Pods keep running."""
        with self._lock:
            self._closed = True
            watches = tuple(self._watches)
        self._garbage_collector.close()
        for watching in watches:
            watching.close()

    def delete_all_pods(self, *, keep_crashed: bool = False) -> bool:
        """Delete all pods of the job, including ended ones. Works after ``close``, for the end of the job.

        Args:
            keep_crashed: keep the newest crashed pod of each role, for its log.

        Returns:
            Whether there was no pod left to delete.

        Raises:
            ApiError: the server cannot do it now, or refuses.
        """
        listing = self._api.list(PODS, namespace=self._namespace, labels=self._selector)
        listed_uids = {status.uid for pod in listing.items if (status := self._pod_cache.update(pod)) is not None}
        records = [record for record in self._pod_cache.records() if record.uid in listed_uids]
        kept_records = newest_crashed_pods(records) if keep_crashed else []
        removed = [record for record in records if record not in kept_records]
        for record in removed:
            self._delete_pod(record.uid, record.name, 0)
        return not removed

    def _create_pod(self, manifest: Manifest) -> str:
        try:
            pod = self._api.create(manifest, namespace=self._namespace)
        except ForbiddenError as error:  # a quota, an admission rule or a right, all of which may change
            raise RetryableError(error.message, where=error.where, hint=error.hint) from error
        self._pod_cache.update(pod)
        return str(pod["metadata"]["uid"])

    def _resolve_existing(self, manifest: Manifest) -> str:
        """Return the uid of the existing pod of that name, or recreate it if it has ended."""
        name = manifest["metadata"]["name"]
        try:
            holder = self._api.get(PODS, name, self._namespace)
        except NotFoundError as error:
            raise RetryableError(f"Pod {name} has just been deleted", where=self._namespace) from error
        pod_status = self._pod_cache.update(holder)
        if pod_status is None:
            raise RetryableError(f"Pod {name} does not belong to this job", where=self._namespace)
        if not pod_status.has_ended:
            # A leaving pod has the name until it is gone. Any other is the requested pod: an earlier request created
            # it, whose answer was lost with the connection or with the previous master.
            if pod_status.leaving:
                raise RetryableError(f"Pod {name} is still leaving", where=self._namespace)
            return pod_status.uid
        # Only the object is left, for example because its node is slow to report the deletion.
        self._delete_pod(pod_status.uid, name, 0)
        try:
            return self._create_pod(manifest)
        except ConflictError as error:
            raise RetryableError(error.message, where=error.where) from error

    def _delete_by_uid(self, uid: str, grace: int) -> None:
        """Delete a pod by uid. If the server does not know it, it is gone already."""
        name = self._pod_cache.pod_name(uid) or self._find_name(uid)
        if name is not None:
            self._delete_pod(uid, name, grace)

    def _find_name(self, uid: str) -> str | None:
        """Name of a pod of this job that no watch has reported yet."""
        listing = self._api.list(PODS, namespace=self._namespace, labels=self._selector)
        for pod in listing.items:
            if pod["metadata"]["uid"] == uid and self._pod_cache.update(pod) is not None:
                return str(pod["metadata"]["name"])
        return None

    def _delete_pod(self, uid: str, name: str, grace: int) -> None:
        """Delete the pod with this uid. If it is gone, or the name belongs to a later pod, there is nothing to do."""
        try:
            self._api.delete(PODS, name, namespace=self._namespace, uid=uid, grace=grace)
        except (NotFoundError, ConflictError):
            return

    def _require_open(self) -> None:
        with self._lock:
            if self._closed:
                raise RetryableError("The cluster is closed")
