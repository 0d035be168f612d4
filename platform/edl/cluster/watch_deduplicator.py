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
    """The pods that one watch has yielded.

    Args:
        end: makes the final status of a pod that is missing in a list, from its last known status.
    """

    def __init__(self, end: Callable[[PodStatus], PodStatus] = vanished_status) -> None:
        self._end_status = end
        self._alive: dict[str, PodStatus] = {}
        self._ended: set[str] = set()

    def apply_list(self, pods: Iterable[PodStatus]) -> list[PodStatus]:
        """Return what to yield for a full list: pods that are new or changed, and an end for each that is missing."""
        pods = list(pods)
        # by uid: a new pod may have the name of one that vanished
        present = {pod.uid for pod in pods}
        # uids of ended pods are needed only as long as lists contain them
        self._ended &= present
        gone = [self._end_status(pod) for uid, pod in self._alive.items() if uid not in present]
        return [pod for each in (*gone, *pods) for pod in self.apply_change(each)]

    def apply_change(self, pod: PodStatus) -> list[PodStatus]:
        """Return what to yield for one status: nothing if it is not news."""
        # an ended pod stays ended, whatever a late report says
        if pod.uid in self._ended or self._alive.get(pod.uid) == pod:
            return []
        if pod.has_ended:
            self._alive.pop(pod.uid, None)
            self._ended.add(pod.uid)
        else:
            self._alive[pod.uid] = pod
        return [pod]
