"""TO TRAIN with a module of the user: it gets its arguments and the planned columns, and stays with the model."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
from sql_jobs.test_sql_statement_runner import FakeJobs, jobs, run

from edl.api.errors import BadInputError
from edl.jobfile.loader import load_job_file
from edl.sql_jobs.statement_runner import PredictResult, TrainResult

__all__ = ["jobs"]

MODULE = """
import keras
from edl_columns import callbacks, eval_metrics_fn, features, inputs, loss, optimizer, output
from helper import ACTIVATION


def custom_model(units=4):
    given = inputs()
    return keras.Model(given, output(keras.layers.Dense(units, activation=ACTIVATION)(features(given))))
"""
TRAIN = "SELECT * FROM people TO TRAIN {} WITH model.units=3, optimizer.learning_rate=0.5 LABEL rich INTO m"


@pytest.fixture
def module(jobs: FakeJobs, tmp_path: Path) -> Path:
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    (zoo / "my_module.py").write_text(MODULE, encoding="utf-8")
    (zoo / "helper.py").write_text('ACTIVATION = "tanh"\n', encoding="utf-8")
    return zoo


@pytest.mark.parametrize(
    ("estimator", "zoo"),
    [("'zoo/my_module.py'", ""), ("my_module.py", ", model.zoo='zoo'"), ("my_module.custom_model", ", model.zoo=zoo")],
)
def test_a_module_becomes_part_of_the_job_and_of_the_model(
    module: Path, tmp_path: Path, jobs: FakeJobs, estimator: str, zoo: str
) -> None:
    jobs.writes_module = False
    trained = run(TRAIN.format(estimator).replace(" LABEL", f"{zoo} LABEL"), export=tmp_path / "out")
    assert isinstance(trained, TrainResult)
    assert trained.model.estimator == "my_module.custom_model"
    spec = load_job_file(tmp_path / "out" / "job.yaml")
    assert (spec.model.definition, dict(spec.model.params)) == ("my_module.custom_model", {"units": 3})
    stored = {path.name for path in trained.model.folder.glob("*.py")}
    assert stored == {"my_module.py", "helper.py", "edl_columns.py"}
    assert "learning_rate=0.5" in (trained.model.folder / "edl_columns.py").read_text(encoding="utf-8")
    assert isinstance(run("SELECT * FROM people TO PREDICT guessed.rich USING m"), PredictResult)


@pytest.mark.tensorflow
def test_its_model_takes_raw_columns(
    module: Path, tmp_path: Path, jobs: FakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.writes_module = False
    run(TRAIN.format("'zoo/my_module.py'"), export=tmp_path / "out")
    monkeypatch.syspath_prepend(str(tmp_path / "out"))
    try:
        model = importlib.import_module("my_module").custom_model(units=3)
        outputs = model({"age": np.array([[30.0], [np.nan]], "float32"), "home_town": np.array([["t1"], [""]])})
    finally:
        for name in ("my_module", "helper", "edl_columns"):
            sys.modules.pop(name, None)
    assert outputs.shape == (2, 1)


@pytest.mark.parametrize(
    ("clause", "place", "said"),
    [
        ("absent.py", 31, "has no module 'absent'"),
        ("'absent/my_module.py'", 31, "there is no folder absent.*begins at the current folder"),
        ("'zoo/helper.py'", 31, "does not define 'custom_model'"),
        ("'zoo/my_module.py' WITH model.unit=3", 55, "no argument 'unit'.*did you mean units"),
        ("'zoo/own.py' WITH optimizer.name=SGD", 49, "an optimizer of its own"),
        ("'zoo/my_module.py' WITH train.class_weight=none", 55, "train.class_weight has no effect"),
        ("dnm", 31, "did you mean dnn.*my_module.py"),
    ],
)
def test_what_the_module_does_not_have_is_refused_at_its_place(
    module: Path, jobs: FakeJobs, clause: str, place: int, said: str
) -> None:
    (module / "own.py").write_text("def custom_model():\n    pass\n\n\noptimizer = 'adam'\n", encoding="utf-8")
    with pytest.raises(BadInputError, match=rf"(?s){said}") as error:
        run(f"SELECT * FROM people TO TRAIN {clause} LABEL rich INTO m")
    assert f"line 1, column {place}" in str(error.value.where)
    assert jobs.verbs == []
