"""Keeps a watch's promise: every pod that was yielded alive is yielded ended exactly once.

What was missed while a watch was away is derived from the next full list.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from edl.core.cluster import Phase, PodSeen


class Sightings:
    """What one watch has yielded so far."""

    def __init__(self) -> None:
        self._alive: dict[str, PodSeen] = {}
        self._ended: set[str] = set()

    def listed(self, pods: Iterable[PodSeen]) -> list[PodSeen]:
        """Return what to yield for a full list: what is new in it, and an end for what vanished."""
        pods = list(pods)
        present = {pod.uid for pod in pods}
        self._ended &= present
        vanished = [pod for uid, pod in self._alive.items() if uid not in present]
        gone = [replace(pod, phase=Phase.GONE, exit_code=None, reason="Vanished") for pod in vanished]
        return [pod for each in (*gone, *pods) for pod in self.changed(each)]

    def changed(self, pod: PodSeen) -> list[PodSeen]:
        """Return what to yield for one state: the state, or nothing when it says nothing new."""
        if pod.uid in self._ended or self._alive.get(pod.uid) == pod:
            return []
        if pod.ended:
            self._alive.pop(pod.uid, None)
            self._ended.add(pod.uid)
        else:
            self._alive[pod.uid] = pod
        return [pod]
