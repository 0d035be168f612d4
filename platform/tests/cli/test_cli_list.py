"""``edl list``."""

from __future__ import annotations

import json

import pytest
from cli.cli_harness import Desk
from cli.jobs_desk import jobs_desk
from support.in_memory_cluster import NOW, InMemoryCluster
from support.job_objects import conditions, put_job, with_status
from support.text_keys import missing_keys

from edl.cluster.kubernetes.resource_kinds import NAMESPACES
from edl.jobfile.published_status import PublishedStatus


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return jobs_desk(monkeypatch, capsys)


def fill(cluster: InMemoryCluster) -> None:
    put_job(cluster, "waits", PublishedStatus(), status={})
    put_job(cluster, "done", with_status(phase="Done", records_done=60_000), status=conditions(Complete=""))
    put_job(cluster, "other", with_status(starved=True), namespace="elsewhere")


def test_the_jobs_of_a_namespace(desk: Desk) -> None:
    fill(desk.cluster)
    assert desk.edl("list") == 0
    assert desk.out.splitlines() == [
        "JOB     PHASE      PROGRESS            WORKERS   SAMPLES/S   AGE",
        "done    Done          100 %                  -           -    3m",
        "mnist   Training       43 %   1/4 (1 starting)       8,123    3m",
        "waits   Pending           -                  -           -    3m",
    ]


def test_the_jobs_of_all_namespaces(desk: Desk) -> None:
    fill(desk.cluster)
    assert desk.edl("list", "-A") == 0
    assert "elsewhere   other   Training starved" in desk.out


def test_what_a_stalled_job_waits_for(desk: Desk) -> None:
    why = "waiting for ps-0, its node n1 is unreachable since 2027-01-15 07:59:00 UTC"
    put_job(desk.cluster, told=with_status(phase="Stalled", reason=why))
    put_job(desk.cluster, "alone", with_status(updated=NOW - 65))
    assert desk.edl("list") == 0
    assert "mnist   Stalled" in desk.out
    assert f"mnist is stalled: {why}" in desk.out.splitlines()
    assert "alone   Stalled" in desk.out
    (alone,) = [line for line in desk.out.splitlines() if line.startswith("alone is stalled: ")]
    assert not missing_keys(alone, "master", "65 s")


def test_for_programs(desk: Desk) -> None:
    assert desk.edl("list", "--json") == 0
    (job,) = json.loads(desk.out)
    assert (job["job"], job["phase"], job["status"]["step"], job["desired"]["max"]) == ("mnist", "Training", 1234, None)


def test_without_jobs_there_is_a_hint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    desk = jobs_desk(monkeypatch, capsys, with_job=False)
    desk.cluster.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    assert desk.edl("list") == 0
    assert not missing_keys(desk.out, "no jobs", "namespace team", "edl submit JOB.yaml")


def test_a_namespace_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    desk = jobs_desk(monkeypatch, capsys, with_job=False)
    assert desk.edl("list") == 2
    assert not missing_keys(desk.err, "no namespace team")
    desk.cluster.deny("get", NAMESPACES)
    assert desk.edl("list") == 0
    assert not missing_keys(desk.out, "no jobs", "namespace team")
