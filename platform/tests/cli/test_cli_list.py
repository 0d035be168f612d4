"""``edl list``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.cli_harness import CliHarness, cli_with_job
from support.in_memory_cluster import NOW, InMemoryCluster
from support.job_objects import conditions, put_job, with_status
from support.text_keys import missing_keys

from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.resource_kinds import NAMESPACES
from edl.jobfile.published_status import PublishedStatus


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CliHarness:
    return cli_with_job(monkeypatch, capsys)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`edl list` also shows the runs of the folder that it is called in: those of `make demo`, for example."""
    monkeypatch.chdir(tmp_path)


def fill(cluster: InMemoryCluster) -> None:
    put_job(cluster, "waits", PublishedStatus(), status={})
    put_job(cluster, "done", with_status(phase="Done", records_done=60_000), status=conditions(Complete=""))
    put_job(cluster, "other", with_status(starved=True), namespace="elsewhere")


def test_the_jobs_of_a_namespace(cli: CliHarness) -> None:
    fill(cli.cluster)
    assert cli.edl("list") == 0
    assert cli.out.splitlines() == [
        "JOB     PHASE      PROGRESS            WORKERS   SAMPLES/S   AGE",
        "done    Done          100 %                  -           -    3m",
        "mnist   Training       43 %   1/4 (1 starting)       8,123    3m",
        "waits   Pending           -                  -           -    3m",
    ]


def test_the_jobs_of_all_namespaces(cli: CliHarness) -> None:
    fill(cli.cluster)
    assert cli.edl("list", "-A") == 0
    assert "elsewhere   other   Training starved" in cli.out


def test_jobs_that_do_not_train_are_marked(cli: CliHarness) -> None:
    put_job(cli.cluster, "scored", annotations={names.TASK_ANNOTATION: "evaluate"})
    put_job(cli.cluster, "asked", annotations={names.TASK_ANNOTATION: "predict"})
    assert cli.edl("list") == 0
    assert not missing_keys(cli.out, "scored (evaluation)", "asked (prediction)")
    assert "mnist (" not in cli.out
    assert cli.edl("list", "--json") == 0
    assert {job["job"]: job["task"] for job in json.loads(cli.out.splitlines()[-1])} == {
        "asked": "predict",
        "mnist": "train",
        "scored": "evaluate",
    }


def test_what_a_stalled_job_waits_for(cli: CliHarness) -> None:
    why = "waiting for ps-0, its node n1 is unreachable since 2027-01-15 07:59:00 UTC"
    put_job(cli.cluster, published=with_status(phase="Stalled", reason=why))
    put_job(cli.cluster, "alone", with_status(updated=NOW - 65))
    assert cli.edl("list") == 0
    assert "mnist   Stalled" in cli.out
    assert f"mnist is stalled: {why}" in cli.out.splitlines()
    assert "alone   Stalled" in cli.out
    (alone,) = [line for line in cli.out.splitlines() if line.startswith("alone is stalled: ")]
    assert not missing_keys(alone, "master", "1:05")


def test_for_programs(cli: CliHarness) -> None:
    assert cli.edl("list", "--json") == 0
    (job,) = json.loads(cli.out)
    assert (job["job"], job["phase"], job["status"]["step"], job["desired"]["max"]) == ("mnist", "Training", 1234, None)


def test_without_jobs_there_is_a_hint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cli = cli_with_job(monkeypatch, capsys, with_job=False)
    cli.cluster.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    assert cli.edl("list") == 0
    assert not missing_keys(cli.out, "no jobs", "namespace team", "edl submit JOB.yaml")


def test_a_namespace_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cli = cli_with_job(monkeypatch, capsys, with_job=False)
    assert cli.edl("list") == 2
    assert not missing_keys(cli.err, "no namespace team")
    cli.cluster.deny("get", NAMESPACES)
    assert cli.edl("list") == 0
    assert not missing_keys(cli.out, "no jobs", "namespace team")
