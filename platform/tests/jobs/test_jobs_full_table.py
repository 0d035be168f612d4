"""A whole job into ``ps.max_rows``: what its user is told, what the job leaves behind, and how it goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.job_folder import JobFolder, write_examples, write_module
from support.text_keys import missing_keys

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(400), pytest.mark.tensorflow]

USERS, BOUND, MINIBATCH = 160, 100, 8
HELD = BOUND // MINIBATCH * MINIBATCH
"""Each minibatch has as many new users as records: so many are stored when one does not fit."""

MODULE = """
import keras
import tensorflow as tf

FEATURES = {"user": tf.io.FixedLenFeature([], tf.int64), "y": tf.io.FixedLenFeature([1], tf.float32)}


def custom_model():
    user = keras.Input([], dtype="int64")
    return keras.Model(user, keras.layers.Dense(1)(keras.layers.Embedding(50_000, 4, name="users")(user)))


def loss(labels, predictions):
    return tf.reduce_mean(tf.square(labels - predictions))


def optimizer():
    return keras.optimizers.Adagrad(0.01)


def eval_metrics_fn():
    return {"error": keras.metrics.MeanAbsoluteError()}


def feed(dataset, mode, metadata):
    def parsed(record):
        found = tf.io.parse_single_example(record, FEATURES)
        return found["user"], found["y"]

    return dataset.map(parsed)
"""


def job_folder_in(folder: Path) -> JobFolder:
    write_examples(folder / "train.recordio", ({"user": [7 * n], "y": [n / USERS]} for n in range(USERS)))
    return JobFolder.make(
        folder,
        "users",
        "users.custom_model",
        zoo=write_module(folder, "users", MODULE),
        data={"training": str(folder / "train.recordio")},
        train={"minibatch_size": MINIBATCH, "minibatches_per_task": 4},
        ps={"count": 1, "embedding_threshold": "64Ki", "max_rows": BOUND},
    )


@pytest.mark.repetition
def test_a_full_table_ends_the_job_with_what_to_do_and_it_goes_on_with_a_higher_bound(tmp_path: Path) -> None:
    job_folder = job_folder_in(tmp_path)
    with job_folder.run() as run:
        assert run.wait(150) == 1
    reason, remedy = run.errors.strip().splitlines()
    assert not missing_keys(reason, "ps-0", "'users/embeddings' (50000 x 4)", str(HELD), str(MINIBATCH), str(BOUND))
    assert not missing_keys(remedy, "ps.max_rows", "ps.count", "ps.evict_after_steps", "--resume")
    assert sum(line["role"] == "worker" for line in run.events("role_ended")) == 1, "it is not tried again and again"
    summary = run.lines[-1]
    assert (summary["phase"], summary["exit_code"]) == ("Failed", 1)
    assert summary["reason"] == run.errors.strip()
    parameters = summary["parameters"]
    assert parameters["pushes"] == parameters["updates"] == HELD // MINIBATCH
    (table,) = parameters["tables"]
    assert table.pop("bytes") > HELD * (8 + 2 * 4 * 4)
    expected = {"name": "users/embeddings", "rows": HELD, "evicted": 0, "max_rows": BOUND, "full": HELD / BOUND}
    assert table == expected
    status = json.loads((run.run_dir / "status.json").read_text())
    assert status["parameters"] == summary["parameters"] | {"tables": [expected | {"bytes": _bytes(status)}]}

    is_refused_with_another_model(job_folder)
    with job_folder.run("--resume", "--set", f"ps.max_rows={USERS}") as run:
        summary = run.summary(150)
    assert summary["records_done"] == USERS
    (table,) = summary["parameters"]["tables"]
    assert (table["rows"], table["max_rows"], table["full"]) == (USERS, USERS, 1.0)


def is_refused_with_another_model(job_folder: JobFolder) -> None:
    """The run is as it was: with its own model it goes on afterwards."""
    write_module(job_folder.folder, "users", MODULE.replace("50_000, 4", "50_000, 8"))
    with job_folder.run("--resume") as run:
        assert run.wait(150) == 2
    message, remedy = run.errors.strip().splitlines()
    assert message.startswith("ps-0: ")
    assert all(part in message for part in ("table 'users/embeddings'", "[50000, 8]", "[50000, 4]"))
    assert "--resume" in remedy
    assert sum(line["role"] == "worker" for line in run.events("role_ended")) == 1, "it is not tried again and again"
    write_module(job_folder.folder, "users", MODULE)


def _bytes(status: dict) -> int:
    return status["parameters"]["tables"][0]["bytes"]
