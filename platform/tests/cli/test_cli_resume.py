"""edl run --resume: which run goes on, with which changes, and what its next master finds."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from cli.conftest import DONE, SUMMARY, Stage

from edl.cli.local import resumption
from edl.core.errors import BadInputError
from edl.spec.load import dump, load
from edl.store.journal import Journal
from edl.store.manifest import MANIFEST, Manifest, cut_directory
from edl.store.rundir import RunDir, create, write_json

FAILED = {"event": "job_ended", "phase": "Failed", "reason": "the disk is full", "summary": SUMMARY}
FAILED_STATUS = {"job": "digits", "phase": "Failed", "records_total": 30, "records_done": 12}


def fail(stage: Stage) -> None:
    """Have a run r1 that failed."""
    stage.script(["event", FAILED], ["status", FAILED_STATUS], ["text", ["failure.txt", "old"]])
    assert stage.edl("run", "job.yaml") == 1
    stage.script(*DONE)


@pytest.mark.parametrize("resume", [["--resume"], ["--resume", "r1"], ["--resume=r1"]])
def test_a_failed_run_goes_on_in_its_directory(
    stage: Stage, capsys: pytest.CaptureFixture[str], resume: list[str]
) -> None:
    fail(stage)
    capsys.readouterr()
    assert stage.edl("run", *resume, "job.yaml", "--ps", "2", "--set", "train.epochs=4") == 0
    said = capsys.readouterr()
    assert f"goes on with r1 in {stage.run_dir()}" in said.out
    assert "  changed: train.epochs was 3, is 4\n  changed: ps.count was 1, is 2\n" in said.out
    assert "the disk is full" not in said.out + said.err
    journal, replay = Journal.open(RunDir(stage.run_dir()).journal, holder="test")
    journal.close()
    assert [entry["kind"] for entry in replay.entries] == ["resumed"]
    assert json.loads((stage.run_dir() / "spec.json").read_text())["ps"]["count"] == 2


def test_a_run_whose_processes_were_all_killed_needs_no_word_in_the_journal(stage: Stage) -> None:
    fail(stage)
    status = stage.run_dir() / "status.json"
    write_json(status, stage.status() | {"phase": "Training"})
    resumption.reopen(RunDir(stage.run_dir()))
    assert not list((stage.run_dir() / "journal").iterdir())
    assert not (stage.run_dir() / "failure.txt").exists()


def test_a_run_that_is_done_does_not_go_on(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    assert stage.edl("run", "job.yaml") == 0
    assert stage.edl("run", "job.yaml", "--resume") == 2
    assert "run r1 is done" in capsys.readouterr().err


def test_runs_of_another_folder_are_not_found_and_the_hint_says_where_they_are(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(stage)
    elsewhere = stage.folder / "elsewhere"
    elsewhere.mkdir()
    stage.monkeypatch.chdir(elsewhere)
    assert stage.edl("run", "../job.yaml", "--resume") == 2
    assert "call this in the folder where it was started" in capsys.readouterr().err


def test_an_unknown_run_is_refused_with_those_there_are(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    fail(stage)
    assert stage.edl("run", "job.yaml", "--resume", "r7") == 2
    assert "Its runs are: r1." in capsys.readouterr().err


def test_the_command_that_goes_on_has_the_options_of_this_one(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    stage.script(["event", FAILED], ["status", FAILED_STATUS])
    given = ["--set", "train.epochs=9", "--set", "model.params.note=good day", "--workers", "1", "--ps", "2"]
    assert stage.edl("run", "job.yaml", *given) == 1
    again = capsys.readouterr().out.splitlines()[-1].partition("with: edl ")[2]
    assert shlex.split(again) == ["run", "job.yaml", *given, "--resume", "r1"]
    stage.script(*DONE)
    assert stage.edl(*shlex.split(again)) == 0
    said = capsys.readouterr().out
    assert "changed" not in said
    offered = said.splitlines()[-1].partition("with: edl ")[2]
    assert shlex.split(offered) == ["predict", "job.yaml", *given[:-2], "--from", "r1", "--output", "predictions"]


def test_the_command_that_goes_on_can_be_typed_where_no_environment_is_active(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.monkeypatch.setenv("PATH", "/nowhere")
    stage.monkeypatch.setattr("sys.argv", [".venv/bin/edl", "run", "job.yaml"])
    fail(stage)
    assert "with: .venv/bin/edl run job.yaml --resume r1\n" in capsys.readouterr().out


def test_from_which_checkpoint_a_run_goes_on_is_told(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    fail(stage)
    assert "There is no checkpoint: it would begin again.\nGo on when" in capsys.readouterr().out
    for cut, step in (1, 0), (2, 1000):
        manifest = Manifest(cut, step, "", (), {"done_steps": step})
        folder = cut_directory(stage.run_dir() / "checkpoints", cut)
        folder.mkdir()
        write_json(folder / MANIFEST, manifest.to_json())
    cut_directory(stage.run_dir() / "checkpoints", 3).mkdir()  # the interrupt came before it was whole
    stage.script(["event", FAILED], ["status", FAILED_STATUS])
    assert stage.edl("run", "job.yaml", "--resume") == 1
    said = capsys.readouterr().out
    assert f"goes on with r1 in {stage.run_dir()}\n  from checkpoint 2 at step 1,000\n" in said
    assert "It goes on from checkpoint 2 at step 1,000; what was done since is done again.\nGo on when" in said


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("train.epochs=2", "train.epochs is 2, and run r1 was in epoch 3 already"),
        ("train.max_steps=8", "train.max_steps is 8, and run r1 was at step 8 already"),
    ],
)
def test_a_change_that_ends_a_run_at_once_is_told_as_such(
    stage: Stage, capsys: pytest.CaptureFixture[str], setting: str, told: str
) -> None:
    stage.script(["event", FAILED], ["status", FAILED_STATUS | {"epoch": 3, "epochs": 3, "step": 8}])
    assert stage.edl("run", "job.yaml") == 1
    assert stage.edl("run", "job.yaml", "--resume") == 1
    assert "already" not in capsys.readouterr().out
    assert stage.edl("run", "job.yaml", "--resume", "--set", setting) == 1
    assert f"  warning: {told}: it ends at once, or as soon as it is there again\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("train.minibatch_size=5", "train.minibatch_size was 4, is 5"),
        ("train.seed=9", "train.seed was 0, is 9"),
        ("data.reader.format=csv", "data.reader.format was null, is csv"),
        ("model.params.width=3", "model.params.width was null, is 3"),
        ("data.training=test.csv", "data.training was"),
    ],
)
def test_what_the_ledger_is_built_on_may_not_change(
    stage: Stage, capsys: pytest.CaptureFixture[str], field: str, told: str
) -> None:
    fail(stage)
    assert stage.edl("run", "job.yaml", "--resume", "--set", field) == 2
    assert told in capsys.readouterr().err
    assert stage.status()["phase"] == "Failed"


def test_fixed_fields_exist(stage: Stage) -> None:
    names = dump(load("job.yaml"))
    for field in resumption.FIXED:
        section, name = field.split(".")
        inner = names[section]
        assert isinstance(inner, dict)
        assert name in inner


def test_the_newest_run_that_trains_goes_on(tmp_path: Path) -> None:
    training, predicting = create(tmp_path), create(tmp_path)
    write_json(predicting.path / resumption.PREDICT_FILE, {})
    assert resumption.find(tmp_path, None) == training
    with pytest.raises(BadInputError, match="predicts"):
        resumption.find(tmp_path, "r2")


def test_a_change_of_the_storage_is_no_change_of_the_work(stage: Stage) -> None:
    run = create(stage.folder / "runs")
    spec = load("job.yaml")
    write_json(run.spec, dump(spec))
    assert resumption.differences(run, spec) == []
    more = replace(spec, workers=replace(spec.workers, max=9))
    assert resumption.differences(run, more) == [("workers.max", 2, 9)]


def test_a_run_that_failed_before_its_first_record_is_started_again(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.script(["event", FAILED | {"summary": SUMMARY | {"records_done": 0}}])
    assert stage.edl("run", "job.yaml") == 1
    assert capsys.readouterr().out.splitlines()[-1] == "Start again with: edl run job.yaml"
    assert stage.edl("run", "job.yaml", "--resume") == 1
    assert "Go on when the cause is gone with" in capsys.readouterr().out
