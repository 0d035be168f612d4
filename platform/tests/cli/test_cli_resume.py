"""edl run --resume: which run goes on, with which changes, and what its next master finds."""

from __future__ import annotations

import json
import shlex
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.cli_harness import DONE, SUMMARY, LocalRunHarness
from support.repetition import repetitions
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.api.journal_entries import JournalEntry
from edl.core.cuts import SavedCheckpoint
from edl.core.job import JobStateMachine
from edl.core.journal_application import apply_entry
from edl.core.state import JobSettings
from edl.jobfile.loader import dump_job_spec, load_job_file
from edl.ops import local_run_plan, local_run_resumption
from edl.storage import run_resumption
from edl.storage.checkpoint_manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    ShardInfo,
    commit_checkpoint,
    cut_directory,
)
from edl.storage.checkpoint_shards import write_shard
from edl.storage.durable_files import write_json
from edl.storage.journal import Journal
from edl.storage.journal_reader import read_journal
from edl.storage.run_directory import RunDirectory, create_run
from edl.storage.weights_lookup import WEIGHTS_FILE_BY_TASK

FAILED = {"event": "job_ended", "phase": "Failed", "reason": "the disk is full", "summary": SUMMARY}
FAILED_STATUS = {"job": "digits", "phase": "Failed", "records_total": 30, "records_done": 12}


WHOLE = {"done_steps": 5000, "done_records": 10, "dataset": {"training": [["a", 30]], "validation": []}}
"""The ledger of a checkpoint with which a run can begin without its journal."""


def fail(local_run: LocalRunHarness) -> None:
    """Have a run r1 that failed."""
    local_run.script(["event", FAILED], ["status", FAILED_STATUS], ["text", ["failure.txt", "old"]])
    assert local_run.edl("run", "job.yaml") == 1
    local_run.script(*DONE)


@pytest.mark.parametrize(
    "resume", [["--resume"], ["--resume", "latest"], *repetitions((["--resume", "r1"], ["--resume=r1"]))]
)
def test_a_failed_run_goes_on_in_its_directory(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str], resume: list[str]
) -> None:
    fail(local_run)
    capsys.readouterr()
    assert local_run.edl("run", *resume, "job.yaml", "--ps", "2", "--set", "train.epochs=4") == 0
    captured = capsys.readouterr()
    assert not missing_keys(
        captured.out, "r1", str(local_run.run_dir()), "train.epochs was 3, is 4", "ps.count was 1, is 2"
    )
    assert "the disk is full" not in captured.out + captured.err
    journal, replay = Journal.open(RunDirectory(local_run.run_dir()).journal, holder="test")
    journal.close()
    assert [entry["kind"] for entry in replay.entries] == ["resumed"]
    assert json.loads((local_run.run_dir() / "spec.json").read_text())["ps"]["count"] == 2


def test_a_run_goes_on_with_the_number_of_workers_of_its_job_file(local_run: LocalRunHarness) -> None:
    fail(local_run)
    requested = RunDirectory(local_run.run_dir()).desired_state
    write_json(requested, {"max": 7})
    assert local_run.edl("run", "job.yaml", "--resume") == 0
    assert not requested.exists()


def test_a_run_whose_processes_were_all_killed_needs_no_word_in_the_journal(local_run: LocalRunHarness) -> None:
    fail(local_run)
    status = local_run.run_dir() / "status.json"
    write_json(status, local_run.status() | {"phase": "Training"})
    local_run_resumption.reopen_run(RunDirectory(local_run.run_dir()))
    assert not list((local_run.run_dir() / "journal").iterdir())
    assert not (local_run.run_dir() / "failure.txt").exists()


def test_a_run_that_is_done_does_not_go_on(local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]) -> None:
    assert local_run.edl("run", "job.yaml") == 0
    assert local_run.edl("run", "job.yaml", "--resume", "--set", "train.epochs=9") == 2
    assert not missing_keys(capsys.readouterr().err, "run r1", "done", "edl run", "--resume")


def test_runs_of_another_folder_are_not_found_and_the_hint_says_where_they_are(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(local_run)
    elsewhere = local_run.folder / "elsewhere"
    elsewhere.mkdir()
    local_run.monkeypatch.chdir(elsewhere)
    assert local_run.edl("run", "../job.yaml", "--resume") == 2
    assert not missing_keys(capsys.readouterr().err, "folder")


def test_an_unknown_run_is_refused_with_those_there_are(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(local_run)
    assert local_run.edl("run", "job.yaml", "--resume", "r7") == 2
    assert not missing_keys(capsys.readouterr().err, "r7", "r1")


def test_the_command_that_goes_on_has_the_options_of_this_one(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    local_run.script(["event", FAILED], ["status", FAILED_STATUS])
    options = ["--set", "train.epochs=9", "--set", "model.params.note=good day", "--workers", "1", "--ps", "2"]
    assert local_run.edl("run", "job.yaml", *options) == 1
    again = capsys.readouterr().out.splitlines()[-1].partition(": edl ")[2]
    assert shlex.split(again) == ["run", "job.yaml", *options, "--resume", "r1"]
    local_run.script(*DONE)
    assert local_run.edl(*shlex.split(again)) == 0
    out = capsys.readouterr().out
    assert "changed" not in out
    offered = out.splitlines()[-1].partition(": edl ")[2]
    assert shlex.split(offered) == ["predict", "job.yaml", *options[:-2], "--from", "r1", "--output", "predictions"]


def test_the_command_that_goes_on_can_be_typed_where_no_environment_is_active(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    local_run.monkeypatch.setenv("PATH", "/nowhere")
    local_run.monkeypatch.setattr("sys.argv", [".venv/bin/edl", "run", "job.yaml"])
    fail(local_run)
    assert ": .venv/bin/edl run job.yaml --resume r1\n" in capsys.readouterr().out


def saved(cut: int, kind: str = "saved") -> dict[str, Any]:
    """What a master enters of a checkpoint."""
    return {"kind": kind, "cut": cut, "step": 1000 * cut, "version": 0, "ledger": {"done_steps": 1000 * cut}}


def keep(run: RunDirectory, *entries: dict[str, Any]) -> None:
    """What a master of the run has entered, and the checkpoints that are complete."""
    journal, _ = Journal.open(run.journal, holder="test")
    for entry in entries:
        journal.append(entry)
        if "ledger" not in entry:
            continue
        manifest = CheckpointManifest(entry["cut"], 0, "", (), entry["ledger"])
        folder = cut_directory(run.checkpoints, entry["cut"])
        folder.mkdir(exist_ok=True)
        write_json(folder / MANIFEST_NAME, manifest.to_json())
    journal.close()


def test_from_which_checkpoint_a_run_goes_on_is_told(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(local_run)
    assert not missing_keys(capsys.readouterr().out, "no checkpoint", "edl run job.yaml --resume r1")
    keep(RunDirectory(local_run.run_dir()), saved(1), saved(2), {"kind": "cut_announced", "cut": 3})
    cut_directory(local_run.run_dir() / "checkpoints", 3).mkdir()  # the interrupt came before it was whole
    local_run.script(["event", FAILED], ["status", FAILED_STATUS])
    assert local_run.edl("run", "job.yaml", "--resume") == 1
    out = capsys.readouterr().out
    assert out.count("checkpoint 2 at step 2,000") == 2, "when it begins, and when it has failed"


def test_a_checkpoint_that_another_stands_in_for_is_not_named(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its manifest is there and its files have their sizes; that a byte is another one, the journal knows."""
    fail(local_run)
    keep(RunDirectory(local_run.run_dir()), saved(3), saved(4), saved(3, "checkpoint_back"))
    local_run.script(["event", FAILED], ["status", FAILED_STATUS])
    assert local_run.edl("run", "job.yaml", "--resume") == 1
    out = capsys.readouterr().out
    assert out.count("checkpoint 3 at step 3,000") == 2, "when it begins, and when it has failed"
    assert "checkpoint 4" not in out


def test_a_journal_that_was_compacted_says_it_too(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    state = JobStateMachine(JobSettings(minibatch=4, task_records=8))
    for entry in {"kind": "cut_announced", "cut": 5, "step": 5000}, saved(5):
        apply_entry(state, JournalEntry.from_json(entry))
    folder = cut_directory(run.checkpoints, 5)
    folder.mkdir(parents=True)
    write_json(folder / MANIFEST_NAME, CheckpointManifest(5, 0, "", (), {}).to_json())
    journal, _ = Journal.open(run.journal, holder="test")
    journal.compact(state.to_snapshot())
    journal.close()
    assert local_run_resumption.resume_checkpoint(run) == SavedCheckpoint(5, 5000, 0, {"done_steps": 5000})


def test_strategy_local_has_no_journal_and_goes_on_from_the_newest_that_is_intact(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert local_run_resumption.resume_checkpoint(run) is None
    for cut in 1, 2:
        folder = cut_directory(run.checkpoints, cut)
        folder.mkdir(parents=True)
        (folder / "ps-0.safetensors").write_bytes(b"values")
        shard = ShardInfo("ps-0.safetensors", 6, zlib.crc32(b"values"))
        write_json(folder / MANIFEST_NAME, CheckpointManifest(cut, 9, "", (shard,), {"done_steps": cut}).to_json())
    assert local_run_resumption.resume_checkpoint(run) == SavedCheckpoint(2, 2, 9, {"done_steps": 2})
    (folder / "ps-0.safetensors").write_bytes(b"Values")
    assert local_run_resumption.resume_checkpoint(run) == SavedCheckpoint(1, 1, 9, {"done_steps": 1})


def test_a_journal_that_cannot_be_read_hides_no_way_to_go_on(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = ["text", ["journal/000001-000001.edlj", "not a journal"]]
    local_run.script(["event", FAILED], ["status", FAILED_STATUS], damaged)
    assert local_run.edl("run", "job.yaml") == 1
    captured = capsys.readouterr()
    assert "the disk is full" in captured.out + captured.err
    assert captured.out.splitlines()[-1].endswith(": edl run job.yaml --resume r1")
    assert "checkpoint" not in captured.out


def test_a_journal_that_lost_its_end_is_told_with_the_command_that_loses_least(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(local_run)
    run = RunDirectory(local_run.run_dir())
    keep(run, saved(3))
    folder = cut_directory(run.checkpoints, 5)
    folder.mkdir()
    write_json(folder / MANIFEST_NAME, CheckpointManifest(5, 0, "", (), WHOLE).to_json())
    capsys.readouterr()

    assert local_run.edl("run", "job.yaml", "--ps", "2", "--resume") == 1
    err = capsys.readouterr().err
    assert not missing_keys(err, "journal", "3", "checkpoint 5", "step 5,000", "2 records")
    assert err.splitlines()[-1] == "  edl run job.yaml --ps 2 --resume r1 --from-checkpoint"
    assert [entry["kind"] for entry in read_journal(run.journal).entries] == ["saved"], "nothing was changed"

    local_run.script(["event", FAILED], ["status", FAILED_STATUS])
    assert local_run.edl("run", "job.yaml", "--ps", "2", "--resume", "--from-checkpoint") == 1
    assert not missing_keys(capsys.readouterr().out, "checkpoint 5", "step 5,000")


def test_a_failed_run_whose_journal_lost_its_end_is_told_how_to_go_on(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(local_run)
    newer = {**saved(4, "cut_announced"), "ledger": WHOLE}
    keep(RunDirectory(local_run.run_dir()), saved(3), newer)
    pruned = ["text", ["checkpoints/cut-00000003/manifest.json", ""]]
    local_run.script(["event", FAILED], ["status", FAILED_STATUS], pruned)
    capsys.readouterr()
    assert local_run.edl("run", "job.yaml", "--resume") == 1
    out = capsys.readouterr().out
    assert not missing_keys(out, "journal", "checkpoint 3", "checkpoint 4 at step 5,000")
    assert out.endswith(": edl run job.yaml --resume r1 --from-checkpoint\n")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("train.epochs=2", ("train.epochs", "2", "epoch 3")),
        ("train.max_steps=8", ("train.max_steps", "8", "step 8")),
    ],
)
def test_a_change_that_ends_a_run_at_once_is_told_as_such(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str], setting: str, told: tuple[str, ...]
) -> None:
    local_run.script(["event", FAILED], ["status", FAILED_STATUS | {"epoch": 3, "epochs": 3, "step": 8}])
    assert local_run.edl("run", "job.yaml") == 1
    assert local_run.edl("run", "job.yaml", "--resume") == 1
    assert "warning: " not in capsys.readouterr().out
    assert local_run.edl("run", "job.yaml", "--resume", "--set", setting) == 1
    (warning,) = [line for line in capsys.readouterr().out.splitlines() if "warning: " in line]
    assert not missing_keys(warning, "run r1", *told)


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("train.minibatch_size=5", ("train.minibatch_size", "4", "5")),
        ("train.seed=9", ("train.seed", "0", "9")),
        ("data.reader.format=csv", ("data.reader.format", "null", "csv")),
        ("model.params.width=3", ("model.params.width", "null", "3")),
        ("data.training=test.csv", ("data.training", "train.csv", "test.csv")),
    ],
)
def test_what_the_ledger_is_built_on_may_not_change(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str], field: str, told: tuple[str, ...]
) -> None:
    fail(local_run)
    assert local_run.edl("run", "job.yaml", "--resume", "--set", field) == 2
    assert not missing_keys(capsys.readouterr().err, *told)
    assert local_run.status()["phase"] == "Failed"


def test_fixed_fields_exist(local_run: LocalRunHarness) -> None:
    names = dump_job_spec(load_job_file("job.yaml"))
    for field in run_resumption.FIXED_FIELDS:
        section, name = field.split(".")
        inner = names[section]
        assert isinstance(inner, dict)
        assert name in inner


def test_the_newest_run_that_trains_goes_on(tmp_path: Path) -> None:
    training, predicting = create_run(tmp_path), create_run(tmp_path)
    write_json(predicting.path / WEIGHTS_FILE_BY_TASK["predict"], {})
    assert local_run_resumption.find_resumable_run(tmp_path, None) == training
    with pytest.raises(BadInputError, match="prediction"):
        local_run_resumption.find_resumable_run(tmp_path, "r2")


def test_a_change_of_the_storage_is_no_change_of_the_work(local_run: LocalRunHarness) -> None:
    run = create_run(local_run.folder / "runs")
    spec = load_job_file("job.yaml")
    write_json(run.spec, dump_job_spec(spec))
    assert run_resumption.check_resume_changes(run, spec) == []
    more = replace(spec, workers=replace(spec.workers, max=9))
    assert run_resumption.check_resume_changes(run, more) == [("workers.max", 2, 9)]


UNBEGUN = ["event", FAILED | {"summary": SUMMARY | {"records_done": 0}}]


def test_a_run_that_failed_before_its_first_record_is_started_again(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    local_run.script(UNBEGUN)
    assert local_run.edl("run", "job.yaml") == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith(": edl run job.yaml")
    assert local_run.edl("run", "job.yaml", "--resume") == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith(": edl run job.yaml --resume r1")


def test_a_table_that_was_full_from_the_start_is_no_reason_to_begin_anew(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason says to go on with --resume, and there is a checkpoint: nothing that may not change has to."""
    local_run.monkeypatch.setattr(local_run_plan, "resume_checkpoint", lambda run: SavedCheckpoint(0, 0, 0, {}))
    local_run.script(UNBEGUN, ["text", ["failure.json", json.dumps({"kind": "refused"})]])
    assert local_run.edl("run", "job.yaml", "--set", "ps.max_rows=5") == 1
    from_where, change, command = capsys.readouterr().out.splitlines()[-3:]
    assert not missing_keys(from_where, "checkpoint 0", "step 0")
    assert not missing_keys(change, "--set")
    assert command.endswith(": edl run job.yaml --set ps.max_rows=5 --resume r1")


def test_a_fault_of_the_model_is_a_reason_to_begin_anew(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    """What has to change then, a run that goes on may not."""
    local_run.monkeypatch.setattr(local_run_plan, "resume_checkpoint", lambda run: SavedCheckpoint(0, 0, 0, {}))
    local_run.script(UNBEGUN, ["text", ["failure.json", json.dumps({"kind": "input"})]])
    assert local_run.edl("run", "job.yaml", "--set", "model.params.vocab=10") == 2
    change, command = capsys.readouterr().out.splitlines()[-2:]
    assert not missing_keys(change, "--set")
    assert command.endswith(": edl run job.yaml --set model.params.vocab=10")


ALL_REDUCE = ("--set", "strategy.name=AllReduce")


def keep_shards(run: RunDirectory, *cuts: int) -> None:
    """Checkpoints with two files each, of which the newest is the one that the journal names."""
    journal, _ = Journal.open(run.journal, holder="test")
    for cut in cuts:
        folder = cut_directory(run.checkpoints, cut)
        shards = [write_shard(folder, index, {f"dense/{index}": np.arange(4.0)}) for index in range(2)]
        commit_checkpoint(folder, CheckpointManifest(cut, 0, "now", tuple(shards), {"done_steps": 5}))
        journal.append(saved(cut))
    journal.close()


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


DAMAGES: list[Any] = [
    pytest.param("ps-1.safetensors", Path.unlink, "is missing", id="missing"),
    pytest.param("ps-0.safetensors", lambda path: path.write_bytes(b"short"), "5 bytes", id="truncated"),
    pytest.param("ps-1.safetensors", flip_byte, "checksum", id="flipped"),
    pytest.param(MANIFEST_NAME, Path.unlink, "manifest", id="no manifest"),
    pytest.param(MANIFEST_NAME, flip_byte, "manifest is damaged", id="damaged manifest"),
]


@pytest.mark.parametrize(("file", "damage", "told"), DAMAGES)
def test_a_run_without_an_intact_checkpoint_is_refused_with_the_file_and_a_remedy(
    local_run: LocalRunHarness,
    capsys: pytest.CaptureFixture[str],
    file: str,
    damage: Callable[[Path], Any],
    told: str,
) -> None:
    local_run.script(["event", FAILED], ["status", FAILED_STATUS])
    assert local_run.edl("run", "job.yaml", *ALL_REDUCE) == 1
    run = RunDirectory(local_run.run_dir())
    keep_shards(run, 2, 3)
    for cut in (2, 3):
        damage(cut_directory(run.checkpoints, cut) / file)
    capsys.readouterr()
    assert local_run.edl("run", "job.yaml", *ALL_REDUCE, "--resume") == 2
    error = capsys.readouterr().err
    assert not missing_keys(error, str(run.checkpoints), "checkpoint 3", "checkpoint 2", told, "backup", "new run")
    assert file == MANIFEST_NAME or file in error
    assert local_run.status()["phase"] == "Failed", "nothing was changed"


@pytest.mark.parametrize(("file", "damage", "told"), DAMAGES)
def test_a_run_with_an_older_intact_checkpoint_goes_on(
    local_run: LocalRunHarness, file: str, damage: Callable[[Path], Any], told: str
) -> None:
    local_run.script(["event", FAILED], ["status", FAILED_STATUS])
    assert local_run.edl("run", "job.yaml", *ALL_REDUCE) == 1
    run = RunDirectory(local_run.run_dir())
    keep_shards(run, 2, 3)
    damage(cut_directory(run.checkpoints, 3) / file)
    local_run.script(*DONE)
    assert local_run.edl("run", "job.yaml", *ALL_REDUCE, "--resume") == 0
