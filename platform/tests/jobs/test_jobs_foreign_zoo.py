"""A package of the zoo's name in the current folder: no process of a job runs any of its code."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.job_folder import JobFolder

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(400), pytest.mark.tensorflow]

NET = """
import keras
import tensorflow as tf
from model_zoo.lines import parts

def custom_model():
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])

def loss(labels, predictions):
    return tf.reduce_mean(tf.square(labels - predictions))

def optimizer():
    return keras.optimizers.SGD(0.01)

def eval_metrics_fn():
    return {"mse": keras.metrics.MeanSquaredError()}

def feed(dataset, mode, metadata):
    return dataset.map(parts.features if mode == "prediction" else parts.both)
"""
PARTS = """
import tensorflow as tf

def features(row):
    return tf.strings.to_number(row[:1])

def both(row):
    return features(row), tf.strings.to_number(row[1:])
"""
STRANGER = "from pathlib import Path\n(Path(__file__).parent / 'was_run').touch()\n"


@pytest.mark.repetition
def test_the_jobs_zoo_wins_in_every_process(tmp_path: Path) -> None:
    zoo, here = tmp_path / "job" / "model_zoo", tmp_path / "here"
    (zoo / "lines").mkdir(parents=True)
    (zoo / "lines" / "net.py").write_text(NET)
    (zoo / "lines" / "parts.py").write_text(PARTS)
    stranger = here / "model_zoo" / "lines"
    stranger.mkdir(parents=True)
    for file in (stranger.parent / "__init__.py", stranger / "__init__.py", stranger / "net.py", stranger / "parts.py"):
        file.write_text(STRANGER)
    (tmp_path / "rows.csv").write_text("x,y\n" + "".join(f"{x},{2 * x}\n" for x in range(40)))
    data = dict.fromkeys(("training", "validation", "prediction"), str(tmp_path / "rows.csv"))
    job_folder = JobFolder.make(
        here, "lines", "lines.net.custom_model", zoo=zoo, data=data, train={"minibatch_size": 10, "epochs": 1}
    )
    with job_folder.run() as run:
        assert "mse" in run.summary()["metrics"]
    with job_folder.run("--set", "strategy.name=Local", "--set", "checkpoint=null") as run:
        run.summary()
    with job_folder.predict(here / "out", "--from", "r1") as run:
        run.summary()
    assert not list(here.rglob("was_run"))
