"""``edl events``: the job's own and Kubernetes', in one row."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from cli.cli_harness import Desk
from cli.jobs_desk import jobs_desk
from support.in_memory_cluster import NOW, when
from support.job_objects import EVENTS, TOLD, conditions, put_event, put_job
from support.text_keys import missing_keys

from edl.api.events import JobEnded
from edl.api.status import Summary
from edl.jobfile.published_status import PublishedStatus


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return jobs_desk(monkeypatch, capsys)


def test_in_the_order_of_time(desk: Desk) -> None:
    more = {"lastTimestamp": when(NOW - 60), "type": "Warning", "count": 3}
    put_event(desk.cluster, "edl-mnist-worker-4", "FailedScheduling", "0/2 nodes are available.", **more)
    put_event(desk.cluster, "edl-other-worker-4", "FailedScheduling", "not ours", **more)
    assert desk.edl("events", "mnist") == 0
    assert desk.out.splitlines() == [
        "01-15 07:58:30  job      worker 0 started",
        "01-15 07:59:00  cluster  Pod edl-mnist-worker-4: FailedScheduling: 0/2 nodes are available. (3 times)",
        "01-15 07:59:20  job      worker 0 ended: preempted",
    ]


def test_for_programs(desk: Desk) -> None:
    put_event(desk.cluster, "edl-mnist-ps-0", "Pulled", "image pulled")
    assert desk.edl("events", "mnist", "--json") == 0
    told = [(line["by"], line["event"]) for line in desk.events()]
    assert told == [("job", "role_started"), ("job", "role_ended"), ("cluster", "Pulled")]


def test_following_shows_each_once_until_the_end(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        ended = JobEnded("Done", "", Summary(1, 1), time=NOW)
        put_job(desk.cluster, told=replace(TOLD, events=(*EVENTS, ended)), status=conditions(Complete=""))

    defaults = {"server_answered": False, "clock": lambda: 0.0, "sleep": sleep}
    monkeypatch.setattr("edl.ops.job_following.poll_repeatedly.__kwdefaults__", defaults)
    assert desk.edl("events", "mnist", "-f", "--json") == 0
    kinds = [json.loads(line)["event"] for line in desk.out.splitlines()]
    assert kinds == ["role_started", "role_ended", "job_ended"]


def test_nothing_happened_yet(desk: Desk) -> None:
    put_job(desk.cluster, "new", PublishedStatus(), status={})
    assert desk.edl("events", "new") == 0
    assert not missing_keys(desk.out, "yet")
    assert desk.edl("events", "new", "--json") == 0
    assert desk.out == ""
