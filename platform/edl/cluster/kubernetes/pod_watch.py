"""An endless watch of a job's pods: list, follow the changes, and list again after any error.

A watch of the API server ends after its timeout, falls silent, breaks, or gets a 410 because its version is too old.
Events can be lost in all of these cases. What was missed is derived from the next list, deletions by uid. Bookmarks
arrive about once a minute and distinguish a quiet watch from a broken one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from edl.api.cluster_port import PodStatus, WatchSynced
from edl.api.errors import RetryableError
from edl.cluster.kubernetes import pod_status
from edl.cluster.kubernetes.api_client import KubeClient, ResponseStream
from edl.cluster.kubernetes.api_errors import ForbiddenError, ServerBusyError
from edl.cluster.kubernetes.resource_kinds import PODS, Manifest, is_being_deleted
from edl.cluster.watch_deduplicator import WatchDeduplicator
from edl.core.backoff import ExponentialBackoff
from edl.retry.attempts import Retry, draw_jitter

# --------------------------------------------------------------------------------------------------
# A cache of the job's pod objects: names, requested deletions, and when a pod started to leave.
#
# Watches and creations fill it. It is needed because the cluster port identifies pods by uid, the API server by name.


@dataclass(frozen=True, slots=True)
class PodRecord:
    """What is kept of a pod's object.

    Attributes:
        name: name of the object.
        status: status of the pod.
        created_at: creation time in ISO 8601, which sorts by time.
        leaving_since: time at which the deletion was first seen, in seconds of this process's clock; None: the pod is
            not being deleted. The object has a time of the server's clock, which may differ from ours.
        grace_seconds: grace period of the deletion in seconds.
    """

    name: str
    status: PodStatus
    created_at: str = ""
    leaving_since: float | None = None
    grace_seconds: float = 0.0

    @property
    def uid(self) -> str:
        return self.status.uid


class PodCache:
    """The existing pod objects of one job. May be used from several threads."""

    def __init__(self, job_uid: str, now: Callable[[], float] = time.monotonic) -> None:
        self._job_uid, self._clock = job_uid, now
        self._records: dict[str, PodRecord] = {}
        self._deletion_requested: set[str] = set()
        self._removed: set[str] = set()
        self._lock = threading.Lock()

    def owns(self, pod: Manifest) -> bool:
        """Whether a pod belongs to this Job. Anybody may set a label, but the uid of an owner is unique."""
        # a pod of an earlier Job of the same name may still exist, with the same labels
        owners = pod["metadata"].get("ownerReferences") or ()
        return any(owner.get("uid") == self._job_uid for owner in owners)

    def update(self, pod: Manifest) -> PodStatus | None:
        """Store an object and return its status; None if a master of this job did not start it."""
        if not self.owns(pod):
            return None
        meta = pod["metadata"]
        with self._lock:
            try:
                new_status = pod_status.read_pod_status(pod, deletion_requested=meta["uid"] in self._deletion_requested)
            except ValueError:  # no role and index in its labels
                return None
            known = self._records.get(new_status.uid)
            since = known.leaving_since if known else None
            if since is None and is_being_deleted(pod):
                since = self._clock()
            grace = float(meta.get("deletionGracePeriodSeconds") or 0)  # the kubelet sets 0 when the pod has ended
            # the response to a creation may arrive after the deletion was watched
            if new_status.uid not in self._removed:
                self._records[new_status.uid] = PodRecord(
                    meta["name"],
                    new_status,
                    meta.get("creationTimestamp") or "",
                    since,
                    max(grace, known.grace_seconds if known else 0.0),
                )
        return new_status

    def update_from_list(self, pods: Iterable[Manifest], known_before: Iterable[PodRecord]) -> list[PodStatus]:
        """Apply a full list; return the status of each pod in it and the end of each pod that is missing.

        Args:
            pods: all pods of the server's answer.
            known_before: the pods known when the list was requested. A pod created since then may be missing from it
                without having ended.
        """
        reported = [pod for pod in map(self.update, pods) if pod is not None]
        present = {pod.uid for pod in reported}
        vanished = [record for record in known_before if record.uid not in present]
        for record in vanished:
            self._remove_record(record.uid)
        return [*reported, *(self.final_status(record.status) for record in vanished)]

    def remove_deleted(self, pod: Manifest) -> PodStatus | None:
        """Remove an object that was deleted; return its final status."""
        last_status = self.update(pod)
        if last_status is None:
            return None
        self._remove_record(last_status.uid)
        return self.final_status(last_status)

    def _remove_record(self, uid: str) -> None:
        with self._lock:
            self._records.pop(uid, None)
            self._removed.add(uid)

    def final_status(self, last: PodStatus) -> PodStatus:
        """The final status of a pod whose object is gone."""
        with self._lock:
            return pod_status.removed_pod_status(last, deletion_requested=last.uid in self._deletion_requested)

    def pod_name(self, uid: str) -> str | None:
        """Name of the object; None if it is unknown."""
        with self._lock:
            record = self._records.get(uid)
            return record.name if record else None

    def mark_deletion_requested(self, uid: str) -> None:
        """Remember that the master requested a deletion, unless the pod was being deleted already."""
        with self._lock:
            record = self._records.get(uid)
            if record is None or record.leaving_since is None:
                self._deletion_requested.add(uid)

    def records(self) -> tuple[PodRecord, ...]:
        """All known objects."""
        with self._lock:
            return tuple(self._records.values())


log = logging.getLogger(__name__)

STABLE_WATCH_SECONDS = 5.0
"""A watch that lasted at least this long worked, even if no event arrived."""


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """Timeouts and delays of a watch.

    Attributes:
        timeout_seconds: time after which the server ends a watch. The list after it repairs the effect of events that
            were lost without an error.
        idle_timeout: seconds without a line after which a watch counts as broken; longer than ``timeout_seconds``.
        forbidden_timeout: seconds for which 401 and 403 are retried: a server that has just started refuses everybody.
        backoff: delays after failures.
        jitter: returns a random number, uniform in 0-1.
        clock: monotonic seconds.
    """

    timeout_seconds: int = 60
    idle_timeout: float = 75.0
    forbidden_timeout: float = 60.0
    backoff: ExponentialBackoff = field(default_factory=ExponentialBackoff)
    jitter: Callable[[], float] = draw_jitter
    clock: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class _FailureState:
    """The attempts, and whether the last watch worked."""

    retry: Retry
    last_succeeded: bool = False
    forbidden_since: float | None = None

    def reset(self) -> None:
        """Record a success."""
        self.retry.reset()
        self.last_succeeded, self.forbidden_since = True, None


class PodWatch:
    """Watches the pods that match a selector, until ``close``.

    Args:
        api: client for the cluster.
        namespace: namespace of the job.
        selector: label selector. Whether a pod belongs to the job is decided by ``pod_cache``.
        pod_cache: stores every object.
        settings: timeouts and delays; see ``WatchSettings``.
    """

    def __init__(
        self, api: KubeClient, namespace: str, selector: str, pod_cache: PodCache, settings: WatchSettings | None = None
    ) -> None:
        self._api, self._namespace, self._selector, self._pod_cache = api, namespace, selector, pod_cache
        self._settings = settings or WatchSettings()
        self._deduplicator = WatchDeduplicator(pod_cache.final_status)
        self._closed = threading.Event()
        self._failure_state = _FailureState(
            Retry(self._settings.backoff, self._closed.wait, jitter=self._settings.jitter)
        )
        self._lock = threading.Lock()
        self._stream: ResponseStream | None = None

    def close(self) -> None:
        """End the watch, even while it waits. May be called from another thread."""
        with self._lock:
            self._closed.set()
            if self._stream is not None:
                self._stream.close()

    def watch_pods(self) -> Iterator[PodStatus | WatchSynced]:
        """Yield every pod, ``WatchSynced``, then changes.

        Raises:
            ForbiddenError: this account may not list pods, and a server that is just starting is not the reason.
            BadInputError: the server rejects the request.
        """
        synced = False
        while not self._closed.is_set():
            try:
                # each turn starts with a list: it shows what events were missed, whatever ended the watch
                version, listed = self._list_pods()
                yield from listed
                if not synced:
                    synced = True
                    yield WatchSynced()
                for statuses in self._follow_changes(version):
                    yield from statuses
            except (RetryableError, ForbiddenError) as error:
                self._wait_after_error(error)
            else:
                self._wait_if_unstable()

    def _list_pods(self) -> tuple[str, list[PodStatus]]:
        """The version at which a watch begins, and what has changed before it."""
        # taken before the request: a pod that is created meanwhile may be missing in the list without having ended
        before = self._pod_cache.records()
        listing = self._api.list(PODS, namespace=self._namespace, labels=self._selector)
        # a list that succeeded proves that this account may list
        self._failure_state.forbidden_since = None
        return listing.resource_version, self._deduplicator.apply_list(
            self._pod_cache.update_from_list(listing.items, before)
        )

    def _follow_changes(self, version: str) -> Iterator[list[PodStatus]]:
        """What each event of a watch means for the job: usually one status, and nothing for a bookmark."""
        stream = self._open_stream(version)
        if stream is None:
            return
        began = self._settings.clock()
        try:
            for kind, item in stream.events():
                self._failure_state.reset()
                status = None
                if kind in ("ADDED", "MODIFIED"):
                    status = self._pod_cache.update(item)
                elif kind == "DELETED":
                    status = self._pod_cache.remove_deleted(item)
                yield [] if status is None else self._deduplicator.apply_change(status)
        finally:
            if self._settings.clock() - began >= STABLE_WATCH_SECONDS:
                self._failure_state.reset()
            with self._lock:
                self._stream = None
            stream.release()

    def _open_stream(self, version: str) -> ResponseStream | None:
        stream = self._api.watch(
            PODS,
            resource_version=version,
            namespace=self._namespace,
            labels=self._selector,
            timeout_seconds=self._settings.timeout_seconds,
            idle_timeout=self._settings.idle_timeout,
        )
        with self._lock:
            # close() may have been called while the watch was opened; then nobody else would end it
            if not self._closed.is_set():
                self._stream = stream
                return stream
        stream.release()
        return None

    def _wait_after_error(self, error: RetryableError | ForbiddenError) -> None:
        """Wait before the next attempt; raise an error that lasts too long."""
        now = self._settings.clock()
        if isinstance(error, ForbiddenError):
            since = self._failure_state.forbidden_since
            self._failure_state.forbidden_since = now if since is None else since
            if now - self._failure_state.forbidden_since > self._settings.forbidden_timeout:
                raise error
        if not self._failure_state.retry.failures:
            log.info("the watch of the pods starts again: %s", error.message)
        self._back_off(error.retry_after if isinstance(error, ServerBusyError) else None)

    def _wait_if_unstable(self) -> None:
        """After a regular end, wait only if the watch ended at once: such a server must not be asked in a loop."""
        if not self._failure_state.last_succeeded:
            self._back_off(None)
        self._failure_state.last_succeeded = False

    def _back_off(self, retry_after: float | None) -> None:
        self._failure_state.last_succeeded = False
        self._failure_state.retry.wait(retry_after)
