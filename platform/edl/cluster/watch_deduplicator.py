"""Keeps a watch's promise: every pod that was yielded alive is yielded ended exactly once.

What was missed while a watch was away is derived from the next full list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from edl.api.cluster_port import PodPhase, PodStatus


def vanished_status(last: PodStatus) -> PodStatus:
    """The end of a pod of which nothing is left but what it was like when it was last seen."""
    return replace(last, phase=PodPhase.GONE, exit_code=None, reason="Vanished", leaving=False)


class WatchDeduplicator:
    """What one watch has yielded so far.

    Args:
        end: the end of a pod that is not in a list any more, from what was last seen of it.
    """

    def __init__(self, end: Callable[[PodStatus], PodStatus] = vanished_status) -> None:
        self._end_status = end
        self._alive: dict[str, PodStatus] = {}
        self._ended: set[str] = set()

    def apply_list(self, pods: Iterable[PodStatus]) -> list[PodStatus]:
        """Return what to yield for a full list: what is new in it, and an end for what vanished."""
        pods = list(pods)
        present = {pod.uid for pod in pods}
        self._ended &= present
        gone = [self._end_status(pod) for uid, pod in self._alive.items() if uid not in present]
        return [pod for each in (*gone, *pods) for pod in self.apply_change(each)]

    def apply_change(self, pod: PodStatus) -> list[PodStatus]:
        """Return what to yield for one state: the state, or nothing when it says nothing new."""
        if pod.uid in self._ended or self._alive.get(pod.uid) == pod:
            return []
        if pod.has_ended:
            self._alive.pop(pod.uid, None)
            self._ended.add(pod.uid)
        else:
            self._alive[pod.uid] = pod
        return [pod]
