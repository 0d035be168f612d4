"""What a cluster object knows of its pods' objects: their names, who was asked to go, since when they are leaving.

Filled by watches and by starts; the port speaks of uids, the API server of names.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edl.api.cluster_port import PodStatus
from edl.cluster.kubernetes import pod_status
from edl.cluster.kubernetes.resource_kinds import Manifest


@dataclass(frozen=True, slots=True)
class PodRecord:
    """The object of a pod, without what does not matter after it was read.

    Attributes:
        name: of the object.
        seen: what it meant.
        born: when it was created; ISO 8601, sorts by time.
        leaving_since: seconds of this process's clock at which it was first seen to be deleted; None: it is not. The
            server's clock, which is in the object, may differ from ours.
        grace: seconds that it was given to go.
    """

    name: str
    seen: PodStatus
    born: str = ""
    leaving_since: float | None = None
    grace: float = 0.0

    @property
    def uid(self) -> str:
        """Of the pod."""
        return self.seen.uid


class PodCache:
    """The pods of one job that exist as objects. Safe to use from several threads."""

    def __init__(self, job_uid: str, now: Callable[[], float] = time.monotonic) -> None:
        self._job_uid, self._now = job_uid, now
        self._records: dict[str, PodRecord] = {}
        self._asked: set[str] = set()
        self._gone: set[str] = set()
        self._lock = threading.Lock()

    def owns(self, pod: Manifest) -> bool:
        """Whether it belongs to this very job: a label may be anybody's, an owner's uid is not."""
        owners = pod["metadata"].get("ownerReferences") or ()
        return any(owner.get("uid") == self._job_uid for owner in owners)

    def note(self, pod: Manifest) -> PodStatus | None:
        """Note an object and say what it means; None if it is no pod that a master of this job started."""
        if not self.owns(pod):
            return None
        meta = pod["metadata"]
        with self._lock:
            try:
                seen = pod_status.read_pod_status(pod, asked=meta["uid"] in self._asked)
            except ValueError:
                return None
            known = self._records.get(seen.uid)
            since = known.leaving_since if known else None
            if since is None and "deletionTimestamp" in meta:
                since = self._now()
            grace = float(meta.get("deletionGracePeriodSeconds") or 0)  # the kubelet writes 0 when it is done
            if seen.uid not in self._gone:  # the answer to a creation may come after the end that a watch told
                self._records[seen.uid] = PodRecord(
                    meta["name"],
                    seen,
                    meta.get("creationTimestamp") or "",
                    since,
                    max(grace, known.grace if known else 0.0),
                )
        return seen

    def listed(self, pods: Iterable[Manifest], before: Iterable[PodRecord]) -> list[PodStatus]:
        """Note a full list; return what is in it and the ends of those that are not any more.

        Args:
            pods: all that the server has.
            before: what was known when the list was asked for; what began meanwhile may be missing in it.
        """
        seen = [pod for pod in map(self.note, pods) if pod is not None]
        present = {pod.uid for pod in seen}
        vanished = [body for body in before if body.uid not in present]
        for body in vanished:
            self._remove_record(body.uid)
        return [*seen, *(self.end(body.seen) for body in vanished)]

    def deleted(self, pod: Manifest) -> PodStatus | None:
        """Forget an object that is gone and say how it ended."""
        seen = self.note(pod)
        if seen is None:
            return None
        self._remove_record(seen.uid)
        return self.end(seen)

    def _remove_record(self, uid: str) -> None:
        with self._lock:
            self._records.pop(uid, None)
            self._gone.add(uid)

    def end(self, last: PodStatus) -> PodStatus:
        """The end of a pod whose object is gone."""
        with self._lock:
            return pod_status.removed_pod_status(last, asked=last.uid in self._asked)

    def name(self, uid: str) -> str | None:
        """Name of the object; None if it is not known."""
        with self._lock:
            body = self._records.get(uid)
            return body.name if body else None

    def ask(self, uid: str) -> None:
        """Remember that the master wants it to go, unless somebody else wanted that before."""
        with self._lock:
            body = self._records.get(uid)
            if body is None or body.leaving_since is None:
                self._asked.add(uid)

    def records(self) -> tuple[PodRecord, ...]:
        """All objects that are known to exist."""
        with self._lock:
            return tuple(self._records.values())
