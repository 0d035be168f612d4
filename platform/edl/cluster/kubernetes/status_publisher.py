"""Publishes a job's status in a ConfigMap, and reads its desired state from an annotation of the Job."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from edl.api.errors import RetryableError
from edl.cluster.desired_state import format_desired_state, merge_desired_state, parse_desired_state
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import KubeClient, ResponseStream
from edl.cluster.kubernetes.api_errors import ApiError, ConflictError, NotFoundError, ServerBusyError
from edl.cluster.kubernetes.resource_kinds import CONFIGMAPS, JOBS, Manifest
from edl.cluster.status_port import DesiredState
from edl.core.backoff import ExponentialBackoff
from edl.retry.attempts import Retry

# --------------------------------------------------------------------------------------------------
# The desired state of a running job: the annotation ``edl.dev/desired`` of its Job, a JSON object.


_MAX_ATTEMPTS = 5
_CONFLICT_BACKOFF = ExponentialBackoff(first_seconds=0.05, max_seconds=1.0)
_SOURCE = f"the annotation {names.DESIRED_ANNOTATION} of the Job"


def read_desired_state(job: Manifest) -> DesiredState:
    """The desired state of a Job; ``unreadable`` if its annotation is invalid."""
    return parse_desired_state(job["metadata"].get("annotations", {}).get(names.DESIRED_ANNOTATION, ""), _SOURCE)


def update_desired_state(
    api: KubeClient,
    job: str,
    change: DesiredState,
    spec_bounds: tuple[int, int],
    *,
    namespace: str | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> DesiredState:
    """Change the desired state of a job; return the resulting desired state.

    Raises:
        BadInputError: see ``merge_desired_state``.
        ConflictError: the Job was changed during each of several attempts.
        RbacDeniedError: the user may not patch Jobs in this namespace.
    """
    retry = Retry(_CONFLICT_BACKOFF, sleep, tries=_MAX_ATTEMPTS)
    while True:
        job_manifest = api.get(JOBS, names.master_name(job), namespace)
        desired = merge_desired_state(read_desired_state(job_manifest), change, spec_bounds)
        meta = {
            "resourceVersion": job_manifest["metadata"]["resourceVersion"],
            "annotations": {names.DESIRED_ANNOTATION: format_desired_state(desired)},
        }
        try:
            api.patch(JOBS, names.master_name(job), {"metadata": meta}, namespace=namespace)
        except ConflictError:  # the Job controller updates the same object whenever a pod changes
            if not retry.wait():
                raise
        else:
            return desired


log = logging.getLogger(__name__)

PUBLISH_PERIOD_SECONDS = 1.0
"""Minimum time between two publications."""
FINAL_PUBLISH_SECONDS = 5.0
"""Maximum time for the last publication."""
_FINAL_RETRY_SECONDS = 0.2
_BACKOFF = ExponentialBackoff(first_seconds=0.5, max_seconds=30.0)


class KubeStatusPublisher:
    """The status publisher of a job on Kubernetes; see ``edl.cluster.status_port.StatusPublisher``.

    Args:
        api: client for the job's namespace.
        job: name of the job.
        clock: monotonic seconds.
    """

    def __init__(self, api: KubeClient, job: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._job, self._clock = api, job, clock
        self._pending_pages: Mapping[str, str] | None = None
        self._published_keys: frozenset[str] = frozenset()
        self._closing = False
        self._deadline = float("inf")
        self._changed = threading.Condition()
        self._stream: ResponseStream | None = None
        self._thread = threading.Thread(target=self._publish_loop, name="board", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ publishing

    def publish(self, pages: Mapping[str, str]) -> None:
        """Publish these pages soon, and return at once. Newer pages replace those that were not published yet."""
        with self._changed:
            self._pending_pages = dict(pages)
            self._changed.notify_all()

    def close(self) -> None:
        """Publish the newest pages if the server responds in time, and end ``watch_desired_state``."""
        with self._changed:
            self._closing = True
            self._deadline = self._clock() + FINAL_PUBLISH_SECONDS
            self._changed.notify_all()
        if self._stream is not None:
            self._stream.close()
        # bounded: a master that must exit cannot wait for a server that does not answer
        self._thread.join(FINAL_PUBLISH_SECONDS)

    def _publish_loop(self) -> None:
        retry = Retry(_BACKOFF, self._wait_or_close)
        while (pages := self._next_pages()) is not None:
            began = self._clock()
            error = self._write_pages(pages, quiet=retry.failures > 0)
            if error:
                pause = retry.next_delay(_asked_delay(error))
            else:
                retry.reset()
                pause = PUBLISH_PERIOD_SECONDS - (self._clock() - began)
            again = pages if isinstance(error, RetryableError) else None
            if not self._wait_before_retry(again, pause):
                return

    def _wait_before_retry(self, unpublished: Mapping[str, str] | None, seconds: float) -> bool:
        """Wait before the next publication. When the publisher closes, wait only to retry, and not for long.

        Args:
            unpublished: the data to retry, after a retryable error; None if there is nothing to retry.
            seconds: how long to wait.

        Returns:
            Whether to publish again.
        """
        with self._changed:
            if self._pending_pages is None:
                self._pending_pages = unpublished  # unless there are newer ones
            self._changed.wait_for(lambda: self._closing, max(0.0, seconds))
            if not (self._closing and unpublished):
                return True
            self._changed.wait(_FINAL_RETRY_SECONDS)
            return self._clock() < self._deadline

    def _next_pages(self) -> Mapping[str, str] | None:
        """The newest pages, when there are some; None if the publisher is closed and everything is published."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending_pages is not None or self._closing)
            pages, self._pending_pages = self._pending_pages, None
            return pages

    def _write_pages(self, pages: Mapping[str, str], *, quiet: bool) -> ApiError | None:
        """Replace the published pages. Whoever created the Job created the ConfigMap, which is deleted with the Job."""
        # in a merge patch, null removes a key
        removed_pages: dict[str, Any] = dict.fromkeys(self._published_keys - pages.keys())
        try:
            self._api.patch(CONFIGMAPS, names.status_configmap(self._job), {"data": {**removed_pages, **pages}})
        except ApiError as error:
            # the Job was deleted and its ConfigMap with it: nobody is left to read the status
            job_goes = self._closing and isinstance(error, NotFoundError)
            if not (quiet or job_goes):
                log.warning("the status was not published: %s", error)
            return error
        self._published_keys = frozenset(pages)
        return None

    # ------------------------------------------------------------------ desired state

    def watch_desired_state(self) -> Iterator[DesiredState]:
        """Yield the desired state now, then every change, until ``close``. Errors of the server are retried."""
        last: DesiredState | None = None
        retry = Retry(_BACKOFF, self._wait_or_close)
        while not self._closing:
            try:
                for job in self._watch_job():
                    retry.reset()
                    wanted = read_desired_state(job)
                    if wanted != last:
                        last = wanted
                        yield wanted
            except ApiError as error:
                if not isinstance(error, RetryableError):
                    log.warning("the desired state cannot be read: %s", error)
                retry.wait(_asked_delay(error))

    def _watch_job(self) -> Iterator[Manifest]:
        """The Job now, then after each change, until the stream ends."""
        only = f"metadata.name={names.master_name(self._job)}"
        # a list of one instead of a get: it has the resourceVersion at which the watch must begin
        listing = self._api.list(JOBS, fields=only)
        yield from listing.items
        self._stream = self._api.watch(JOBS, resource_version=listing.resource_version, fields=only)
        with self._stream as stream:
            if self._closing:  # close() may have run before the stream existed
                return
            yield from (job for kind, job in stream.events() if kind in ("ADDED", "MODIFIED"))

    def _wait_or_close(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing, seconds)


def _asked_delay(error: ApiError) -> float | None:
    return error.retry_after if isinstance(error, ServerBusyError) else None
