"""Removes the objects of pods that are over: more ended ones than anybody reads, and those that nobody else removes.

A pod on a dead node stays Terminating until its kubelet returns, and its name with it. Past its grace period it is
deleted with grace 0. The process may still run there: its incarnation is refused, so that it can do no harm.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from edl.api.cluster_port import PodPhase, Role, TerminationCause
from edl.api.errors import EdlError
from edl.cluster.kubernetes.pod_cache import PodCache, PodRecord

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
        if body.seen.ended and body.leaving_since is None:
            ended[body.seen.role].append(body)
    by_age = (sorted(found, key=_age_key) for found in ended.values())
    return [body for found in by_age for body in found[: max(len(found) - kept, 0)]]


def newest_crashed_pods(bodies: Iterable[PodRecord]) -> list[PodRecord]:
    """The newest pod of each role that crashed: where no volume has its log, nobody else can say why."""
    crashed = [body for body in bodies if body.seen.phase is PodPhase.FAILED and body.leaving_since is None]
    newest = {body.seen.role: body for body in sorted(crashed, key=_age_key)}
    return list(newest.values())


def _age_key(body: PodRecord) -> tuple[str, int]:
    return body.born, body.seen.index


def _allowed_seconds(body: PodRecord) -> float:
    return body.grace + (LOST_NODE_SECONDS if body.seen.cause == TerminationCause.NODE_LOST else STUCK_SECONDS)


class PodGarbageCollector:
    """Looks at the pods every few seconds, on a thread of its own, and carries out deletions that were put off.

    Args:
        register: of the pods.
        remove: deletes a pod by uid with a grace in seconds; raises EdlError when that did not work.
    """

    def __init__(
        self,
        register: PodCache,
        remove: Callable[[str, int], None],
        *,
        now: Callable[[], float] = time.monotonic,
        every: float = GC_INTERVAL_SECONDS,
    ) -> None:
        self._register, self._remove, self._now, self._every = register, remove, now, every
        self._postponed: dict[str, int] = {}
        self._told: set[str] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the rounds, once."""
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run_loop, name="pods-undertaker", daemon=True)
                self._thread.start()

    def retry_later(self, uid: str, grace: int) -> None:
        """Have a deletion that failed tried again each round, until the server has answered it."""
        with self._lock:
            self._postponed[uid] = grace
        self.begin()

    def close(self) -> None:
        """End the rounds."""
        self._closed.set()

    def round(self) -> None:
        """One look at all pods."""
        with self._lock:
            waiting = dict(self._postponed)
        for uid, grace in waiting.items():
            if self._try_delete(uid, grace):
                with self._lock:
                    self._postponed.pop(uid, None)
        bodies = self._register.records()
        late = stuck_deletions(bodies, self._now())
        for body in late:
            self._tell(
                body.uid, f"pod {body.name} is still there after its grace ({body.seen.cause or 'leaving'}): removed"
            )
        for body in (*late, *excess_pods(bodies)):
            self._try_delete(body.uid, 0)

    def _run_loop(self) -> None:
        while not self._closed.wait(self._every):
            self.round()

    def _try_delete(self, uid: str, grace: int) -> bool:
        if self._closed.is_set():
            return False
        try:
            self._remove(uid, grace)
        except EdlError as error:
            self._tell(uid, f"pod {uid} is not deleted yet: {error}")
            return False
        return True

    def _tell(self, uid: str, text: str) -> None:
        """Once for each pod."""
        if uid not in self._told:
            self._told.add(uid)
            log.warning("%s", text)
