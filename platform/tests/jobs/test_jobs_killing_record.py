"""A record that ends its worker without a word: the third time its minibatch is put aside, and the job goes on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.job_folder import write_examples
from support.job_process import edl

pytestmark = [pytest.mark.jobs, pytest.mark.tensorflow]

RECORDS, MINIBATCH, BAD = 96, 8, 45
"""``BAD`` is the record that ends its worker."""

MODULE = """
import os
import signal

import keras
import tensorflow as tf

from edl.data import open_reader


def model():
    x = keras.Input([1], name="x")
    return keras.Model(x, keras.layers.Dense(1, kernel_initializer="zeros")(x))


def in_loss(label):
    if (label.numpy() == -1.0).any():
        LOSS


def in_feed(label):
    if label.numpy() == -1.0:
        FEED
    return label


def loss(labels, predictions):
    with tf.control_dependencies([tf.py_function(in_loss, [labels], [])]):
        return tf.reduce_mean(tf.square(labels - predictions))


def optimizer():
    return keras.optimizers.SGD(0.01)


def eval_metrics_fn():
    return {"error": keras.metrics.MeanAbsoluteError()}


def feed(dataset, mode, metadata):
    def parsed(record):
        kinds = {"x": tf.io.FixedLenFeature([1], tf.float32), "y": tf.io.FixedLenFeature([1], tf.float32)}
        found = tf.io.parse_single_example(record, kinds)
        return found["x"], tf.ensure_shape(tf.py_function(in_feed, [found["y"]], tf.float32), [1])

    return dataset.map(parsed)
"""

READER = """

class Reader:
    def __init__(self, path):
        self.inner = open_reader(path)
        self.metadata = self.inner.metadata

    def sources(self):
        return self.inner.sources()

    def read(self, source, start, end, on_corrupt=None):
        if start <= BAD < end:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner.read(source, start, end, on_corrupt)


def custom_data_reader(path):
    return Reader(path)
"""
KILL, EXIT = "os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)"
ENDS = {
    "killed in the loss": {"LOSS": KILL},
    "killed in feed": {"FEED": KILL},
    "exit 0 in the loss": {"LOSS": EXIT},
    "exit 0 in feed": {"FEED": EXIT},
    "killed in the reader": {},
}
START = BAD // MINIBATCH * MINIBATCH


def run(folder: Path, ends: str, on_crashing_range: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Train on records of which one ends its worker."""
    places = {"LOSS": "pass", "FEED": "pass", **ENDS[ends]}
    module = MODULE + (READER.replace("BAD", str(BAD)) if not ENDS[ends] else "")
    for job_folder, what in places.items():
        module = module.replace(f"        {job_folder}\n", f"        {what}\n")
    (folder / "zoo").mkdir()
    (folder / "zoo" / "deadly.py").write_text(module)
    rows = ({"x": [i / RECORDS], "y": [-1.0 if i == BAD else 1.0]} for i in range(RECORDS))
    write_examples(folder / "rows.recordio", rows)
    spec = {
        "apiVersion": "edl.dev/v1",
        "name": "deadly",
        "model": {"zoo": "zoo", "definition": "deadly.model"},
        "data": {"training": ["rows.recordio"]},
        "train": {
            "epochs": 1,
            "minibatch_size": MINIBATCH,
            "minibatches_per_task": 8,
            "on_crashing_range": on_crashing_range,
            "shuffle": {"window": 0},  # the range is one of the file: its records are told by number below
        },
        "export": None,
        "workers": {"max": 1},
        **more,
    }
    (folder / "job.json").write_text(json.dumps(spec))
    return edl("run", "job.json", cwd=folder, timeout=170.0)


REPETITION = pytest.mark.repetition


@pytest.mark.parametrize(
    ("ends", "more"),
    [
        pytest.param("killed in the loss", {}, marks=REPETITION),
        pytest.param("killed in feed", {}),
        pytest.param("killed in feed", {"strategy": {"overlap": True}}, marks=REPETITION),
        pytest.param("exit 0 in the loss", {}, marks=REPETITION),
        pytest.param("exit 0 in feed", {}, marks=REPETITION),
        pytest.param("killed in the reader", {}, marks=REPETITION),
    ],
)
def test_a_record_that_ends_its_workers_is_put_aside(tmp_path: Path, ends: str, more: dict[str, Any]) -> None:
    ended = run(tmp_path, ends, "skip", **more)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (run_dir,) = (tmp_path / ".edl" / "local" / "deadly").glob("r1")
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    (aside,) = [event for event in events if event["event"] == "quarantined"]
    assert (aside["start"], aside["end"]) == (START, START + MINIBATCH)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["workers_lost"] == 3
    assert summary["records_done"] == RECORDS - MINIBATCH


@pytest.mark.repetition
def test_a_job_that_ends_with_such_a_record_names_its_minibatch(tmp_path: Path) -> None:
    ended = run(tmp_path, "killed in feed", "fail")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    rows = tmp_path / "rows.recordio"
    assert f"records {START} to {START + MINIBATCH - 1} of {rows} made workers crash 3 times" in ended.stderr
