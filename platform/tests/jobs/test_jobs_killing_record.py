"""A record that ends its worker without a word: the third time its minibatch is put aside, and the job goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jobs.places import write_examples

from edl.testing.jobs import edl

pytestmark = [pytest.mark.jobs, pytest.mark.tensorflow]

RECORDS, MINIBATCH, BAD = 64, 8, 21
"""``BAD`` is the record that ends its worker."""

MODULE = """
import os
import signal

import keras
import tensorflow as tf


def model():
    x = keras.Input([1], name="x")
    return keras.Model(x, keras.layers.Dense(1, kernel_initializer="zeros")(x))


def end_by(labels):
    if (labels.numpy() == -1.0).any():
        ENDS


def loss(labels, predictions):
    with tf.control_dependencies([tf.py_function(end_by, [labels], [])]):
        return tf.reduce_mean(tf.square(labels - predictions))


def optimizer():
    return keras.optimizers.SGD(0.01)


def eval_metrics_fn():
    return {"error": keras.metrics.MeanAbsoluteError()}


def feed(dataset, mode, metadata):
    def parsed(record):
        kinds = {"x": tf.io.FixedLenFeature([1], tf.float32), "y": tf.io.FixedLenFeature([1], tf.float32)}
        found = tf.io.parse_single_example(record, kinds)
        return found["x"], found["y"]

    return dataset.map(parsed)
"""


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", id="killed"),
        pytest.param("os._exit(0)", id="exit 0", marks=pytest.mark.thorough),
    ],
)
def test_a_record_that_ends_its_workers_is_put_aside(tmp_path: Path, ends: str) -> None:
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "deadly.py").write_text(MODULE.replace("ENDS", ends))
    rows = ({"x": [i / RECORDS], "y": [-1.0 if i == BAD else 1.0]} for i in range(RECORDS))
    write_examples(tmp_path / "rows.recordio", rows)
    spec = {
        "apiVersion": "edl.dev/v1",
        "name": "deadly",
        "model": {"zoo": "zoo", "definition": "deadly.model"},
        "data": {"training": ["rows.recordio"]},
        "train": {
            "epochs": 1,
            "minibatch_size": MINIBATCH,
            "minibatches_per_task": 4,
            "on_crashing_range": "skip",
            "shuffle": {"window": 0},  # the range is one of the file: its records are told by number below
        },
        "export": None,
        "workers": {"max": 1},
    }
    (tmp_path / "job.json").write_text(json.dumps(spec))
    run = edl("run", "job.json", cwd=tmp_path, timeout=170.0)
    assert run.returncode == 0, run.stdout + run.stderr
    (run_dir,) = (tmp_path / ".edl" / "local" / "deadly").glob("r1")
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    start = BAD // MINIBATCH * MINIBATCH
    (aside,) = [event for event in events if event["event"] == "quarantined"]
    assert (aside["start"], aside["end"]) == (start, start + MINIBATCH)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["workers_lost"] == 3
    assert summary["records_done"] == RECORDS - MINIBATCH
