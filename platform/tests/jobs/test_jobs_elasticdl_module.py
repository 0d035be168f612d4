"""A module with the imports and shapes of ElasticDL's zoo trains, evaluates and predicts under every strategy.

It needs the distribution elasticdl-compat, and nothing of it is written for EDL.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.job_folder import JobFolder

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(400), pytest.mark.tensorflow]

FOLDER = Path(__file__).resolve().parents[3] / "elasticdl-compat"
CONFIG = """
TOWNS = ["Ulm", "Bonn"]
AGES = [18.0, 40.0]
JOB_BINS = 16
OFFSETS = [0, 3, 19]
IDS = 22
"""
MODULE = """
import json
import os

import tensorflow as tf

from elasticdl.python.common.constants import Mode
from elasticdl.python.common.log_utils import default_logger as logger
from elasticdl.python.data.odps_io import ODPSWriter, is_odps_configured
from elasticdl.python.elasticdl.callbacks import LearningRateScheduler
from elasticdl.python.worker.prediction_outputs_processor import BasePredictionOutputsProcessor
from elasticdl_preprocessing.layers import SparseEmbedding
from elasticdl_preprocessing.layers.concatenate_with_offset import ConcatenateWithOffset
from elasticdl_preprocessing.layers.discretization import Discretization
from elasticdl_preprocessing.layers.hashing import Hashing
from elasticdl_preprocessing.layers.index_lookup import IndexLookup
from elasticdl_preprocessing.layers.to_sparse import ToSparse
from elasticdl_preprocessing.utils.decorators import declare_model_inputs
from model_zoo.people.config import AGES, IDS, JOB_BINS, OFFSETS, TOWNS


@declare_model_inputs("wide", "deep")
class Classifier(tf.keras.Model):
    def __init__(self):
        super(Classifier, self).__init__()
        self.hidden = tf.keras.layers.Dense(4, activation="relu")
        self.out = tf.keras.layers.Dense(1)

    def call(self, inputs):
        wide, deep = inputs
        logits = wide + self.out(self.hidden(deep))
        return {"logits": logits, "probs": tf.reshape(tf.sigmoid(logits), (-1,))}


def custom_model():
    types = {"town": tf.string, "job": tf.string, "age": tf.float32}
    given = {name: tf.keras.layers.Input(name=name, shape=(1,), dtype=dtype) for name, dtype in types.items()}
    ids = ConcatenateWithOffset(OFFSETS)([
        IndexLookup(TOWNS)(ToSparse()(given["town"])),
        Hashing(JOB_BINS)(ToSparse()(given["job"])),
        Discretization(AGES)(ToSparse()(given["age"])),
    ])
    wide = SparseEmbedding(input_dim=IDS, output_dim=1)(ids)
    deep = SparseEmbedding(input_dim=IDS, output_dim=4)(ids)
    return tf.keras.Model(inputs=given, outputs=Classifier()((wide, deep)))


def loss(labels, predictions):
    labels = tf.cast(tf.reshape(labels, (-1, 1)), tf.float32)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=predictions["logits"]))


def optimizer(lr=0.05):
    return tf.optimizers.Adam(lr)


def callbacks():
    return [LearningRateScheduler(lambda model_version: 0.05 if model_version < 60 else 0.02)]


def feed(dataset, mode, metadata):
    places = {name: at for at, name in enumerate(metadata.column_names)}

    def parse(row):
        features = {"town": row[places["town"]:][:1], "job": row[places["job"]:][:1]}
        features["age"] = tf.strings.to_number(row[places["age"]:][:1])
        if mode == Mode.PREDICTION:
            return features
        return features, tf.strings.to_number(row[places["label"]], tf.int64)

    dataset = dataset.map(parse)
    return dataset.shuffle(64) if mode == Mode.TRAINING else dataset


def eval_metrics_fn():
    return {
        "logits": {
            "accuracy": lambda labels, predictions: tf.equal(
                tf.cast(tf.reshape(predictions, [-1]) > 0.0, tf.int32), tf.cast(tf.reshape(labels, [-1]), tf.int32)
            )
        },
        "probs": {"auc": tf.keras.metrics.AUC()},
    }


class PredictionOutputsProcessor(BasePredictionOutputsProcessor):
    def __init__(self):
        self.writer = ODPSWriter("project") if is_odps_configured() else None

    def process(self, predictions, worker_id):
        logger.info("worker %d: %d", worker_id, len(predictions["probs"].numpy()))
        with open("predicted.jsonl", "a") as file:
            file.write(json.dumps(predictions["probs"].numpy().tolist()) + "\\n")
"""


@pytest.fixture(scope="module")
def job_folder(tmp_path_factory: pytest.TempPathFactory) -> JobFolder:
    folder = tmp_path_factory.mktemp("elasticdl")
    zoo = folder / "model_zoo"
    (zoo / "people").mkdir(parents=True)
    (zoo / "people" / "config.py").write_text(CONFIG)
    (zoo / "people" / "wide_deep.py").write_text(MODULE)
    random = np.random.default_rng(0)
    lines = ["town,age,job,label"]
    for _ in range(600):
        town, age, job = (
            random.choice(["Ulm", "Bonn", "?", ""]),
            random.integers(10, 60),
            random.choice(["clerk", "smith", ""]),
        )
        lines.append(f"{town},{age},{job},{int(town == 'Ulm' or age >= 40)}")
    (folder / "people.csv").write_text("\n".join(lines) + "\n")
    data = dict.fromkeys(("training", "validation", "prediction"), str(folder / "people.csv"))
    train = {"minibatch_size": 20, "minibatches_per_task": 2, "epochs": 4}
    return JobFolder.make(folder, "people", "people.wide_deep.custom_model", zoo=zoo, data=data, train=train)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages are found without being installed."""
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))


def check_training(job_folder: JobFolder, strategy: str) -> None:
    # The tables are on parameter servers, where there are some.
    options = ["--set", f"strategy.name={strategy}", "--set", "ps.embedding_threshold=0"]
    with job_folder.run(*options) as run:
        summary = run.summary()
    assert summary["records_done"] == 2400
    assert summary["metrics"]["logits_accuracy"] > 0.9


def test_it_trains_with_parameter_servers_and_predicts(job_folder: JobFolder, tmp_path: Path) -> None:
    check_training(job_folder, "ParameterServer")
    with job_folder.predict(tmp_path / "out") as run:
        run.summary()
    predicted = [json.loads(line) for line in (job_folder.folder / "predicted.jsonl").read_text().splitlines()]
    assert sum(map(len, predicted)) == 600


@pytest.mark.repetition
@pytest.mark.parametrize("strategy", ["AllReduce", "Local"])
def test_it_trains_without_them(job_folder: JobFolder, strategy: str) -> None:
    check_training(job_folder, strategy)
