"""Whatever happens while a watch is away: every pod ends once, none is alive again, none ends that lives."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, cast

from cluster.kubernetes.kube_cluster_harness import JOB_UID, render
from hypothesis import given
from hypothesis import strategies as st

from edl.api.cluster_port import DEFAULT_OPTIONS, PodStatus, Role
from edl.api.errors import EdlError
from edl.cluster.kubernetes.api_client import KubeClient, ResourceList
from edl.cluster.kubernetes.api_errors import NoResponseError, ResourceExpiredError, ServerBusyError, UnauthorizedError
from edl.cluster.kubernetes.pod_watch import PodCache, PodWatch, WatchSettings
from edl.core.backoff import ExponentialBackoff

PODS = 4
FAULTS: dict[str, type[EdlError] | None] = {
    "ends": None,
    "away": NoResponseError,
    "gone": ResourceExpiredError,
    "busy": ServerBusyError,
    "login": UnauthorizedError,
}


@dataclass
class ChangingPods:
    """Pods that change step by step; each step is one event."""

    pods: dict[int, dict[str, Any]] = field(default_factory=dict)
    born: int = 0

    def step(self, index: int, what: str) -> tuple[str, dict[str, Any]] | None:
        """Do something to the pod of an index; None where that is not possible."""
        pod = self.pods.get(index)
        if pod is None:
            return self._create(index) if what == "create" else None
        ended = pod["status"]["phase"] == "Failed"
        match what:
            case "run" if not ended:
                pod["status"]["phase"] = "Running"
            case "end" if not ended:
                terminated = {"exitCode": 3, "reason": "Error"}
                pod["status"] = {
                    "phase": "Failed",
                    "containerStatuses": [{"name": "edl", "state": {"terminated": terminated}}],
                }
            case "delete" if not ended:
                pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
            case "remove":
                return "DELETED", self.pods.pop(index)
            case _:
                return None
        return "MODIFIED", deepcopy(pod)

    def _create(self, index: int) -> tuple[str, dict[str, Any]]:
        self.born += 1
        pod = render(Role.WORKER, index, DEFAULT_OPTIONS)
        pod["metadata"]["uid"], pod["status"] = f"uid-{self.born}", {"phase": "Pending"}
        self.pods[index] = pod
        return "ADDED", deepcopy(pod)


Step = tuple[int, str]
Stretch = tuple[list[Step], str, list[Step]]
"""What a watch sees, how it ends, and what happens until the next list."""


class ScriptedApi:
    """Plays a script of stretches; closes the watch after the last one."""

    def __init__(self, script: list[Stretch]) -> None:
        self.changing_pods = ChangingPods()
        self._script = list(script)
        self.watching: PodWatch | None = None

    def list(self, *_: object, **__: object) -> ResourceList:
        if not self._script:
            assert self.watching is not None
            self.watching.close()
        return ResourceList(tuple(deepcopy(list(self.changing_pods.pods.values()))), "1")

    def watch(self, *_: object, **__: object) -> ScriptedStream:
        return ScriptedStream(self.changing_pods, self._script.pop(0) if self._script else ([], "ends", []))


class ScriptedStream:
    def __init__(self, changing_pods: ChangingPods, stretch: Stretch) -> None:
        self._pods, (self._seen, self._fault, self._unseen) = changing_pods, stretch

    def events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for index, what in self._seen:
            event = self._pods.step(index, what)
            yield event or ("BOOKMARK", {})
        for index, what in self._unseen:
            self._pods.step(index, what)
        if (error := FAULTS[self._fault]) is not None:
            raise error("scripted")

    def close(self) -> None:
        return

    def release(self) -> None:
        return


steps = st.lists(
    st.tuples(st.integers(0, PODS - 1), st.sampled_from(["create", "run", "end", "delete", "remove"])), max_size=8
)
scripts = st.lists(st.tuples(steps, st.sampled_from(sorted(FAULTS)), steps), max_size=6)


@given(scripts)
def test_every_pod_that_was_seen_ends_once_and_stays_ended(script: list[Stretch]) -> None:
    api = ScriptedApi(script)
    settings = WatchSettings(backoff=ExponentialBackoff(0, 0), jitter=lambda: 0.0)
    watching = PodWatch(cast(KubeClient, api), "team", "", PodCache(JOB_UID), settings)
    api.watching = watching
    statuses = [each for each in watching.watch_pods() if isinstance(each, PodStatus)]
    living = {pod["metadata"]["uid"] for pod in api.changing_pods.pods.values() if pod["status"]["phase"] != "Failed"}
    for uid in {pod.uid for pod in statuses}:
        states = [pod.has_ended for pod in statuses if pod.uid == uid]
        assert states == sorted(states), "alive again after its end"
        assert sum(states) == (uid not in living), "ended once, or lives"
    assert living <= {pod.uid for pod in statuses}, "somebody lives of whom nothing was said"


def pauses(script: list[Stretch], lasts: float) -> int:
    """How often a watch pauses that ends again and again after so many seconds."""
    pause_count = 0

    def chance() -> float:
        nonlocal pause_count
        pause_count += 1
        return 0.0

    clock = itertools.count()  # every look at it is one watch later
    api = ScriptedApi(script)
    settings = WatchSettings(backoff=ExponentialBackoff(0, 0), jitter=chance, clock=lambda: next(clock) * lasts)
    api.watching = PodWatch(cast(KubeClient, api), "team", "", PodCache(JOB_UID), settings)
    assert list(api.watching.watch_pods())
    return pause_count


def test_watch_that_ends_after_its_time_is_no_trouble_but_one_that_ends_at_once_is() -> None:
    quiet: list[Stretch] = [([], "ends", [])] * 10
    assert pauses(quiet, lasts=60) <= 1, "the one that was closed"
    assert pauses(quiet, lasts=0) >= 10
    busy: list[Stretch] = [([(0, "create")], "ends", [])] * 10
    assert pauses(busy, lasts=0) <= 1
