"""A CSV file that is sorted by its label trains as well as keras.fit does, which shuffles it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.job_folder import JobFolder, write_module
from support.run_recount import recount

from edl.simulation.ledger_recount import find_ledger_problems
from edl.storage.durable_files import read_json

pytestmark = [pytest.mark.jobs, pytest.mark.tensorflow]

RECORDS, FEATURES, CLASSES, EPOCHS, MINIBATCH = 8_000, 10, 5, 3, 64

MODEL = """
import keras, tensorflow as tf

def custom_model():
    return keras.Sequential([
        keras.Input((10,)),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(5),
    ])

def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)

def optimizer():
    return keras.optimizers.SGD(0.05)

def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}

def feed(dataset, mode, metadata):
    def parsed(row):
        numbers = tf.strings.to_number(row)
        return numbers[:10], tf.cast(numbers[10], tf.int32)
    return dataset.map(parsed)
"""


def draw_records(records: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Five clouds that overlap: no model is right about all of them."""
    centers = np.random.default_rng(1).normal(size=(CLASSES, FEATURES))
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, records).astype(np.int32)
    return (centers[labels] + 0.9 * random.normal(size=(records, FEATURES))).astype(np.float32), labels


def write_rows(file: Path, x: NDArray[np.float32], y: NDArray[np.int32]) -> Path:
    rows = (",".join([*(f"{value:.5f}" for value in row), str(label)]) for row, label in zip(x, y, strict=True))
    file.write_text("\n".join(rows) + "\n")
    return file


def fitted(x: NDArray[np.float32], y: NDArray[np.int32], test: tuple[Any, Any]) -> float:
    """Accuracy of keras.fit, which shuffles all of it."""
    import keras

    keras.utils.set_random_seed(0)
    space: dict[str, Any] = {}
    exec(MODEL, space)
    model = space["custom_model"]()
    model.compile(space["optimizer"](), space["loss"], metrics=["sparse_categorical_accuracy"])
    model.fit(x, y, batch_size=MINIBATCH, epochs=EPOCHS, verbose=0)
    return float(model.evaluate(*test, verbose=0)[1])


@pytest.mark.repetition
def test_a_sorted_file_trains_within_one_point_of_keras_fit(tmp_path: Path) -> None:
    x, y = draw_records(RECORDS, seed=2)
    test = draw_records(4_000, seed=3)
    order = np.argsort(y, kind="stable")
    job_folder = JobFolder.make(
        tmp_path,
        "sorted",
        "sorted_rows.custom_model",
        zoo=write_module(tmp_path, "sorted_rows", MODEL),
        data={
            "training": str(write_rows(tmp_path / "train.csv", x[order], y[order])),
            "validation": str(write_rows(tmp_path / "test.csv", *test)),
            "reader": {"header": False},
        },
        train={"epochs": EPOCHS, "minibatch_size": MINIBATCH},
        workers={"max": 1},
    )
    with job_folder.run() as run:
        assert run.wait() == 0, run.errors
        summary = run.summary()
    counted = recount(run.run_dir)
    assert counted.order is not None
    assert counted.order.window == 8_192, "by default, all of these rows"
    assert find_ledger_problems(counted, EPOCHS) == []
    assert read_json(run.run_dir / "status.json")["records_done"] == EPOCHS * RECORDS
    reached, aim = summary["metrics"]["accuracy"], fitted(x, y, test)
    assert reached >= aim - 0.01, f"{reached:.4f}, and keras.fit {aim:.4f}"
    print(f"{reached:.4f}, and keras.fit {aim:.4f}")
