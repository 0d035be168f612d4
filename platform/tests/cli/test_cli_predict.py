"""edl predict: what it predicts with, and what its master is told."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from cli.conftest import Stage

from edl.cli.predict import weights_of
from edl.core.errors import BadInputError
from edl.store.manifest import MANIFEST, Manifest, cut_directory
from edl.store.rundir import RunDir, create, write_json


def checkpoint(run: RunDir, cut: int, *, committed: bool = True) -> Path:
    """An empty cut of a run."""
    directory = cut_directory(run.checkpoints, cut)
    directory.mkdir()
    if committed:
        write_json(directory / MANIFEST, Manifest(cut, 3, "2026-01-01T00:00:00Z", (), {}).to_json())
    return directory


def export(run: RunDir) -> Path:
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
    old, new, empty = create(tmp_path), create(tmp_path), create(tmp_path)
    export(new)
    checkpoint(old, 9)
    wanted = checkpoint(new, 2)
    checkpoint(new, 3, committed=False)
    assert weights_of(tmp_path, None) == wanted
    assert weights_of(tmp_path, "r1").name == "cut-00000009"
    with pytest.raises(BadInputError, match="run r3 left neither"):
        weights_of(tmp_path, empty.run_id)


def test_a_run_without_checkpoints_predicts_with_its_export(tmp_path: Path) -> None:
    wanted = export(create(tmp_path))
    assert weights_of(tmp_path, None) == wanted


def test_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInputError, match="no such file"):
        weights_of(tmp_path, "model.keras")
    keras_file(tmp_path / "model.keras")
    assert weights_of(tmp_path, "model.keras") == tmp_path / "model.keras"


def test_a_file_that_is_no_model_is_found_before_a_process_starts(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = keras_file(stage.folder / "model.keras").read_bytes()
    for content in (b"", b"junk", whole[:-30]):
        (stage.folder / "junk.keras").write_bytes(content)
        assert stage.edl("predict", "job.yaml", "--from", "junk.keras", "--output", "out") == 2
        assert "junk.keras: is not a .keras file" in capsys.readouterr().err
        assert not stage.run_dir().exists()


def test_the_master_is_told_weights_and_output(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    weights = keras_file(stage.folder / "model.keras")
    assert stage.edl("predict", "job.yaml", "--from", "model.keras", "--output", "out", "--workers", "3") == 0
    told = json.loads((stage.run_dir() / "predict.json").read_text())
    assert told == {"from": str(weights), "output": str(stage.folder / "out")}
    said = capsys.readouterr().out
    assert f"  predicts 5 records in {stage.folder}/test.csv with {weights}\n  writes to {stage.folder}/out\n" in said
    assert "  3 workers\n" in said
    assert "Predict with" not in said


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "the runs of this job"),
        (["--from", "r4"], "this job has no run"),
        (["--set", "data.prediction=null"], "data.prediction"),
    ],
)
def test_bad_input(stage: Stage, capsys: pytest.CaptureFixture[str], args: list[str], said: str) -> None:
    assert stage.edl("predict", "job.yaml", "--output", "out", *args) == 2
    assert said in capsys.readouterr().err
    assert not stage.run_dir().exists()


def test_predictions_of_another_run_are_not_mixed_in(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (stage.folder / "out").mkdir()
    (stage.folder / "out" / "part.npz").touch()
    assert stage.edl("predict", "job.yaml", "--output", "out") == 2
    assert "holds predictions already" in capsys.readouterr().err
