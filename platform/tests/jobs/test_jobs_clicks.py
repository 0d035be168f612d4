"""The zoo's click models learn what was planted into a generated log, with their tables served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jobs.plain_keras import QUIET, checkpoint_arrays
from support.job_folder import MODEL_ZOO, JobFolder, newest_cut
from support.job_process import edl

from edl.jobfile.loader import load_job_file

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(400), pytest.mark.tensorflow, pytest.mark.filterwarnings(QUIET)]

VOCABULARY = 1300
MODELS = {"deepfm": ("weights", "vectors"), "wide_and_deep": ("wide", "vectors")}


@pytest.mark.parametrize("name", ["deepfm", pytest.param("wide_and_deep", marks=pytest.mark.repetition)])
def test_a_click_model_learns_most_of_what_can_be_known(tmp_path: Path, name: str) -> None:
    data_command = edl("data", "clicks", "log", "--records", "18000", "--vocabulary", str(VOCABULARY), cwd=tmp_path)
    assert data_command.returncode == 0, data_command.stderr
    best = json.loads((tmp_path / "log" / "about.json").read_text())["test"]["auc"]
    definition = f"{name}.{name}.custom_model"
    params = {"vocabulary": VOCABULARY, "dim": 8, "hidden": [32]}
    job_folder = JobFolder.make(
        tmp_path,
        name.replace("_", "-"),
        definition,
        model={"zoo": str(MODEL_ZOO), "definition": definition, "params": params},
        data={"training": str(tmp_path / "log" / "train"), "validation": str(tmp_path / "log" / "test")},
        train={"epochs": 2, "minibatch_size": 64, "minibatches_per_task": 32},
        ps={"count": 1, "embedding_threshold": "1Ki"},
    )
    with job_folder.run() as run:
        summary, run_dir = run.summary(240.0), run.run_dir
    assert 0.5 + 0.6 * (best - 0.5) < summary["metrics"]["auc"] < best
    arrays = checkpoint_arrays(newest_cut(run_dir))
    served = {path.split("/")[1] for path in arrays if path.startswith("rows/")}
    assert served == set(MODELS[name])


@pytest.mark.parametrize("name", MODELS)
def test_its_job_file_names_the_model_that_is_tested(name: str) -> None:
    spec = load_job_file(MODEL_ZOO / name / "job.yaml")
    assert spec.model.definition == f"{name}.{name}.custom_model"
