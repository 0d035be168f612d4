"""Guarantees of a watch: every pod that was yielded alive is yielded ended exactly once.

Changes that were missed while a watch was disconnected are derived from the next full list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from edl.api.cluster_port import PodPhase, PodStatus


def vanished_status(last: PodStatus) -> PodStatus:
    """The final status of a pod that disappeared, made from its last known status."""
    return replace(last, phase=PodPhase.GONE, exit_code=None, reason="Vanished", leaving=False)


class WatchDeduplicator:
    """Remembers the pods that one watch has yielded, and filters repeated statuses.

    Args:
        end: returns the final status of a pod that is missing in a list, given its last status.
    """

    def __init__(self, end: Callable[[PodStatus], PodStatus] = vanished_status) -> None:
        self._end_status = end
        self._alive: dict[str, PodStatus] = {}
        self._ended: set[str] = set()

    def apply_list(self, pods: Iterable[PodStatus]) -> list[PodStatus]:
        """Return the statuses to yield for a full list.

        These are new and changed pods, and a final status for each missing pod.
        """
        pods = list(pods)
        # By uid: a new pod may have the name of one that vanished.
        present = {pod.uid for pod in pods}
        # Uids of ended pods are needed only as long as lists contain them.
        self._ended &= present
        gone = [self._end_status(pod) for uid, pod in self._alive.items() if uid not in present]
        return [pod for each in (*gone, *pods) for pod in self.apply_change(each)]

    def apply_change(self, pod: PodStatus) -> list[PodStatus]:
        """Return the status in a list, or an empty list if it was yielded before."""
        # An ended pod stays ended: a late report must not revive it.
        if pod.uid in self._ended or self._alive.get(pod.uid) == pod:
            return []
        if pod.has_ended:
            self._alive.pop(pod.uid, None)
            self._ended.add(pod.uid)
        else:
            self._alive[pod.uid] = pod
        return [pod]
