"""``edl events``: the job's own and Kubernetes', in one row."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from cli.cli_harness import CliHarness, cli_with_job
from support.in_memory_cluster import NOW, when
from support.job_objects import EVENTS, PUBLISHED, conditions, put_event, put_job
from support.text_keys import missing_keys

from edl.api.run_events import JobEnded
from edl.api.status import Summary
from edl.jobfile.published_status import PublishedStatus


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CliHarness:
    return cli_with_job(monkeypatch, capsys)


def test_in_the_order_of_time(cli: CliHarness) -> None:
    more = {"lastTimestamp": when(NOW - 60), "type": "Warning", "count": 3}
    put_event(cli.cluster, "edl-mnist-worker-4", "FailedScheduling", "0/2 nodes are available.", **more)
    put_event(cli.cluster, "edl-other-worker-4", "FailedScheduling", "not ours", **more)
    assert cli.edl("events", "mnist") == 0
    assert cli.out.splitlines() == [
        "01-15 07:58:30  job      worker 0 started",
        "01-15 07:59:00  cluster  Pod edl-mnist-worker-4: FailedScheduling: 0/2 nodes are available. (3 times)",
        "01-15 07:59:20  job      worker 0 ended: preempted",
    ]


def test_for_programs(cli: CliHarness) -> None:
    put_event(cli.cluster, "edl-mnist-ps-0", "Pulled", "image pulled")
    assert cli.edl("events", "mnist", "--json") == 0
    published = [(line["by"], line["event"]) for line in cli.events()]
    assert published == [("job", "role_started"), ("job", "role_ended"), ("cluster", "Pulled")]


def test_following_shows_each_once_until_the_end(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(seconds: float) -> None:
        ended = JobEnded("Done", "", Summary(1, 1), time=NOW)
        put_job(cli.cluster, published=replace(PUBLISHED, events=(*EVENTS, ended)), status=conditions(Complete=""))

    defaults = {"server_answered": False, "clock": lambda: 0.0, "sleep": sleep}
    monkeypatch.setattr("edl.ops.job_following.poll_repeatedly.__kwdefaults__", defaults)
    assert cli.edl("events", "mnist", "-f", "--json") == 0
    kinds = [json.loads(line)["event"] for line in cli.out.splitlines()]
    assert kinds == ["role_started", "role_ended", "job_ended"]


def test_nothing_happened_yet(cli: CliHarness) -> None:
    put_job(cli.cluster, "new", PublishedStatus(), status={})
    assert cli.edl("events", "new") == 0
    assert not missing_keys(cli.out, "no events")
    assert cli.edl("events", "new", "--json") == 0
    assert cli.out == ""
