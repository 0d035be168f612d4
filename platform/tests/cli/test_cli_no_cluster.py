"""Commands about jobs on a cluster, called where there is no kubeconfig: by those who only ever used ``edl run``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.cli_harness import run_edl
from support.text_keys import missing_keys

from edl.storage.run_directory import create_run, locate_job_dir

JOB = """\
name: mnist
image: a
model: {definition: a.b}
data: {training: /data/a}
volumes: [{claim: c, mount: /data}]
"""
ABOUT_ONE = ["top", "wait", "delete"]
"""Commands about jobs on a cluster only; test_cli_local_runs.py has those that are about runs of this machine, too."""


@pytest.fixture
def no_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder; the kubeconfig of the environment is not there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", "/nowhere/config")
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", "/nowhere/config")
    return tmp_path


@pytest.fixture
def runs(no_kubeconfig: Path) -> Path:
    """``mnist`` ran twice on this machine; its second run has a checkpoint and failed."""
    for _ in range(2):
        run = create_run(locate_job_dir(Path(".edl"), "mnist"))
    run.status.write_text("{}")
    (run.path / "failure.txt").write_text("a traceback")
    (run.logs / "master-0.log").write_text("Loss")
    (run.checkpoints / "cut-00000001").mkdir()
    create_run(locate_job_dir(Path(".edl"), "iris"))
    return no_kubeconfig


@pytest.mark.parametrize("command", ABOUT_ONE)
def test_where_a_run_of_that_name_left_its_files(command: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl(command, "mnist") == 2
    reason, remedy, run = capsys.readouterr().err.splitlines()
    assert not missing_keys(reason, "kubeconfig", "/nowhere/config", "KUBECONFIG")
    assert not missing_keys(remedy, "KUBECONFIG", "kubectl cluster-info")
    assert not missing_keys(run, "mnist", ".edl/local/mnist/r2", "status.json", "failure.txt", "logs/", "checkpoints/")
    assert not missing_keys(run, "edl checkpoint ls mnist", "edl status mnist", "edl logs mnist")


def test_scale_which_needs_an_option_reaches_a_run_of_this_machine(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_edl("scale", "mnist", "--max", "3") == 2
    assert not missing_keys(capsys.readouterr().err, "mnist/r2", "Interrupted", "edl status mnist/r2")


@pytest.mark.parametrize("args", [["list", "-A"], ["status", "other", "-n", "team"], ["doctor"]])
def test_without_such_a_run_those_that_there_are(
    args: list[str], runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_edl(*args) == 2
    (runs_here,) = capsys.readouterr().err.splitlines()[2:]
    assert not missing_keys(runs_here, "iris, mnist", "status.json", "logs/", "checkpoints/", ".edl/local/JOB/RUN/")


@pytest.mark.parametrize("command", ["status", "events", "logs", "why"])
@pytest.mark.parametrize("job", ["other", "mnist/r9", "../mnist"])
def test_commands_about_both_begin_with_the_runs_of_this_machine(
    command: str, job: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_edl(command, job) == 2
    reason, runs_hint, cluster_hint = capsys.readouterr().err.splitlines()
    assert not missing_keys(reason, job, ".edl")
    assert not missing_keys(runs_hint, "iris/r1, mnist/r1, mnist/r2")
    assert not missing_keys(cluster_hint, "kubeconfig", "/nowhere/config", "KUBECONFIG")


def test_so_they_do_without_any_run(no_kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl("status", "mnist") == 2
    reason, remedy, *_ = capsys.readouterr().err.splitlines()
    assert not missing_keys(reason, "mnist", ".edl")
    assert not missing_keys(remedy, "edl run")


@pytest.mark.parametrize("args", [["list"], ["top", "mnist"]])
def test_without_any_run_where_they_would_be(
    args: list[str], no_kubeconfig: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_edl(*args) == 2
    (where,) = capsys.readouterr().err.splitlines()[2:]
    assert not missing_keys(where, "edl run", "status.json", "logs/", ".edl/local/JOB/RUN/", "storage.path")


def test_a_run_that_left_nothing_yet(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl("top", "iris") == 2
    newest = capsys.readouterr().err.splitlines()[-1]
    assert not missing_keys(newest, "iris", ".edl/local/iris/r1")
    assert "status.json" not in newest


def test_submit_says_so_to_programs_too(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.yaml").write_text(JOB)
    assert run_edl("submit", "job.yaml", "--yes", "--json") == 2
    event = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert event["event"] == "refused"
    assert not missing_keys(event["message"], "kubeconfig")
    assert "edl run" in event["hint"]
