"""The cluster port over the API server: what a master in a pod uses."""

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
# Removes the objects of pods that are over: more ended ones than anybody reads, and those that nobody else removes.
#
# A pod on a dead node stays Terminating until its kubelet returns, and its name with it. Past its grace period it is
# deleted with grace 0. The process may still run there: its incarnation is refused, so that it can do no harm.


log = logging.getLogger(__name__)

KEPT_ENDED_PODS = 5
"""Ended pods of a role that stay, for `kubectl logs` and `kubectl describe`."""
LOST_NODE_SECONDS, STUCK_SECONDS = 5.0, 30.0
"""How long past its grace a pod may stay: when its node is known to be lost, and otherwise."""
GC_INTERVAL_SECONDS = 2.0


def stuck_deletions(bodies: Iterable[PodRecord], now: float) -> list[PodRecord]:
    """Pods that were told to go and are still there, long after their grace."""
    return [
        body for body in bodies if body.leaving_since is not None and now > body.leaving_since + _allowed_seconds(body)
    ]


def excess_pods(bodies: Iterable[PodRecord], kept: int = KEPT_ENDED_PODS) -> list[PodRecord]:
    """Ended pods that are not among the newest of their role."""
    ended: defaultdict[Role, list[PodRecord]] = defaultdict(list)
    for body in bodies:
        if body.status.has_ended and body.leaving_since is None:
            ended[body.status.role].append(body)
    by_age = (sorted(found, key=_age_key) for found in ended.values())
    return [body for found in by_age for body in found[: max(len(found) - kept, 0)]]


def newest_crashed_pods(bodies: Iterable[PodRecord]) -> list[PodRecord]:
    """The newest pod of each role that crashed: where no volume has its log, nobody else can say why."""
    crashed = [body for body in bodies if body.status.phase is PodPhase.FAILED and body.leaving_since is None]
    newest = {body.status.role: body for body in sorted(crashed, key=_age_key)}
    return list(newest.values())


def _age_key(body: PodRecord) -> tuple[str, int]:
    return body.created_at, body.status.index


def _allowed_seconds(body: PodRecord) -> float:
    return body.grace_seconds + (
        LOST_NODE_SECONDS if body.status.cause == TerminationCause.NODE_LOST else STUCK_SECONDS
    )


class PodGarbageCollector:
    """Looks at the pods every few seconds, on a thread of its own, and carries out deletions that were put off.

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
        """Start the rounds, once."""
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run_loop, name="pods-undertaker", daemon=True)
                self._thread.start()

    def retry_later(self, uid: str, grace: int) -> None:
        """Have a deletion that failed tried again each round, until the server has answered it."""
        with self._lock:
            self._postponed[uid] = grace
        self.start()

    def close(self) -> None:
        """End the rounds."""
        self._closed.set()

    def collect_once(self) -> None:
        """One look at all pods."""
        with self._lock:
            waiting = dict(self._postponed)
        for uid, grace in waiting.items():
            if self._try_delete(uid, grace):
                with self._lock:
                    self._postponed.pop(uid, None)
        bodies = self._pod_cache.records()
        late = stuck_deletions(bodies, self._clock())
        for body in late:
            self._warn_once(
                body.uid, f"pod {body.name} is still there after its grace ({body.status.cause or 'leaving'}): removed"
            )
        for body in (*late, *excess_pods(bodies)):
            self._try_delete(body.uid, 0)

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
        """Once for each pod."""
        if uid not in self._warned_uids:
            self._warned_uids.add(uid)
            log.warning("%s", text)


PodRenderer = Callable[[Role, int, PodOptions], Manifest]
"""The manifest of a pod, with the Job as its owner."""


class KubeCluster:
    """The pods of one job on Kubernetes. Safe to use from several threads.

    Args:
        api: with a pace, without retries: what fails is asked for again by those who know what it is worth.
        job: name of the job.
        job_uid: of its ``batch/v1`` Job, the owner of every pod of this job.
        namespace: of the job.
        render: the manifest of a pod.
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
        self._selector = f"{names.label_selector(job)},{names.ROLE_LABEL}!={Role.MASTER}"
        self._pod_cache = PodCache(job_uid)
        self._garbage_collector = PodGarbageCollector(self._pod_cache, self._delete_by_uid, interval=gc_interval)
        self._lock = threading.Lock()
        self._closed = False
        self._watches: set[PodWatch] = set()

    def start(self, role: Role, index: int, options: PodOptions = DEFAULT_OPTIONS) -> str:
        """Ask for a pod; see ``edl.api.cluster_port.JobCluster.start``."""
        if role == Role.MASTER or index < 0:
            raise BadInputError(f"A master cannot start {role} {index}")
        self._require_open()
        manifest = self._render(role, index, options)
        try:
            return self._create_pod(manifest)
        except ConflictError as error:
            if error.reason != "AlreadyExists":  # a quota that changed meanwhile
                raise RetryableError(error.message, where=error.where) from error
        return self._resolve_existing(manifest)

    def delete(self, uid: str, *, grace: float) -> None:
        """Tell a pod to go; see ``JobCluster.delete``. What the server cannot do now is done later."""
        self._require_open()
        self._pod_cache.mark_deletion_requested(uid)
        seconds = math.ceil(max(grace, 0.0))
        try:
            self._delete_by_uid(uid, seconds)
        except (NoResponseError, ServerBusyError, ForbiddenError):
            self._garbage_collector.retry_later(uid, seconds)

    def watch(self) -> Iterator[PodStatus | WatchSynced]:
        """Yield pods and changes; see ``edl.api.cluster_port.JobCluster.watch``.

        Raises:
            ForbiddenError: pods may not be listed here.
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
        """End every watch; calls after it raise ``RetryableError``. Pods stay as they are."""
        with self._lock:
            self._closed = True
            watches = tuple(self._watches)
        self._garbage_collector.close()
        for watching in watches:
            watching.close()

    def delete_all_pods(self, *, keep_crashed: bool = False) -> bool:
        """Remove every pod of the job, also those that have ended; after ``close`` too, for the end of the job.

        Args:
            keep_crashed: the newest pod of each role that crashed stays, for its log.

        Returns:
            Whether there was none to remove.

        Raises:
            ApiError: the server cannot do it now, or does not let us.
        """
        listing = self._api.list(PODS, namespace=self._namespace, labels=self._selector)
        there = {seen.uid for pod in listing.items if (seen := self._pod_cache.update(pod)) is not None}
        records = [body for body in self._pod_cache.records() if body.uid in there]
        kept_records = newest_crashed_pods(records) if keep_crashed else []
        removed = [body for body in records if body not in kept_records]
        for body in removed:
            self._delete_pod(body.uid, body.name, 0)
        return not removed

    def _create_pod(self, manifest: Manifest) -> str:
        try:
            pod = self._api.create(manifest, namespace=self._namespace)
        except ForbiddenError as error:  # a quota, an admission rule, a right: all of them change without us
            raise RetryableError(error.message, where=error.where, hint=error.hint) from error
        self._pod_cache.update(pod)
        return str(pod["metadata"]["uid"])

    def _resolve_existing(self, manifest: Manifest) -> str:
        """Answer for a pod whose name is taken."""
        name = manifest["metadata"]["name"]
        try:
            holder = self._api.get(PODS, name, self._namespace)
        except NotFoundError as error:
            raise RetryableError(f"Pod {name} has just gone", where=self._namespace) from error
        seen = self._pod_cache.update(holder)
        if seen is None:
            raise RetryableError(f"Pod {name} belongs to somebody else", where=self._namespace)
        if not seen.has_ended:
            # Leaving: the name will be free when it has gone. Otherwise it is the pod that is asked for, from before a
            # restart of the master or from a request whose answer was lost.
            if seen.leaving:
                raise RetryableError(f"Pod {name} is still leaving", where=self._namespace)
            return seen.uid
        # Only its object stands in the way, as it does on a node that is slow to say that the pod has gone.
        self._delete_pod(seen.uid, name, 0)
        try:
            return self._create_pod(manifest)
        except ConflictError as error:
            raise RetryableError(error.message, where=error.where) from error

    def _delete_by_uid(self, uid: str, grace: int) -> None:
        """Delete a pod whatever its name; one that the server does not know either is gone."""
        name = self._pod_cache.pod_name(uid) or self._find_name(uid)
        if name is not None:
            self._delete_pod(uid, name, grace)

    def _find_name(self, uid: str) -> str | None:
        """Name of a pod of this job that no watch has shown yet."""
        listing = self._api.list(PODS, namespace=self._namespace, labels=self._selector)
        for pod in listing.items:
            if pod["metadata"]["uid"] == uid and self._pod_cache.update(pod) is not None:
                return str(pod["metadata"]["name"])
        return None

    def _delete_pod(self, uid: str, name: str, grace: int) -> None:
        """Delete this very pod; one that is gone, or a later one of its name, is none of our business."""
        try:
            self._api.delete(PODS, name, namespace=self._namespace, uid=uid, grace=grace)
        except (NotFoundError, ConflictError):
            return

    def _require_open(self) -> None:
        with self._lock:
            if self._closed:
                raise RetryableError("The cluster is closed")
