"""The weights of a run that evaluates or predicts: which are found, and that they are chosen once."""

from __future__ import annotations

import errno
import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec, ModelSpec
from edl.storage.checkpoint_manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    cut_directory,
    load_manifest,
    prune_checkpoints,
)
from edl.storage.durable_files import write_json
from edl.storage.initial_weights import find_initial_weights
from edl.storage.run_directory import RunDirectory, create_run, make_run_directory
from edl.storage.run_weights import (
    RunWeights,
    choose_run_weights,
    describe_initial_weights,
    release_run_weights,
)
from edl.storage.weights_lookup import find_weights, read_task, training_runs

SPEC = JobSpec("counted", ModelSpec("m.f"), task="evaluate")


def checkpoint(run: RunDirectory, cut: int, step: int = 300) -> Path:
    directory = cut_directory(run.checkpoints, cut)
    directory.mkdir()
    manifest = CheckpointManifest(cut, 7, "2026-01-01T00:00:00Z", (), {"done_steps": step})
    write_json(directory / MANIFEST_NAME, manifest.to_json())
    return directory


def cluster_run(job_dir: Path, uid: str) -> RunDirectory:
    """A run as pods leave it: its id is the Job's uid."""
    run = RunDirectory(job_dir / uid)
    make_run_directory(run)
    run.spec.write_text("{}")
    return run


def test_a_run_directory_says_what_the_run_does(tmp_path: Path) -> None:
    run = create_run(tmp_path)
    assert (read_task(run), RunWeights.read(run, "predict")) == ("train", None)
    for task, weights in (
        ("predict", RunWeights(Path("/m.keras"), output=Path("/out"))),
        ("evaluate", RunWeights(Path("/cut"), step=300)),
    ):
        run = create_run(tmp_path)
        weights.write(run, task)
        assert read_task(run) == task
        assert RunWeights.read(run, task) == weights
    assert training_runs(tmp_path) == [RunDirectory(tmp_path / "r1")]


@pytest.mark.parametrize("task", ["predict", "evaluate"])
def test_a_file_that_lacks_a_field_is_named(tmp_path: Path, task: str) -> None:
    (tmp_path / f"{task}.json").write_text('{"output": "/out"}')
    with pytest.raises(BadInputError, match="from") as caught:
        RunWeights.read(RunDirectory(tmp_path), task)
    assert not missing_keys(str(caught.value), f"{task}.json")


def test_weights_may_be_a_directory_of_a_run_a_checkpoint_or_an_export(tmp_path: Path) -> None:
    run = create_run(tmp_path / "local" / "counted")
    old, new = checkpoint(run, 1), checkpoint(run, 2, step=600)
    run.export.mkdir()
    with zipfile.ZipFile(run.export / "model.keras", "w") as archive:
        archive.writestr("metadata.json", "{}")
    other = tmp_path / "local" / "other"
    assert find_weights(other, str(run.path)).path == new
    assert (find_weights(other, str(old)).path, find_weights(other, str(old)).step) == (old, 300)
    assert find_weights(other, str(run.export)).path == run.export / "model.keras"
    assert find_weights(other, "counted/r1").path == new
    assert find_weights(other, "counted").path == new
    with pytest.raises(BadInputError, match="no run 'counted/r7'") as caught:
        find_weights(other, "counted/r7")
    assert not missing_keys(caught.value.hint, "counted", "r1")
    (tmp_path / "empty").mkdir()
    (tmp_path / "exported" / "saved_model").mkdir(parents=True)
    (tmp_path / "exported" / "saved_model" / "saved_model.pb").touch()
    with pytest.raises(BadInputError, match="is a SavedModel without"):
        find_weights(other, str(tmp_path / "exported"))
    for source, key in ((str(tmp_path / "empty"), "neither a run"), (str(tmp_path / "none"), "no such file")):
        with pytest.raises(BadInputError, match=key):
            find_weights(other, source)


def test_version_n_is_the_checkpoint_at_step_n_of_the_newest_run_in_the_directory(tmp_path: Path) -> None:
    job_dir = tmp_path / "local/digits"
    job_dir.mkdir(parents=True)
    older, newer = create_run(job_dir), create_run(job_dir)
    first, second = checkpoint(older, 1, step=100), checkpoint(older, 2, step=200)
    third = checkpoint(newer, 1, step=200)
    os.utime(older.checkpoints, ns=(1, 1))
    other = tmp_path / "local/other"
    for directory in (tmp_path, tmp_path / "local", job_dir):
        assert find_weights(other, f"{directory}/version-100").path == first
        assert find_weights(other, f"{directory}/version-200").path == third
    assert find_weights(other, f"{older.path}/version-200").path == second
    with pytest.raises(BadInputError, match=r"no run in .* has a checkpoint at step 150") as caught:
        find_weights(other, f"{tmp_path}/version-150")
    assert not missing_keys(caught.value.hint, "digits/r1 has 100, 200", "digits/r2 has 200")
    with pytest.raises(BadInputError, match="step 100") as caught:
        find_weights(other, "/nosuch/version-100")
    assert not missing_keys(caught.value.hint, "ElasticDL", ".keras")


def test_a_checkpoint_of_elasticdl_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "version-100"
    folder.mkdir()
    (folder / "variables-0-of-2.ckpt").touch()
    with pytest.raises(BadInputError, match="a checkpoint of ElasticDL"):
        find_weights(tmp_path / "job", str(folder))


def test_a_directory_of_storage_is_refused_with_the_newest_run_in_it(tmp_path: Path) -> None:
    job_dir = tmp_path / "local/digits"
    job_dir.mkdir(parents=True)
    older, newer = create_run(job_dir), create_run(job_dir)
    os.utime(older.checkpoints, ns=(1, 1))
    for named in (tmp_path, job_dir):
        with pytest.raises(BadInputError) as caught:
            find_weights(tmp_path / "other", str(named))
        assert not missing_keys(str(caught.value), "neither a run", str(newer.path))


def test_a_damaged_checkpoint_that_is_named_is_refused(tmp_path: Path) -> None:
    directory = checkpoint(create_run(tmp_path), 1)
    (directory / MANIFEST_NAME).write_text("{")
    with pytest.raises(BadInputError, match="cannot be used") as caught:
        find_weights(tmp_path, str(directory))
    assert not missing_keys(caught.value.hint, "edl checkpoint ls --verify")


def test_a_master_chooses_the_weights_once(tmp_path: Path) -> None:
    job_dir = tmp_path / "team" / "counted"
    trained, evaluating = cluster_run(job_dir, "uid-1"), cluster_run(job_dir, "uid-2")
    first = checkpoint(trained, 1)
    chosen = choose_run_weights(evaluating, SPEC)
    held_folder = evaluating.path / "weights" / first.name
    assert chosen == RunWeights(first, 300, held=held_folder)
    checkpoint(trained, 2, step=600)
    assert RunWeights.read(evaluating, "evaluate") == chosen
    written = {"from": str(first), "step": 300, "held": str(held_folder)}
    assert json.loads((evaluating.path / "evaluate.json").read_text()) == written


def test_a_run_keeps_the_weights_that_it_reads_while_another_one_trains_on(tmp_path: Path) -> None:
    trained, reading = cluster_run(tmp_path / "counted", "uid-1"), cluster_run(tmp_path / "counted", "uid-2")
    first = checkpoint(trained, 1)
    weights = choose_run_weights(reading, SPEC)
    checkpoint(trained, 2, step=600)
    assert prune_checkpoints(trained.checkpoints, 1) == [1]
    assert not first.exists()
    assert isinstance(load_manifest(weights.readable_path), CheckpointManifest)
    release_run_weights(reading)
    assert list(reading.path.glob("weights*")) == []


def test_a_checkpoint_that_is_removed_at_that_moment_is_named(tmp_path: Path) -> None:
    trained, reading = cluster_run(tmp_path / "counted", "uid-1"), cluster_run(tmp_path / "counted", "uid-2")
    directory = checkpoint(trained, 1)
    (directory / MANIFEST_NAME).unlink()
    with pytest.raises(BadInputError, match="just been removed") as caught:
        RunWeights(directory, 300).hold(reading)
    assert not missing_keys(caught.value.hint, "checkpoint.keep")


def test_weights_on_a_file_system_without_links_are_read_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "not permitted")

    monkeypatch.setattr(os, "link", refuse)
    trained, reading = cluster_run(tmp_path / "counted", "uid-1"), cluster_run(tmp_path / "counted", "uid-2")
    first = checkpoint(trained, 1)
    assert choose_run_weights(reading, SPEC).readable_path == first


def test_what_a_training_begins_with_is_chosen_once_too(tmp_path: Path) -> None:
    trained, beginning = cluster_run(tmp_path / "first", "uid-1"), cluster_run(tmp_path / "second", "uid-2")
    wanted = checkpoint(trained, 1)
    spec = JobSpec("second", ModelSpec("m.f", init_from="first"))
    assert describe_initial_weights(beginning) is None
    assert choose_run_weights(beginning, spec).path == wanted
    assert read_task(beginning) == "train"
    assert describe_initial_weights(beginning) == f"{wanted}, step 300"
    weights = find_initial_weights(beginning, spec)
    assert weights is not None
    assert weights.path == wanted


def test_a_run_with_a_checkpoint_has_begun(tmp_path: Path) -> None:
    trained, beginning = cluster_run(tmp_path / "first", "uid-1"), cluster_run(tmp_path / "second", "uid-2")
    checkpoint(trained, 1)
    spec = JobSpec("second", ModelSpec("m.f", init_from="first"))
    choose_run_weights(beginning, spec)
    checkpoint(beginning, 1, step=0)
    assert find_initial_weights(beginning, spec) is None


def test_predictions_of_a_cluster_go_to_the_run_directory(tmp_path: Path) -> None:
    trained = cluster_run(tmp_path / "counted", "uid-1")
    wanted = checkpoint(trained, 1)
    predicting = cluster_run(tmp_path / "asked", "uid-2")
    model = replace(SPEC.model, weights="counted/uid-1")
    chosen = choose_run_weights(predicting, replace(SPEC, name="asked", task="predict", model=model))
    held_folder = predicting.path / "weights" / wanted.name
    assert chosen == RunWeights(wanted, 300, predicting.path / "predictions", held_folder)


def test_a_worker_without_the_masters_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"evaluate\.json") as caught:
        RunWeights.require(RunDirectory(tmp_path), "evaluate")
    assert not missing_keys(caught.value.hint, "storage.claim")
