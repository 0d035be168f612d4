"""One watch of a job's pods that never ends by itself: list, follow the changes from there, on any trouble list again.

A watch at the API server ends after its time, falls silent, is cut off, or answers 410 because it waited too long;
events can be lost with any of these. What was missed is derived from the next list, deletions by uid. Bookmarks, which
arrive about once a minute, tell a quiet watch from a silent one.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from edl.api.cluster_port import PodStatus, WatchSynced
from edl.api.errors import RetryableError
from edl.cluster.kubernetes import pod_status
from edl.cluster.kubernetes.api_client import KubeClient, ResponseStream
from edl.cluster.kubernetes.api_errors import ForbiddenError, ServerBusyError
from edl.cluster.kubernetes.resource_kinds import PODS, Manifest
from edl.cluster.watch_deduplicator import WatchDeduplicator
from edl.core.backoff import ExponentialBackoff

# --------------------------------------------------------------------------------------------------
# What a cluster object knows of its pods' objects: their names, who was asked to go, since when they are leaving.
#
# Filled by watches and by starts; the port speaks of uids, the API server of names.


@dataclass(frozen=True, slots=True)
class PodRecord:
    """The object of a pod, without what does not matter after it was read.

    Attributes:
        name: of the object.
        status: what it meant.
        created_at: when it was created; ISO 8601, sorts by time.
        leaving_since: seconds of this process's clock at which it was first seen to be deleted; None: it is not. The
            server's clock, which is in the object, may differ from ours.
        grace_seconds: seconds that it was given to go.
    """

    name: str
    status: PodStatus
    created_at: str = ""
    leaving_since: float | None = None
    grace_seconds: float = 0.0

    @property
    def uid(self) -> str:
        """Of the pod."""
        return self.status.uid


class PodCache:
    """The pods of one job that exist as objects. Safe to use from several threads."""

    def __init__(self, job_uid: str, now: Callable[[], float] = time.monotonic) -> None:
        self._job_uid, self._clock = job_uid, now
        self._records: dict[str, PodRecord] = {}
        self._deletion_requested: set[str] = set()
        self._removed: set[str] = set()
        self._lock = threading.Lock()

    def owns(self, pod: Manifest) -> bool:
        """Whether it belongs to this very job: a label may be anybody's, an owner's uid is not."""
        owners = pod["metadata"].get("ownerReferences") or ()
        return any(owner.get("uid") == self._job_uid for owner in owners)

    def update(self, pod: Manifest) -> PodStatus | None:
        """Note an object and say what it means; None if it is no pod that a master of this job started."""
        if not self.owns(pod):
            return None
        meta = pod["metadata"]
        with self._lock:
            try:
                seen = pod_status.read_pod_status(pod, deletion_requested=meta["uid"] in self._deletion_requested)
            except ValueError:
                return None
            known = self._records.get(seen.uid)
            since = known.leaving_since if known else None
            if since is None and "deletionTimestamp" in meta:
                since = self._clock()
            grace = float(meta.get("deletionGracePeriodSeconds") or 0)  # the kubelet writes 0 when it is done
            if seen.uid not in self._removed:  # the answer to a creation may come after the end that a watch told
                self._records[seen.uid] = PodRecord(
                    meta["name"],
                    seen,
                    meta.get("creationTimestamp") or "",
                    since,
                    max(grace, known.grace_seconds if known else 0.0),
                )
        return seen

    def update_from_list(self, pods: Iterable[Manifest], known_before: Iterable[PodRecord]) -> list[PodStatus]:
        """Apply a full list; return the status of each pod in it and the end of each pod that is missing.

        Args:
            pods: all pods of the server's answer.
            known_before: the pods known when the list was requested. A pod created since then may be missing from it
                without having ended.
        """
        seen = [pod for pod in map(self.update, pods) if pod is not None]
        present = {pod.uid for pod in seen}
        vanished = [body for body in known_before if body.uid not in present]
        for body in vanished:
            self._remove_record(body.uid)
        return [*seen, *(self.final_status(body.status) for body in vanished)]

    def remove_deleted(self, pod: Manifest) -> PodStatus | None:
        """Forget an object that is gone and say how it ended."""
        seen = self.update(pod)
        if seen is None:
            return None
        self._remove_record(seen.uid)
        return self.final_status(seen)

    def _remove_record(self, uid: str) -> None:
        with self._lock:
            self._records.pop(uid, None)
            self._removed.add(uid)

    def final_status(self, last: PodStatus) -> PodStatus:
        """The end of a pod whose object is gone."""
        with self._lock:
            return pod_status.removed_pod_status(last, deletion_requested=last.uid in self._deletion_requested)

    def pod_name(self, uid: str) -> str | None:
        """Name of the object; None if it is not known."""
        with self._lock:
            body = self._records.get(uid)
            return body.name if body else None

    def mark_deletion_requested(self, uid: str) -> None:
        """Remember that the master wants it to go, unless somebody else wanted that before."""
        with self._lock:
            body = self._records.get(uid)
            if body is None or body.leaving_since is None:
                self._deletion_requested.add(uid)

    def records(self) -> tuple[PodRecord, ...]:
        """All objects that are known to exist."""
        with self._lock:
            return tuple(self._records.values())


log = logging.getLogger(__name__)

STABLE_WATCH_SECONDS = 5.0
"""A watch that lasted as long worked, whether or not anything happened."""


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """How a watch behaves.

    Attributes:
        timeout_seconds: after which the server ends it, so that it is listed again; heals events that were lost without
            a sign.
        idle_timeout: seconds without a line after which it is given up; longer than ``timeout_seconds``.
        forbidden_timeout: seconds for which 401 and 403 are borne: a server that has just started refuses everybody.
        backoff: after failures.
        jitter: evenly distributed over 0-1.
        clock: seconds of a clock that does not go back.
    """

    timeout_seconds: int = 60
    idle_timeout: float = 75.0
    forbidden_timeout: float = 60.0
    backoff: ExponentialBackoff = field(default_factory=ExponentialBackoff)
    jitter: Callable[[], float] = random.random
    clock: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class _FailureState:
    """Failures in a row, and whether the last watch worked."""

    failures: int = 0
    last_succeeded: bool = False
    forbidden_since: float | None = None

    def reset(self) -> None:
        """Something worked."""
        self.failures, self.last_succeeded, self.forbidden_since = 0, True, None


class PodWatch:
    """Follows the pods that a selector chooses, until ``close``.

    Args:
        api: of the cluster.
        namespace: of the job.
        selector: of labels; whose pod it is, the register decides.
        pod_cache: gets every object.
        settings: timeouts and delays; see ``WatchSettings``.
    """

    def __init__(
        self, api: KubeClient, namespace: str, selector: str, pod_cache: PodCache, settings: WatchSettings | None = None
    ) -> None:
        self._api, self._namespace, self._selector, self._pod_cache = api, namespace, selector, pod_cache
        self._settings = settings or WatchSettings()
        self._deduplicator = WatchDeduplicator(pod_cache.final_status)
        self._failure_state = _FailureState()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._stream: ResponseStream | None = None

    def close(self) -> None:
        """End it, also while it waits. Safe to call from another thread."""
        with self._lock:
            self._closed.set()
            if self._stream is not None:
                self._stream.close()

    def watch_pods(self) -> Iterator[PodStatus | WatchSynced]:
        """Yield every pod, ``WatchSynced``, then changes.

        Raises:
            ForbiddenError: pods may not be listed here, for longer than a server needs to start.
            BadInputError: the server will never answer this.
        """
        synced = False
        while not self._closed.is_set():
            try:
                version, listed = self._list_pods()
                yield from listed
                if not synced:
                    synced = True
                    yield WatchSynced()
                for seen in self._follow_changes(version):
                    yield from seen
            except (RetryableError, ForbiddenError) as error:
                self._wait_after_error(error)
            else:
                self._wait_if_unstable()

    def _list_pods(self) -> tuple[str, list[PodStatus]]:
        """Where a watch begins, and what changed until there."""
        before = self._pod_cache.records()
        listing = self._api.list(PODS, namespace=self._namespace, labels=self._selector)
        self._failure_state.forbidden_since = None
        return listing.resource_version, self._deduplicator.apply_list(
            self._pod_cache.update_from_list(listing.items, before)
        )

    def _follow_changes(self, version: str) -> Iterator[list[PodStatus]]:
        """What each line of a watch means to the job: mostly one state, nothing for a bookmark."""
        stream = self._open_stream(version)
        if stream is None:
            return
        began = self._settings.clock()
        try:
            for kind, item in stream.events():
                self._failure_state.reset()
                yield (
                    self._deduplicator.apply_change(seen) if (seen := self._apply_event(kind, item)) is not None else []
                )
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
            if not self._closed.is_set():
                self._stream = stream
                return stream
        stream.release()
        return None

    def _apply_event(self, kind: str, item: Manifest) -> PodStatus | None:
        if kind in ("ADDED", "MODIFIED"):
            return self._pod_cache.update(item)
        return self._pod_cache.remove_deleted(item) if kind == "DELETED" else None

    def _wait_after_error(self, error: RetryableError | ForbiddenError) -> None:
        """Wait before the next attempt."""
        now = self._settings.clock()
        if isinstance(error, ForbiddenError):
            since = self._failure_state.forbidden_since
            self._failure_state.forbidden_since = now if since is None else since
            if now - self._failure_state.forbidden_since > self._settings.forbidden_timeout:
                raise error
        if self._failure_state.failures == 0:
            log.info("the watch of the pods begins again: %s", error.message)
        self._back_off(error.retry_after if isinstance(error, ServerBusyError) else None)

    def _wait_if_unstable(self) -> None:
        """A watch ended as watches do; a server that ends each at once is not asked without a pause."""
        if not self._failure_state.last_succeeded:
            self._back_off(None)
        self._failure_state.last_succeeded = False

    def _back_off(self, retry_after: float | None) -> None:
        self._failure_state.failures, self._failure_state.last_succeeded = self._failure_state.failures + 1, False
        self._closed.wait(
            self._settings.backoff.jittered_delay(self._failure_state.failures, self._settings.jitter(), retry_after)
        )
