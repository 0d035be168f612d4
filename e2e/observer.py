"""What happens in one namespace: every change of its pods, Jobs and ConfigMaps, with the moment in which it was seen.

The tests measure with it, so it is independent of what the product watches: list, watch, and list again on any error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from e2e.waiting import wait_until

from edl.api.errors import EdlError
from edl.cluster.kubernetes.api_client import KubeClient, ResponseStream
from edl.cluster.kubernetes.resource_kinds import CONFIGMAPS, JOBS, PODS, Manifest, ResourceKind

Found = TypeVar("Found")

ADDED, MODIFIED, DELETED = "ADDED", "MODIFIED", "DELETED"
_KINDS = (PODS, JOBS, CONFIGMAPS)
_AGAIN_SECONDS = 0.2


@dataclass(frozen=True)
class ObjectChange:
    """One change of one object.

    Attributes:
        happened_at: when it was seen here, unix seconds.
        type: ``ADDED``, ``MODIFIED`` or ``DELETED``.
        object: as it was then.
    """

    happened_at: float
    type: str
    object: Manifest

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.object["metadata"]["uid"])

    @property
    def labels(self) -> Mapping[str, str]:
        return self.object["metadata"].get("labels") or {}

    @property
    def being_deleted(self) -> bool:
        """Whether the object was told to go."""
        return "deletionTimestamp" in self.object["metadata"]


class NamespaceObserver:
    """Follows one namespace until ``close``."""

    def __init__(self, api: KubeClient, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._lock = threading.Lock()
        self._objects: dict[str, dict[str, Manifest]] = {kind.name: {} for kind in _KINDS}
        self._changes: dict[str, list[ObjectChange]] = {kind.name: [] for kind in _KINDS}
        self._streams: dict[str, ResponseStream] = {}
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._follow_kind, args=(kind,), daemon=True) for kind in _KINDS]
        for thread in self._threads:
            thread.start()

    # ------------------------------------------------------------------ what is there

    def pods(self, **labels: str) -> list[Manifest]:
        """The pods that exist, by name; labels as ``job="mnist"``, ``role="worker"``."""
        return [pod for pod in self._current_objects(PODS) if _has_labels(pod, labels)]

    def pod(self, name: str) -> Manifest | None:
        """A pod by name."""
        return self._find_object(PODS, name)

    def job(self, name: str) -> Manifest | None:
        """A ``batch/v1`` Job by name."""
        return self._find_object(JOBS, name)

    def config_map_data(self, config_map: str) -> dict[str, str]:
        """The data of a ConfigMap; empty if there is none."""
        return (self._find_object(CONFIGMAPS, config_map) or {}).get("data") or {}

    def changes(self, kind: ResourceKind = PODS) -> list[ObjectChange]:
        """Every change so far, in order."""
        with self._lock:
            return list(self._changes[kind.name])

    def first_change(self, wanted: Callable[[ObjectChange], bool], kind: ResourceKind = PODS) -> ObjectChange | None:
        """The first change that is wanted."""
        return next((change for change in self.changes(kind) if wanted(change)), None)

    # ------------------------------------------------------------------ waiting

    def wait_for(self, what: str, condition: Callable[[], Found | None], seconds: float = 90.0) -> Found:
        """The first result of ``condition`` that is neither None nor False; see ``e2e.waiting.until``."""
        return wait_until(what, condition, seconds, self.describe_pods)

    def wait_change(self, what: str, wanted: Callable[[ObjectChange], bool], seconds: float = 90.0) -> ObjectChange:
        """The first change of a pod that is wanted."""
        return self.wait_for(what, lambda: self.first_change(wanted), seconds)

    def describe_pods(self) -> str:
        """The pods as they are, for whoever reads a failure."""
        return "\n".join(["pods:", *map(pod_line, self._current_objects(PODS))])

    # ------------------------------------------------------------------ following

    def close(self) -> None:
        """End all watches."""
        self._closed.set()
        for stream in list(self._streams.values()):
            stream.close()
        for thread in self._threads:
            thread.join(5)

    def _follow_kind(self, kind: ResourceKind) -> None:
        while not self._closed.is_set():
            try:
                listing = self._api.list(kind, namespace=self._namespace)
                self._apply_listing(kind, listing.items)
                with self._api.watch(
                    kind,
                    resource_version=listing.resource_version,
                    namespace=self._namespace,
                    timeout_seconds=60,
                    idle_timeout=75,
                ) as stream:
                    self._streams[kind.name] = stream
                    for change, manifest in stream.events():
                        if change in (ADDED, MODIFIED, DELETED):
                            self._record_change(kind, change, manifest)
            except EdlError:
                self._closed.wait(_AGAIN_SECONDS)

    def _apply_listing(self, kind: ResourceKind, items: Iterable[Manifest]) -> None:
        listed = {item["metadata"]["uid"]: item for item in items}
        for known in self._current_objects(kind):
            if known["metadata"]["uid"] not in listed:
                self._record_change(kind, DELETED, known)
        before = {known["metadata"]["uid"]: known for known in self._current_objects(kind)}
        for uid, item in listed.items():
            if uid not in before:
                self._record_change(kind, ADDED, item)
            elif before[uid]["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
                self._record_change(kind, MODIFIED, item)

    def _record_change(self, kind: ResourceKind, change: str, found: Manifest) -> None:
        with self._lock:
            self._changes[kind.name].append(ObjectChange(time.time(), change, found))
            objects, name = self._objects[kind.name], found["metadata"]["name"]
            if change == DELETED:
                objects.pop(name, None)
            else:
                objects[name] = found

    def _current_objects(self, kind: ResourceKind) -> list[Manifest]:
        with self._lock:
            return [manifest for _, manifest in sorted(self._objects[kind.name].items())]

    def _find_object(self, kind: ResourceKind, name: str) -> Manifest | None:
        with self._lock:
            return self._objects[kind.name].get(name)


def _has_labels(pod: Manifest, labels: dict[str, str]) -> bool:
    have = pod["metadata"].get("labels") or {}
    return all(have.get(f"edl.dev/{name}") == value for name, value in labels.items())


def phase(pod: Manifest | None) -> str:
    """A pod's phase; ``Leaving`` if it was told to go, ``Gone`` if there is none."""
    if pod is None:
        return "Gone"
    return "Leaving" if "deletionTimestamp" in pod["metadata"] else str(pod["status"].get("phase"))


def condition(pod: Manifest, kind: str) -> Manifest | None:
    """A condition of a pod or Job that is True."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((entry for entry in conditions if entry["type"] == kind and entry["status"] == "True"), None)


def container(pod: Manifest) -> Manifest:
    """The status of a pod's first container; empty before there is one."""
    statuses = pod.get("status", {}).get("containerStatuses") or ({},)
    return dict(statuses[0])


def pod_line(pod: Manifest) -> str:
    """A pod in one line."""
    state = container(pod).get("state") or {}
    why = [str(entry.get("message")) for entry in pod["status"].get("conditions") or () if entry.get("message")]
    node, restarts = pod["spec"].get("nodeName", "no node"), container(pod).get("restartCount", 0)
    return f"  {pod['metadata']['name']}: {phase(pod)}, {node}, {restarts} restarts, {state} {'; '.join(why)}"
