"""``edl why``: findings with their remedies, or that there are none."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from cli.cli_harness import CliHarness, cli_with_job
from support.in_memory_cluster import NOW, when
from support.job_objects import STATUS, conditions, put_job, put_pod, unscheduled, with_status
from support.text_keys import missing_keys

from edl.api.cluster_port import Role
from edl.api.run_events import WarningRaised
from edl.cluster.kubernetes.resource_kinds import NODES
from edl.jobfile.published_status import PublishedStatus
from edl.worker.data_wait import describe_wait

SAID = "0/2 nodes are available: 2 Insufficient cpu."


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CliHarness:
    cli = cli_with_job(monkeypatch, capsys, with_job=False)
    put_job(cli.cluster, published=PublishedStatus(replace(STATUS, workers_wanted=2)))
    put_pod(cli.cluster, Role.MASTER)
    return cli


def test_nothing_is_the_matter(cli: CliHarness) -> None:
    assert cli.edl("why", "mnist") == 0
    assert not missing_keys(cli.out, "mnist", "Training")
    assert cli.out.count("\n") == 1


@pytest.mark.parametrize(
    ("ended", "since"), [({"completionTime": when(NOW - 5)}, ["2027-01-15 07:59:55 UTC"]), ({}, [])]
)
def test_a_job_that_is_done_is_said_to_be_done(cli: CliHarness, ended: dict[str, str], since: list[str]) -> None:
    complete = conditions(Complete="") | ended
    put_job(cli.cluster, published=with_status(phase="Done"), status=complete)
    assert cli.edl("why", "mnist") == 0
    done, cost, *_ = cli.out.splitlines()
    assert not missing_keys(done, "mnist", "Done", *since)
    assert ("since" in done) == bool(since)
    assert not missing_keys(cost, "mnist", "3.3 of 4", "workers", "33%")
    put_job(cli.cluster, published=PublishedStatus(with_status(phase="Done").status), status=complete)
    assert cli.edl("why", "mnist") == 0
    assert not missing_keys(cli.out, "mnist", "Done", *since)
    assert cli.out.count("\n") == 1
    assert cli.edl("why", "mnist", "--json") == 0
    assert json.loads(cli.out) == []


def test_what_waits_and_what_can_be_done(cli: CliHarness) -> None:
    put_pod(cli.cluster, Role.WORKER, 4, unscheduled(SAID))
    assert cli.edl("why", "mnist") == 0
    text, remedy, quote = cli.out.splitlines()
    assert not missing_keys(text, "worker-4", "2 of 2 nodes", "cpu")
    assert not missing_keys(remedy, "->", "resources.cpu", "priority")
    assert quote == f"     {SAID}"


def test_what_can_never_fit(cli: CliHarness) -> None:
    cli.cluster.node("n1")
    put_pod(cli.cluster, Role.WORKER, 4, unscheduled(SAID), cpu="64")
    assert cli.edl("why", "mnist", "--json") == 0
    (finding,) = json.loads(cli.out)
    assert not missing_keys(finding["text"], "never", "64 CPU")


def test_who_may_not_list_nodes_hears_the_scheduler(cli: CliHarness) -> None:
    cli.cluster.deny("list", NODES)
    put_pod(cli.cluster, Role.WORKER, 4, unscheduled(SAID), cpu="64")
    assert cli.edl("why", "mnist") == 0
    text, remedy, quote = cli.out.splitlines()
    assert not missing_keys(text, "worker-4", "2 of 2 nodes", "cpu", "64 CPU", "unknown", "nodes")
    assert "edl-cluster-viewer" in remedy
    assert quote == f"     {SAID}"


def test_a_job_that_waits_for_room_on_its_disk(cli: CliHarness) -> None:
    reason = "waiting until a checkpoint can be written: No space left on device"
    put_job(cli.cluster, published=with_status(phase="Stalled", reason=reason))
    assert cli.edl("why", "mnist") == 0
    text, remedy, *_ = cli.out.splitlines()
    assert not missing_keys(text, "mnist", "stalled", reason)
    assert not missing_keys(remedy, "->", "volume", "30 s")


def test_a_worker_that_waits_for_data_is_told_of_by_why_and_status(cli: CliHarness) -> None:
    warned = WarningRaised(describe_wait(0.6, 30.0), time=NOW - 30)
    put_job(cli.cluster, published=PublishedStatus(replace(STATUS, workers_wanted=2), (warned,)))
    assert cli.edl("why", "mnist") == 0
    assert not missing_keys(cli.out, "data come more slowly than a worker trains", "60% of 30 s", "decoding or feed")
    assert cli.edl("why", "mnist", "--json") == 0
    assert [finding["text"] for finding in json.loads(cli.out)] == [warned.message]
    assert cli.edl("status", "mnist") == 0
    assert not missing_keys(cli.out, "warning: data come more slowly than a worker trains")
