"""The models of the zoo learn what is planted in their data, as whole jobs of the zoo's own job files."""

from __future__ import annotations

import shutil
from pathlib import Path
from signal import SIGKILL

import pytest
from faults.job_assertions import world_of
from jobs.plain_keras import QUIET, checkpoint_arrays, without_edl
from support.job_folder import MODEL_ZOO, newest_cut
from support.job_process import JobProcess, edl
from support.repetition import in_thirds
from support.zoo_models import MODELS, TESTED_ELSEWHERE, make_data

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(600), pytest.mark.tensorflow, pytest.mark.filterwarnings(QUIET)]

ALL = {**TESTED_ELSEWHERE, **MODELS}
LARGE = ("cifar10_mobilenet_v2", "resnet50")
"""Jobs of these take a minute each."""
HAVE_CLASSES = {"mnist_subclass", "cifar10_subclass", "text"}
"""Keras loads their file where the zoo's module is imported."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo-data")


@pytest.mark.repetition
@pytest.mark.parametrize("strategy", ["Local", "AllReduce", "ParameterServer"])
@pytest.mark.parametrize(
    "name",
    [
        *in_thirds(name for name in ALL if name not in LARGE),
        *(pytest.param(name, marks=pytest.mark.thorough) for name in LARGE),
    ],
)
def test_a_job_of_the_zoo_learns(
    name: str, strategy: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ALL[name]
    monkeypatch.syspath_prepend(str(MODEL_ZOO.parent))
    if not (data / model.data).exists():
        make_data(model.data, data)
    settings = model.job_settings(data, strategy, exports=strategy == "Local")
    options = [word for setting in settings for word in ("--set", setting)]
    with JobProcess(model.job_file, *options, cwd=tmp_path) as run:
        summary, run_dir = run.summary(500.0), run.run_dir
    assert (summary["records_lost"], summary["workers_lost"]) == (0, 0)
    assert summary["metrics"][model.metric] > model.least
    if strategy == "Local":
        # Layers that look words up, hash and cross them: nothing of the zoo is needed to serve the model.
        code = """
            import keras, tensorflow as tf
            tf.saved_model.load(sys.argv[1] + "/saved_model").serve
            if sys.argv[2] == "False":
                keras.models.load_model(sys.argv[1] + "/model.keras")
        """
        without_edl(code, summary["export"], name in HAVE_CLASSES, cwd=tmp_path)
    if strategy == "ParameterServer":
        served = {path.split("/")[1] for path in checkpoint_arrays(newest_cut(run_dir)) if path.startswith("rows/")}
        assert served == set(model.tables)
    shutil.rmtree(run_dir)  # ResNet-50 alone has 300 MB


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mnist_functional", "cifar10_functional"])
def test_a_model_of_the_zoo_learns_while_workers_are_killed_and_added(
    name: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four ranks; one is killed and replaced, and a fifth is added by hand."""
    model = ALL[name]
    monkeypatch.syspath_prepend(str(MODEL_ZOO.parent))
    if not (data / model.data).exists():
        make_data(model.data, data)
    long = ("workers={min: 2, max: 4}", "train.epochs=150")
    options = [word for setting in (*model.job_settings(data, "AllReduce"), *long) for word in ("--set", setting)]
    with JobProcess(model.job_file, *options, cwd=tmp_path) as run:
        world_of(run, 4)
        known = len(run.lines)
        run.send("worker", max(run.training()), SIGKILL)
        world_of(run, 3, after=known)
        world_of(run, 4, after=known)
        scaled = edl("scale", model.job_file.parent.name, "--local", "--max", "5", cwd=tmp_path)
        assert scaled.returncode == 0, scaled.stderr
        world_of(run, 5, after=known)
        summary = run.summary(500.0)
    assert (summary["records_lost"], summary["workers_lost"]) == (0, 1)
    assert summary["records_rolled_back"] == 0
    assert summary["records_repeated"] <= model.train["minibatch_size"], "at most the share of the killed worker"
    assert summary["metrics"][model.metric] > model.least
