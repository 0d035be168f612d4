"""The board: the newest pages win, a server that is away is no reason to stop, wishes arrive once each."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.in_memory_cluster import InMemoryCluster

from edl.cluster.kubernetes import names, status_publisher
from edl.cluster.kubernetes.api_client import ResourceList
from edl.cluster.kubernetes.api_errors import NoResponseError, NotFoundError, RbacDeniedError
from edl.cluster.kubernetes.resource_kinds import CONFIGMAPS, ResourceKind
from edl.cluster.kubernetes.status_publisher import KubeStatusPublisher
from edl.cluster.status_port import DesiredState
from edl.core.backoff import ExponentialBackoff

JOB = "digits"
STATUS = names.status_configmap(JOB)


class ScriptedWatch:
    """A watch whose lines a test writes."""

    def __init__(self) -> None:
        self.lines: queue.Queue[Any] = queue.Queue()

    def events(self) -> Iterator[tuple[str, Any]]:
        while (line := self.lines.get()) is not None:
            if isinstance(line, Exception):
                raise line
            yield line

    def close(self) -> None:
        self.lines.put(None)

    def __enter__(self) -> ScriptedWatch:
        return self

    def __exit__(self, *_: object) -> None:
        return


class JobWatchServer(InMemoryCluster):
    """Also lists and watches the Job."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: queue.Queue[ScriptedWatch] = queue.Queue()

    def list(self, kind: ResourceKind, **selectors: Any) -> ResourceList:
        assert selectors == {"fields": f"metadata.name={names.master_name(JOB)}"}
        return ResourceList((self.get(kind, names.master_name(JOB)),), "7")

    def watch(self, kind: ResourceKind, *, resource_version: str, **_: Any) -> ScriptedWatch:  # type: ignore[override]
        assert resource_version == "7"
        stream = ScriptedWatch()
        self.streams.put(stream)
        return stream


def job(**desired: Any) -> dict[str, Any]:
    meta = {
        "name": names.master_name(JOB),
        "annotations": {names.DESIRED_ANNOTATION: json.dumps(desired)} if desired else {},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta}


@pytest.fixture
def server() -> JobWatchServer:
    watch_server = JobWatchServer()
    watch_server.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": STATUS}})
    watch_server.put(job())
    return watch_server


@pytest.fixture
def publisher(server: JobWatchServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeStatusPublisher]:
    monkeypatch.setattr(status_publisher, "PUBLISH_PERIOD_SECONDS", 0.0)
    monkeypatch.setattr(status_publisher, "_BACKOFF", ExponentialBackoff(0.0, 0.0))
    kube_publisher = KubeStatusPublisher(server, JOB)
    yield kube_publisher
    kube_publisher.close()


def once_closing(publisher: KubeStatusPublisher, then: Exception) -> Callable[[str], None]:
    """A request that is on its way while the board is closed, and is refused then."""

    def refuse(method: str) -> None:
        threading.Thread(target=publisher.close).start()
        with publisher._changed:
            publisher._changed.wait_for(lambda: publisher._closing)
        raise then

    return refuse


def published_pages(server: JobWatchServer) -> dict[str, str]:
    pages: dict[str, str] = server.stored(CONFIGMAPS, STATUS)["data"]
    return pages


def test_the_newest_pages_are_shown_and_old_ones_go(server: JobWatchServer, publisher: KubeStatusPublisher) -> None:
    arrived = threading.Event()
    server.before = lambda method: arrived.set()
    publisher.publish({"a": "1", "b": "1"})
    assert arrived.wait(30)
    publisher.publish({"a": "2"})
    publisher.close()
    assert published_pages(server) == {"a": "2"}


def test_what_comes_while_a_request_is_on_its_way_is_one_publication(
    server: JobWatchServer, publisher: KubeStatusPublisher
) -> None:
    inside, go = threading.Event(), threading.Event()

    def hold(method: str) -> None:
        inside.set()
        assert go.wait(30)

    server.before = hold
    publisher.publish({"a": "0"})
    assert inside.wait(30)
    for n in range(1, 100):
        publisher.publish({"a": str(n)})
    go.set()
    publisher.close()
    assert published_pages(server) == {"a": "99"}
    assert len(server.requests) == 2


def test_a_server_that_is_away_gets_the_newest_pages_when_it_is_back(
    server: JobWatchServer, publisher: KubeStatusPublisher
) -> None:
    tries = threading.Semaphore(0)
    server.away = True
    server.before = lambda method: tries.release()
    publisher.publish({"a": "1"})
    for _ in range(3):
        assert tries.acquire(timeout=30)
    server.away = False
    publisher.close()
    assert published_pages(server) == {"a": "1"}


@pytest.mark.parametrize(("took", "rest"), [(0.0, 1.0), (0.25, 0.75)])
def test_there_is_one_publication_a_second(
    server: JobWatchServer, monkeypatch: pytest.MonkeyPatch, took: float, rest: float
) -> None:
    """Of a thousand jobs, each: whoever published at once would keep the server busy with nothing else."""
    now, rests, rested = [0.0], list[float](), threading.Event()

    def resting(_: KubeStatusPublisher, again: object, seconds: float) -> bool:
        rests.append(seconds)
        rested.set()
        return True

    def passing(_: str) -> None:
        now[0] += took

    monkeypatch.setattr(KubeStatusPublisher, "_wait_before_retry", resting)
    server.before = passing
    kube_publisher = KubeStatusPublisher(server, JOB, clock=lambda: now[0])
    kube_publisher.publish({"a": "1"})
    assert rested.wait(30)
    kube_publisher.close()
    assert rests == [rest]


def test_a_configmap_that_is_missing_is_not_made(server: JobWatchServer, publisher: KubeStatusPublisher) -> None:
    """It goes with its Job: whoever made it anew would leave it behind. And a master has no right to."""
    tried = threading.Event()
    server.before = lambda method: tried.set()
    server.remove(CONFIGMAPS, STATUS)
    publisher.publish({"a": "1"})
    assert tried.wait(30)
    publisher.close()
    assert server.requests == [("PATCH", STATUS)]


def test_a_configmap_that_goes_before_its_master_is_no_news(
    server: JobWatchServer, publisher: KubeStatusPublisher, caplog: pytest.LogCaptureFixture
) -> None:
    server.before = once_closing(publisher, NotFoundError("there is none"))
    publisher.publish({"a": "1"})
    publisher._thread.join(30)
    assert (server.requests, caplog.text) == ([("PATCH", STATUS)], "")


def test_what_the_server_will_never_do_is_asked_for_once_and_told(
    server: JobWatchServer, publisher: KubeStatusPublisher, caplog: pytest.LogCaptureFixture
) -> None:
    server.before = once_closing(publisher, RbacDeniedError("configmaps is forbidden: User cannot patch"))
    publisher.publish({"a": "1"})
    publisher._thread.join(30)
    assert server.requests == [("PATCH", STATUS)]
    assert "cannot patch" in caplog.text


def test_pages_that_follow_refused_ones_are_shown(server: JobWatchServer, publisher: KubeStatusPublisher) -> None:
    refused = threading.Event()

    def refuse_once(method: str) -> None:
        server.before = lambda method: None
        refused.set()
        raise RbacDeniedError("configmaps is forbidden: User cannot patch")

    server.before = refuse_once
    publisher.publish({"a": "1"})
    assert refused.wait(30)
    publisher.publish({"a": "2"})
    publisher.close()
    assert published_pages(server) == {"a": "2"}


def test_wishes_arrive_once_each_also_those_that_a_watch_missed(
    server: JobWatchServer, publisher: KubeStatusPublisher
) -> None:
    wishes = publisher.watch_desired_state()
    assert next(wishes) == DesiredState()
    received: queue.Queue[DesiredState] = queue.Queue()
    reading = threading.Thread(target=lambda: [received.put(wish) for wish in wishes])
    reading.start()
    stream = server.streams.get(timeout=30)
    stream.lines.put(("MODIFIED", job(max=8)))
    stream.lines.put(("MODIFIED", job(max=8)))
    stream.lines.put(("BOOKMARK", {"metadata": {"resourceVersion": "9"}}))
    assert received.get(timeout=30) == DesiredState(max=8)
    server.put(job(max=8, stop=True))
    stream.lines.put(NoResponseError("it fell silent"))
    assert received.get(timeout=30) == DesiredState(max=8, stop=True)
    server.streams.get(timeout=30)
    publisher.close()
    reading.join(30)
    assert received.empty()
