"""``edl run --resume`` of an AllReduce run whose only checkpoint is damaged, or belongs to another model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from jobs.test_jobs_models import iris
from support.job_folder import MODEL_ZOO, JobFolder, newest_cut
from support.job_process import edl
from support.repetition import repetition
from support.text_keys import missing_keys

from edl.storage.checkpoint_manifest import CheckpointManifest, commit_checkpoint, load_manifest
from edl.storage.checkpoint_shards import read_shard, write_shard

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(600), pytest.mark.tensorflow]

FILE = "ps-0.safetensors"
MODULE = (MODEL_ZOO / "iris" / "iris_dnn.py").read_text()
WIDER = f"""{MODULE}

make = custom_model


def custom_model():
    model = make()
    return keras.Model(model.inputs, keras.layers.Dense(3)(keras.layers.Dense(77)(model.outputs[0])))
"""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> JobFolder:
    """A job whose run was stopped; it has one checkpoint."""
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "zoo").mkdir()
    (folder / "zoo" / "model.py").write_text(MODULE)
    job = iris(
        folder,
        strategy={"name": "AllReduce"},
        train={"epochs": 100_000, "max_steps": 20_000, "minibatch_size": 16, "minibatches_per_task": 8},
        checkpoint={"every_steps": 1_000_000, "keep": 1},
        export=None,
    )
    job.spec["model"] = {"zoo": "zoo", "definition": "model.custom_model"}
    job.file.write_text(json.dumps(job.spec))
    with job.run() as run:
        run.wait_step(20, timeout=240.0)
        run.interrupt()
        assert run.wait() == 130
        newest = newest_cut(run.run_dir)
    for older in set(newest.parent.iterdir()) - {newest}:
        shutil.rmtree(older)
    return job


def flip_byte(job: JobFolder, cut: Path) -> None:
    data = bytearray((cut / FILE).read_bytes())
    data[-1] ^= 1
    (cut / FILE).write_bytes(data)


def drop_array(job: JobFolder, cut: Path) -> None:
    """Leave one variable out of the file, and let the manifest agree."""
    manifest = load_manifest(cut)
    assert isinstance(manifest, CheckpointManifest)
    arrays, metadata = read_shard(cut / FILE)
    del arrays[next(name for name in arrays if name.startswith("dense/"))]
    commit_checkpoint(cut, replace(manifest, shards=(write_shard(cut, 0, arrays, metadata),)))


def change_model(job: JobFolder, cut: Path) -> None:
    (job.folder / "zoo" / "model.py").write_text(WIDER)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        repetition(lambda job, cut: (cut / FILE).unlink(), (FILE, "missing", "backup"), name="missing file"),
        repetition(lambda job, cut: (cut / FILE).write_bytes(b"cut"), (FILE, "3 bytes", "backup"), name="truncated"),
        pytest.param(flip_byte, (FILE, "checksum", "backup"), id="flipped byte"),
        repetition(drop_array, ("has no dense", "start a new run"), name="missing variable"),
        repetition(change_model, ("another model", "restore the model"), name="other model"),
    ],
)
def test_the_file_and_the_remedy_are_named(
    stopped: JobFolder, tmp_path: Path, damage: Callable[[JobFolder, Path], None], said: tuple[str, ...]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(stopped.folder, folder)
    job = JobFolder(folder, stopped.name, stopped.spec)
    (run_dir,) = (folder / ".edl" / "local" / job.name).glob("r*")
    newest = newest_cut(run_dir)
    damage(job, newest)
    ended = edl("run", str(job.file), "--resume", cwd=folder, timeout=240.0)
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert not missing_keys(ended.stdout + ended.stderr, str(newest.parent), *said)
