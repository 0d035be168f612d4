"""edl predict: what it predicts with, and what its master is told."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from cli.cli_harness import DONE, SUMMARY, LocalRunHarness
from support.repetition import repetitions
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.api.status import Status
from edl.jobfile.loader import load_job_file
from edl.jobfile.section_type import to_json
from edl.storage.checkpoint_manifest import MANIFEST_NAME, CheckpointManifest, ShardInfo, cut_directory
from edl.storage.durable_files import write_json
from edl.storage.run_directory import RunDirectory, create_run
from edl.storage.weights_lookup import TrainedWeights, find_weights

FAILED = {"event": "job_ended", "phase": "Failed", "reason": "a worker crashed again and again", "summary": SUMMARY}


def checkpoint(run: RunDirectory, cut: int, *, step: int = 3000, committed: bool = True) -> Path:
    """An empty cut of a run."""
    directory = cut_directory(run.checkpoints, cut)
    directory.mkdir()
    if committed:
        ledger = {"done_steps": step}
        write_json(directory / MANIFEST_NAME, CheckpointManifest(cut, 7, "2026-01-01T00:00:00Z", (), ledger).to_json())
    return directory


def end_run(run: RunDirectory, phase: str, step: int = 3000) -> None:
    """A run whose status says how far it came."""
    write_json(run.status, to_json(Status("digits", run.run_id, str(run.path), phase, 0.0, step=step)))


def export(run: RunDirectory) -> Path:
    """An export that looks complete."""
    run.export.mkdir()
    (run.export / "model.keras").touch()
    return run.export / "model.keras"


def keras_file(path: Path) -> Path:
    """A file that Keras might have written, as far as can be seen without Keras."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", "{}")
    return path


def test_the_newest_committed_checkpoint_of_the_newest_run_that_has_one(tmp_path: Path) -> None:
    old, new, empty = create_run(tmp_path), create_run(tmp_path), create_run(tmp_path)
    export(new)
    checkpoint(old, 9)
    wanted = checkpoint(new, 2)
    checkpoint(new, 3, committed=False)
    assert find_weights(tmp_path, None).path == wanted
    assert find_weights(tmp_path, "r1").path.name == "cut-00000009"
    assert find_weights(tmp_path, f"{tmp_path.name}/r1").path.name == "cut-00000009"
    with pytest.raises(BadInputError, match="run r3 has neither"):
        find_weights(tmp_path, empty.run_id)


def test_a_run_without_checkpoints_predicts_with_its_export(tmp_path: Path) -> None:
    wanted = export(create_run(tmp_path))
    assert find_weights(tmp_path, None).path == wanted


def test_a_run_that_trained_nothing_is_passed_over_unless_it_is_named(tmp_path: Path) -> None:
    done, failed, interrupted = create_run(tmp_path), create_run(tmp_path), create_run(tmp_path)
    wanted = checkpoint(done, 4)
    untrained = [checkpoint(run, 1, step=0) for run in (failed, interrupted)]
    assert find_weights(tmp_path, None).path == wanted
    assert not any("warning" in line for line in find_weights(tmp_path, None).origin_lines())
    assert find_weights(tmp_path, "r2").path == untrained[0]
    (warning,) = [line for line in find_weights(tmp_path, "r2").origin_lines() if "warning" in line]
    assert not missing_keys(warning, "checkpoint", "step 0")


def test_runs_that_trained_nothing_are_no_default(tmp_path: Path) -> None:
    checkpoint(create_run(tmp_path), 1, step=0)
    with pytest.raises(BadInputError, match=r"checkpoint after step 0.* export") as caught:
        find_weights(tmp_path, None)
    assert not missing_keys(caught.value.hint, "edl run", "--from")


def test_an_export_is_rather_taken_than_a_checkpoint_of_its_run_that_is_untrained(tmp_path: Path) -> None:
    run = create_run(tmp_path)
    checkpoint(run, 1, step=0)
    wanted = export(run)
    assert find_weights(tmp_path, "r1").path == wanted


@pytest.mark.parametrize(
    ("phase", "said"),
    [("Done", "done"), ("Failed", "failed"), ("Interrupted", "interrupted"), ("Training", "interrupted")],
)
def test_which_run_how_it_ended_and_the_step_are_told(tmp_path: Path, phase: str, said: str) -> None:
    by_checkpoint, by_export = create_run(tmp_path), create_run(tmp_path)
    for run in (by_checkpoint, by_export):
        end_run(run, phase, step=4000)
    checkpoint(by_checkpoint, 4)
    export(by_export)
    (line,) = find_weights(tmp_path, "r1").origin_lines()
    assert not missing_keys(line, "run r1", said, "checkpoint 4", "step 3,000")
    (line,) = find_weights(tmp_path, "r2").origin_lines()
    assert not missing_keys(line, "run r2", said, "export", "step 4,000")


def test_a_status_that_is_missing_or_cannot_be_read_hinders_nobody(tmp_path: Path) -> None:
    run = create_run(tmp_path)
    export(run)
    (missing,) = find_weights(tmp_path, "r1").origin_lines()
    run.status.write_text("{")
    (unreadable,) = find_weights(tmp_path, "r1").origin_lines()
    assert not missing_keys(missing, "run r1", "status", "export")
    assert not missing_keys(unreadable, "run r1", "status", "export")
    assert missing != unreadable


def damaged(run: RunDirectory, cut: int, *, step: int = 3000) -> Path:
    """A cut whose only shard is gone."""
    directory = checkpoint(run, cut, step=step)
    lost = (ShardInfo("ps-0.safetensors", 8, 0),)
    manifest = CheckpointManifest(cut, 7, "2026-01-01T00:00:00Z", lost, {"done_steps": step})
    write_json(directory / MANIFEST_NAME, manifest.to_json())
    return directory


def test_for_a_damaged_checkpoint_the_newest_intact_one_stands_in(tmp_path: Path) -> None:
    run = create_run(tmp_path)
    checkpoint(run, 3)
    wanted = checkpoint(run, 4)
    damaged(run, 5)
    checkpoint(run, 6, committed=False)
    for source in (None, "r1"):
        weights = find_weights(tmp_path, source)
        assert weights.path == wanted
        (left_out,) = weights.skipped_lines()
        assert not missing_keys(left_out, "checkpoint 5", "run r1", "ps-0.safetensors", "missing")


@pytest.mark.parametrize("source", [None, "r2"])
def test_a_run_whose_trained_checkpoints_are_all_damaged_is_refused(tmp_path: Path, source: str | None) -> None:
    """Neither values that nothing was trained of stand in for it, nor those of a run that nobody asked for."""
    older, run = create_run(tmp_path), create_run(tmp_path)
    checkpoint(older, 9)
    checkpoint(run, 1, step=0)
    damaged(run, 2)
    directory = damaged(run, 3)
    with pytest.raises(BadInputError, match=r"checkpoint.*run r2") as caught:
        find_weights(tmp_path, source)
    _, newest, older_one = caught.value.message.splitlines()
    assert not missing_keys(newest, "checkpoint 3", "ps-0.safetensors", "missing")
    assert not missing_keys(older_one, "checkpoint 2")
    assert caught.value.where == str(directory.parent)
    assert not missing_keys(caught.value.hint, "--from")
    wanted = export(run)
    weights = find_weights(tmp_path, source)
    assert weights.path == wanted
    assert len(weights.skipped_lines()) == 2


def test_a_damaged_checkpoint_of_step_0_is_no_loss(tmp_path: Path) -> None:
    done, failed = create_run(tmp_path), create_run(tmp_path)
    wanted = checkpoint(done, 4)
    damaged(failed, 1, step=0)
    assert find_weights(tmp_path, None) == TrainedWeights(
        wanted, done, checkpoint=find_weights(tmp_path, "r1").checkpoint
    )
    with pytest.raises(BadInputError, match="run r2 has neither"):
        find_weights(tmp_path, "r2")


def test_which_checkpoints_are_left_out_is_told_whoever_reads(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    assert local_run.edl("run", "job.yaml") == 0
    wanted = checkpoint(RunDirectory(local_run.run_dir()), 2, step=9)
    damaged(RunDirectory(local_run.run_dir()), 3, step=12)
    for number, more in enumerate(([], ["--json"]), 2):
        capsys.readouterr()
        assert local_run.edl("predict", "job.yaml", "--output", "out", *more) == 0
        assert not missing_keys(capsys.readouterr().err, "checkpoint 3", "run r1", "ps-0.safetensors")
        assert json.loads((local_run.run_dir(f"r{number}") / "predict.json").read_text())["from"] == str(wanted)


def test_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInputError, match="no such file"):
        find_weights(tmp_path, "model.keras")
    keras_file(tmp_path / "model.keras")
    assert find_weights(tmp_path, "model.keras") == TrainedWeights(tmp_path / "model.keras")


def test_a_file_that_is_no_model_is_found_before_a_process_starts(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    intact = keras_file(local_run.folder / "model.keras").read_bytes()
    for content in (b"", b"junk", intact[:-30]):
        (local_run.folder / "junk.keras").write_bytes(content)
        assert local_run.edl("predict", "job.yaml", "--from", "junk.keras", "--output", "out") == 2
        assert not missing_keys(capsys.readouterr().err, "junk.keras", ".keras file")
        assert not local_run.run_dir().exists()


def test_the_master_is_told_weights_and_output(local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]) -> None:
    weights = keras_file(local_run.folder / "model.keras")
    assert local_run.edl("predict", "job.yaml", "--from", "model.keras", "--output", "out", "--workers", "3") == 0
    written = json.loads((local_run.run_dir() / "predict.json").read_text())
    assert written == {"from": str(weights), "output": str(local_run.folder / "out")}
    out = capsys.readouterr().out
    assert not missing_keys(
        out, "5 records", f"{local_run.folder}/test.csv", str(weights), f"{local_run.folder}/out", "3 workers"
    )
    assert "edl predict" not in out


def test_the_plan_says_which_run_trained_the_weights(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    assert local_run.edl("run", "job.yaml") == 0
    wanted = checkpoint(RunDirectory(local_run.run_dir()), 2, step=9)
    local_run.script(["event", FAILED], ["status", {"job": "digits", "phase": "Failed"}])
    assert local_run.edl("run", "job.yaml") == 1
    checkpoint(RunDirectory(local_run.run_dir("r2")), 1, step=0)
    local_run.script(*DONE)
    capsys.readouterr()
    assert local_run.edl("predict", "job.yaml", "--output", "out") == 0
    assert not missing_keys(capsys.readouterr().out, str(wanted), "run r1", "checkpoint 2", "step 9")
    assert local_run.edl("predict", "job.yaml", "--output", "out", "--from", "r2") == 0
    out = capsys.readouterr().out
    assert not missing_keys(out, "run r2", "failed", "checkpoint 1", "step 0", "warning")


@pytest.mark.parametrize(
    "strategy", ["{mode: sync, grads_to_wait: 2}", *repetitions(("{name: Local}", "{name: AllReduce}"))]
)
def test_what_only_training_demands_does_not_hinder(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str], strategy: str
) -> None:
    """The roles check the run's spec once more, all of it: what it says must hold for this command's workers."""
    keras_file(local_run.folder / "model.keras")
    with (local_run.folder / "job.yaml").open("a") as file:
        file.write(f"workers: {{max: 2}}\nps: {{max_rows: 9}}\nstrategy: {strategy}\n")
    for number, fewer in enumerate((["--workers", "1"], ["--set", "workers.max=1"]), 1):
        assert local_run.edl("predict", "job.yaml", "--from", "model.keras", "--output", "out", *fewer) == 0
        assert "  1 worker\n" in capsys.readouterr().out
        assert load_job_file(local_run.run_dir(f"r{number}") / "spec.json").workers.max == 1


def test_where_predictions_are_is_told_when_there_are_some(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    keras_file(local_run.folder / "model.keras")
    command = ("predict", "job.yaml", "--from", "model.keras", "--output", "out")
    local_run.script(["event", FAILED])
    assert local_run.edl(*command) == 1
    assert "  output  " not in capsys.readouterr().out
    (local_run.folder / "out").mkdir()
    local_run.script(["text", [str(local_run.folder / "out" / "test.csv-0-5.npz"), ""]], ["event", FAILED])
    assert local_run.edl(*command) == 1
    assert f"  output    {local_run.folder}/out\n" in capsys.readouterr().out


def test_a_folder_beside_a_processor_stays_empty_and_that_is_told_in_json_too(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("predict", "job.yaml", "--from", "model.keras", "--output", "out", "--json")
    keras_file(local_run.folder / "model.keras")
    assert local_run.edl(*command) == 0
    assert "--output" not in capsys.readouterr().err
    with (local_run.folder / "model_zoo" / "small.py").open("a") as module:
        module.write("class PredictionOutputsProcessor: ...\n")
    assert local_run.edl(*command) == 0
    assert not missing_keys(capsys.readouterr().err, "--output out", "PredictionOutputsProcessor", "writes no files")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], ("no run",)),
        (["--from", "r4"], ("no run",)),
        (["--set", "data.prediction=null"], ("data.prediction",)),
        (["--workers", "500000"], ("--workers 500000", "workers.max", "found 500000")),
    ],
)
def test_bad_input(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str], args: list[str], said: tuple[str, ...]
) -> None:
    assert local_run.edl("predict", "job.yaml", "--output", "out", *args) == 2
    assert not missing_keys(capsys.readouterr().err, *said)
    assert not local_run.run_dir().exists()


@pytest.mark.parametrize("source", [(), ("--from", "r1"), ("--from", "nothing.keras")])
def test_what_is_refused_in_a_folder_without_runs_leaves_nothing_there(
    local_run: LocalRunHarness, source: tuple[str, ...]
) -> None:
    assert local_run.edl("predict", "job.yaml", "--output", "out", *source) == 2
    assert not (local_run.folder / ".edl").exists()


def test_predictions_of_another_run_are_not_mixed_in(
    local_run: LocalRunHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    (local_run.folder / "out").mkdir()
    (local_run.folder / "out" / "part.npz").touch()
    assert local_run.edl("predict", "job.yaml", "--output", "out") == 2
    assert "already contains predictions" in capsys.readouterr().err
