"""Records and models that a table on the parameter servers cannot take: said once, with what to do.

All these jobs are short and independent: they run side by side, and each test looks at what one of them said.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.job_folder import JobFolder, write_examples, write_module
from support.job_process import Line
from support.text_keys import missing_keys

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(400), pytest.mark.tensorflow]

ROWS, RECORDS, MINIBATCH, BAD = 3000, 96, 8, 37
"""``BAD`` is the one record that is not as the others."""
WHERE = f"records {BAD // MINIBATCH * MINIBATCH} to {BAD // MINIBATCH * MINIBATCH + MINIBATCH - 1}"

MODULE = """
import keras
import tensorflow as tf

FEATURES = {"id": tf.io.FixedLenFeature([], tf.int64), "x": tf.io.FixedLenFeature([2], tf.float32)}


def model(dtype=None):
    chosen, x = keras.Input([], dtype="int64", name="id"), keras.Input([2], name="x")
    rows = keras.layers.Embedding(3000, 8, name="rows", dtype=dtype)(chosen)
    centered = keras.layers.LayerNormalization(scale=False, center=False)(x)
    joined = keras.layers.Concatenate(dtype="float32")([rows, centered])
    out = keras.layers.Dense(1, kernel_initializer="ones", trainable=False)(joined)
    return keras.Model({"id": chosen, "x": x}, out)


def half():
    return model("float16")


def mixed():
    return model("mixed_float16")


def loss(labels, predictions):
    return tf.reduce_mean(tf.sqrt(tf.abs(labels * predictions)))


def optimizer():
    return keras.optimizers.Adagrad(0.01)


def eval_metrics_fn():
    return {"error": keras.metrics.MeanAbsoluteError()}


def feed(dataset, mode, metadata):
    def parsed(record):
        found = tf.io.parse_single_example(record, FEATURES | {"y": tf.io.FixedLenFeature([1], tf.float32)})
        return {"id": found["id"], "x": found["x"]}, found["y"]

    return dataset.map(parsed)
"""
SAID = {
    "beyond": (
        2,
        ("FOLDER/beyond.recordio", WHERE, f"id {ROWS}", "'rows/embeddings' (3000 x 8)", "0 to 2999", "input_dim"),
    ),
    "infinite": (1, ("FOLDER/infinite.recordio", "loss nan", WHERE, "train.on_nan: skip")),
    "gradient": (
        1,
        ("FOLDER/gradient.recordio", "gradient", "'rows/embeddings' (3000 x 8)", WHERE, "train.on_nan: skip"),
    ),
}
"""Exit code, and what standard error has to name."""
ODD: dict[str, dict[str, Any]] = {
    "beyond": {"id": [ROWS]},
    "infinite": {"x": [float("inf"), 0.0]},
    "gradient": {"y": [0.0]},
}
"""What the bad record has; the gradient of a root is infinite at zero."""


def record(index: int, **odd: Any) -> dict[str, Any]:
    return {"id": [31 * index % ROWS], "x": [index / RECORDS, 1.0], "y": [1.0], **odd}


def places(folder: Path) -> Iterator[JobFolder]:
    zoo = write_module(folder, "rows", MODULE)
    for name in [*SAID, "half", "mixed"]:
        odd = ODD.get(name, {})
        records = (record(n, **odd) if n == BAD else record(n) for n in range(RECORDS))
        yield JobFolder.make(
            folder,
            name,
            f"rows.{name if name in ('half', 'mixed') else 'model'}",
            zoo=zoo,
            data={"training": str(write_examples(folder / f"{name}.recordio", records))},
            # In the order of the file: the records are told by number below.
            train={"minibatch_size": MINIBATCH, "minibatches_per_task": 4, "shuffle": {"window": 0}},
            ps={"count": 1, "embedding_threshold": "16Ki"},
        )


class BadRowRuns:
    """Runs a job when a test first asks for it."""

    def __init__(self, folder: Path) -> None:
        self._places = {job_folder.name: job_folder for job_folder in places(folder)}

    @cache  # noqa: B019  one object, as long as the module
    def run(self, name: str) -> tuple[int, str, list[Line]]:
        job_folder = self._places[name]
        with job_folder.run() as process:
            code = process.wait(150)
            return code, process.errors.strip().replace(str(job_folder.folder), "FOLDER"), process.lines


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> BadRowRuns:
    return BadRowRuns(tmp_path_factory.mktemp("rows"))


def workers_ended(lines: list[Line]) -> int:
    return sum(line["event"] == "role_ended" and line["role"] == "worker" for line in lines)


@pytest.mark.parametrize(
    "name", [name if name == "beyond" else pytest.param(name, marks=pytest.mark.repetition) for name in SAID]
)
def test_what_a_table_cannot_take_ends_the_job_with_one_message(jobs: BadRowRuns, name: str) -> None:
    code, errors, lines = jobs.run(name)
    expected, keys = SAID[name]
    assert code == expected
    assert not missing_keys(errors, *keys)
    assert workers_ended(lines) <= 1, "it is not tried again and again"


@pytest.mark.repetition
def test_a_table_of_another_type_is_refused_before_the_first_step(jobs: BadRowRuns) -> None:
    code, errors, lines = jobs.run("half")
    assert not missing_keys(errors, "Embedding 'rows' (3000 x 8)", "float16", "float32")
    assert (code, lines[-1]["records_done"]) == (2, 0)
    assert workers_ended(lines) <= 1


@pytest.mark.repetition
def test_a_layer_of_mixed_precision_is_served(jobs: BadRowRuns) -> None:
    code, errors, lines = jobs.run("mixed")
    assert code == 0, errors
    assert lines[-1]["records_done"] == RECORDS
    (table,) = lines[-1]["parameters"]["tables"]
    assert (table["name"], table["rows"]) == ("rows/embeddings", RECORDS)
