"""A trained model that is not as it was any more: what edl predict still does with it, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.job_folder import JobFolder, newest_cut, predictions, write_module
from support.job_process import JobProcess

pytestmark = [pytest.mark.jobs, pytest.mark.repetition, pytest.mark.timeout(400), pytest.mark.tensorflow]

MODEL = """
import keras
import tensorflow as tf


def custom_model(dim=4, ids=2000, name="users", more=False):
    user = keras.Input([], dtype="int64", name="user")
    x = keras.layers.Embedding(ids, dim, name=name)(user)
    if more:
        x = keras.layers.Concatenate()([x, keras.layers.Embedding(3000, dim, name="more")(user)])
    return keras.Model(user, keras.layers.Dense(1, name="wider" if more else "out")(x))


def loss(labels, predictions):
    return tf.reduce_mean(tf.square(labels - predictions))


def optimizer():
    return keras.optimizers.SGD(0.5)


def eval_metrics_fn():
    return {"mse": keras.metrics.MeanSquaredError()}


def feed(dataset, mode, metadata):
    def parse(row):
        user, rated = tf.strings.to_number(row[0], tf.int64), tf.strings.to_number(row[1:2])
        return user if mode == "prediction" else (user, rated)

    return dataset.map(parse)
"""
SERVED, DENSE = "ps.embedding_threshold=1Ki", "ps.embedding_threshold=1Mi"


@dataclass(frozen=True)
class TrainedRuns:
    """A job with two runs: r1 with the table on a parameter server, r2 with a dense one."""

    job_folder: JobFolder
    served: Path
    dense: Path

    def predict(self, folder: Path, run: Path, *settings: str) -> np.ndarray:
        options = [word for setting in settings for word in ("--set", setting)]
        with self.job_folder.predict(folder, "--from", run.name, *options) as done:
            done.summary()
        return predictions(folder)[0]


@pytest.fixture(scope="module")
def trained_runs(tmp_path_factory: pytest.TempPathFactory) -> TrainedRuns:
    folder = tmp_path_factory.mktemp("predict")
    lines = [f"{number % 50},{number % 7}" for number in range(100)]
    (folder / "train.csv").write_text("user,rated\n" + "\n".join(lines) + "\n")
    (folder / "asked.csv").write_text("user,rated\n" + "".join(f"{number},0\n" for number in range(0, 2000, 20)))
    job_folder = JobFolder.make(
        folder,
        "users",
        "users.custom_model",
        zoo=write_module(folder, "users", MODEL),
        data={"training": str(folder / "train.csv"), "prediction": str(folder / "asked.csv")},
        train={"epochs": 2, "minibatch_size": 10},
    )
    runs = []
    for threshold in (SERVED, DENSE):
        with job_folder.run("--set", threshold) as run:
            run.summary()
            runs.append(run.run_dir)
    return TrainedRuns(job_folder, *runs)


def test_a_table_may_be_served_and_have_been_dense_and_the_other_way_round(
    trained_runs: TrainedRuns, tmp_path: Path
) -> None:
    """Of the asked users, most have rows that nobody ever trained: they are what they were for the trained model."""
    for run in (trained_runs.served, trained_runs.dense):
        served = trained_runs.predict(tmp_path / run.name / "served", run, SERVED)
        dense = trained_runs.predict(tmp_path / run.name / "dense", run, DENSE, "train.seed=5")
        np.testing.assert_allclose(served, dense, rtol=1e-6)
        assert len(np.unique(served)) > 90


def test_an_evaluation_reads_the_rows_of_tables(trained_runs: TrainedRuns, tmp_path: Path) -> None:
    """Half of the table's rows were never trained."""
    (rated := tmp_path / "rated.csv").write_text("user,rated\n" + "".join(f"{n},{n % 7}\n" for n in range(100)))
    outputs = trained_runs.predict(tmp_path / "out", trained_runs.served, SERVED, f"data.prediction={rated}")
    expected = float(np.mean((outputs[:, 0] - np.arange(100) % 7) ** 2))
    for run, threshold in ((trained_runs.served, SERVED), (trained_runs.served, DENSE), (trained_runs.dense, SERVED)):
        options = ("--from", run.name, "--set", threshold, "--set", f"data.validation={rated}")
        with trained_runs.job_folder.evaluate(*options) as evaluation:
            mse = evaluation.summary()["metrics"]["mse"]
        assert run is trained_runs.dense or mse == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("params", "threshold", "said"),
    [
        (
            {"dim": 8},
            SERVED,
            "the table 'users/embeddings' is [2000, 8] in the model, and a PS-backed table of the shape",
        ),
        ({"more": True}, SERVED, "the table 'more/embeddings' [3000, 4] of the model is not in the checkpoint"),
        ({"name": "u"}, DENSE, "the variable 'u/embeddings' [2000, 4] of the model is not in the checkpoint"),
    ],
)
def test_another_model_is_refused_at_once(
    trained_runs: TrainedRuns, tmp_path: Path, params: dict[str, object], threshold: str, said: str
) -> None:
    options = ["--from", trained_runs.served.name, "--set", threshold, "--set", f"model.params={json.dumps(params)}"]
    with trained_runs.job_folder.predict(tmp_path / "out", *options) as run:
        assert run.wait() == 2
        assert_said(run, said, trained_runs.served)


def assert_said(run: JobProcess, said: str, trained_runs: Path) -> None:
    """The reason names the checkpoint and what can be done; no worker was started a second time."""
    (ended,) = run.events("job_ended")
    assert said in ended["reason"]
    assert str(newest_cut(trained_runs)) in ended["reason"]
    assert "edl predict --from RUN" in ended["reason"]
    assert len([line for line in run.events("role_started") if line["role"] == "worker"]) == 1
    assert not list(run.run_dir.parent.glob("out/*.npz"))
