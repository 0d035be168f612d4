"""edl evaluate: what its master is told, what it prints, and what is refused."""

from __future__ import annotations

import json

import pytest
from cli.cli_harness import LocalRunHarness
from cli.test_cli_predict import checkpoint, keras_file
from support.text_keys import missing_keys

from edl.jobfile.loader import load_job_file
from edl.storage.run_directory import RunDirectory

VALIDATION = ("--set", "data.validation=test.csv")


def test_the_master_is_told_the_task_and_the_weights(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = keras_file(local_run.folder / "model.keras")
    options = (*VALIDATION, "--set", "strategy.name=AllReduce", "--workers", "3")
    assert local_run.edl("evaluate", "job.yaml", "--from", "model.keras", *options) == 0
    run = local_run.run_dir()
    assert json.loads((run / "evaluate.json").read_text()) == {"from": str(weights), "step": 0}
    spec = load_job_file(run / "spec.json")
    assert (spec.task, spec.model.weights, spec.strategy.name) == ("evaluate", str(weights), "ParameterServer")
    out = capsys.readouterr().out
    assert not missing_keys(out, "evaluates 5 records", f"{local_run.folder}/test.csv", str(weights), "3 workers")
    assert not missing_keys(local_run_list(local_run, capsys), "(evaluation)")


def local_run_list(local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]) -> str:
    local_run.edl("list", "--local")
    return capsys.readouterr().out


def test_the_newest_checkpoint_of_a_run_with_its_step(local_run: LocalRunHarness) -> None:
    assert local_run.edl("run", "job.yaml") == 0
    wanted = checkpoint(RunDirectory(local_run.run_dir()), 2, step=9)
    assert local_run.edl("evaluate", "job.yaml", *VALIDATION) == 0
    written = json.loads((local_run.run_dir("r2") / "evaluate.json").read_text())
    held_weights = local_run.run_dir("r2") / "weights" / wanted.name
    assert written == {"from": str(wanted), "step": 9, "held": str(held_weights)}
    assert local_run.edl("evaluate", "job.yaml", *VALIDATION) == 0, "an evaluation is no trained run"
    assert json.loads((local_run.run_dir("r3") / "evaluate.json").read_text())["from"] == str(wanted)


def test_weights_of_the_job_file_count_without_an_option(local_run: LocalRunHarness) -> None:
    weights = keras_file(local_run.folder / "model.keras")
    assert local_run.edl("evaluate", "job.yaml", *VALIDATION, "--set", "model.weights=model.keras") == 0
    assert json.loads((local_run.run_dir() / "evaluate.json").read_text())["from"] == str(weights)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (VALIDATION, ("no run",)),
        (("--set", "data.validation=null"), ("data.validation",)),
        ((*VALIDATION, "--from", "/nowhere"), ("/nowhere", "no such file")),
    ],
)
def test_bad_input(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], said: tuple[str, ...]
) -> None:
    assert local_run.edl("evaluate", "job.yaml", *args) == 2
    assert not missing_keys(capsys.readouterr().err, *said)
    assert not local_run.run_dir().exists()


def test_edl_run_only_trains(local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]) -> None:
    assert local_run.edl("run", "job.yaml", "--set", "task=predict") == 2
    assert not missing_keys(capsys.readouterr().err, "edl predict")


def test_an_evaluation_is_not_resumed(local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]) -> None:
    keras_file(local_run.folder / "model.keras")
    assert local_run.edl("evaluate", "job.yaml", "--from", "model.keras", *VALIDATION) == 0
    assert local_run.edl("run", "job.yaml", "--resume", "r1") == 2
    assert not missing_keys(capsys.readouterr().err, "edl evaluate")


def test_a_valid_job_says_what_it_evaluates_with(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    assert local_run.edl("validate", "job.yaml", *VALIDATION, "--set", "task=evaluate") == 0
    out = capsys.readouterr().out
    assert not missing_keys(out, "evaluates test.csv with the newest trained run", "no parameter servers")
    assert "trains on" not in out
