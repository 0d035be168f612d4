"""The board of a job: what its master tells hangs in a ConfigMap, what people want is pinned to the Job."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from edl.api.errors import RetryableError
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.api_errors import ApiError, NotFoundError, ServerBusyError
from edl.cluster.kubernetes.desired_state import read_desired_state
from edl.cluster.kubernetes.rate_limiter import ExponentialBackoff
from edl.cluster.kubernetes.resource_kinds import CONFIGMAPS, JOBS, Manifest
from edl.cluster.kubernetes.response_stream import ResponseStream
from edl.cluster.status_port import DesiredState

log = logging.getLogger(__name__)

PUBLISH_PERIOD_SECONDS = 1.0
"""The least time between two publications."""
FINAL_PUBLISH_SECONDS = 5.0
"""How long the last publication may take."""
_FINAL_RETRY_SECONDS = 0.2
_BACKOFF = ExponentialBackoff(first=0.5, longest=30.0)


class KubeStatusPublisher:
    """See ``edl.cluster.status_port.StatusPublisher``.

    Args:
        api: of the job's namespace.
        job: name of the job.
        clock: monotonic seconds.
    """

    def __init__(self, api: KubeClient, job: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._job, self._clock = api, job, clock
        self._pending_pages: Mapping[str, str] | None = None
        self._published_keys: frozenset[str] = frozenset()
        self._closing = False
        self._until = float("inf")
        self._changed = threading.Condition()
        self._stream: ResponseStream | None = None
        self._thread = threading.Thread(target=self._publish_loop, name="board", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ publishing

    def publish(self, pages: Mapping[str, str]) -> None:
        """Show these pages; returns at once, the newest win."""
        with self._changed:
            self._pending_pages = dict(pages)
            self._changed.notify_all()

    def close(self) -> None:
        """Show what was published last, as far as the server answers in time; end ``desired``."""
        with self._changed:
            self._closing = True
            self._until = self._clock() + FINAL_PUBLISH_SECONDS
            self._changed.notify_all()
        if self._stream is not None:
            self._stream.close()
        self._thread.join(FINAL_PUBLISH_SECONDS)

    def _publish_loop(self) -> None:
        failures = 0
        while (pages := self._next()) is not None:
            began = self._clock()
            error = self._show(pages, quiet=failures > 0)
            failures = failures + 1 if error else 0
            pause = _retry_delay(failures, error) if error else PUBLISH_PERIOD_SECONDS - (self._clock() - began)
            again = pages if isinstance(error, RetryableError) else None
            if not self._rest(again, pause):
                return

    def _rest(self, again: Mapping[str, str] | None, seconds: float) -> bool:
        """Wait before the next publication; at the end only for a server that is away or busy, and not for long.

        Args:
            again: what it did not take, if it may take it later.
            seconds: to wait.

        Returns:
            Whether there may be another one.
        """
        with self._changed:
            if self._pending_pages is None:
                self._pending_pages = again  # unless there are newer ones
            self._changed.wait_for(lambda: self._closing, max(0.0, seconds))
            if not (self._closing and again):
                return True
            self._changed.wait(_FINAL_RETRY_SECONDS)
            return self._clock() < self._until

    def _next(self) -> Mapping[str, str] | None:
        """The newest pages, once there are some; None when the board is closed and all is shown."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending_pages is not None or self._closing)
            pages, self._pending_pages = self._pending_pages, None
            return pages

    def _show(self, pages: Mapping[str, str], *, quiet: bool) -> ApiError | None:
        """Replace the pages; the ConfigMap itself was made by whoever made the Job, and goes with it."""
        gone: dict[str, Any] = dict.fromkeys(self._published_keys - pages.keys())
        try:
            self._api.patch(CONFIGMAPS, names.status_configmap(self._job), {"data": {**gone, **pages}})
        except ApiError as error:
            job_goes = self._closing and isinstance(error, NotFoundError)
            if not (quiet or job_goes):
                log.warning("the status was not published: %s", error)
            return error
        self._published_keys = frozenset(pages)
        return None

    # ------------------------------------------------------------------ wishes

    def desired(self) -> Iterator[DesiredState]:
        """Yield what is wanted now, then every change, until ``close``; a server that is away is asked again."""
        last: DesiredState | None = None
        failures = 0
        while not self._closing:
            try:
                for job in self._watch_job():
                    failures = 0
                    wanted = read_desired_state(job)
                    if wanted != last:
                        last = wanted
                        yield wanted
            except ApiError as error:
                failures += 1
                if not isinstance(error, RetryableError):
                    log.warning("wishes cannot be read: %s", error)
                self._wait_or_close(_retry_delay(failures, error))

    def _watch_job(self) -> Iterator[Manifest]:
        """The Job as it is, then as it becomes, until the stream ends."""
        only = f"metadata.name={names.master_name(self._job)}"
        listing = self._api.list(JOBS, fields=only)
        yield from listing.items
        self._stream = self._api.watch(JOBS, resource_version=listing.resource_version, fields=only)
        with self._stream as stream:
            if self._closing:
                return
            yield from (job for kind, job in stream.events() if kind in ("ADDED", "MODIFIED"))

    def _wait_or_close(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing, seconds)


def _retry_delay(failures: int, error: ApiError) -> float:
    asked = error.retry_after if isinstance(error, ServerBusyError) else None
    return _BACKOFF.pause(failures, random.random(), asked)  # noqa: S311 - jitter
