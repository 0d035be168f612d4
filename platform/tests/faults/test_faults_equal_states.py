"""The states of real workers: equal to the bit with compressed gradients and kills, and a divergence stops the job."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from signal import SIGKILL

import numpy as np
import pytest
from faults.job_assertions import world_of
from faults.kill_points import order_kills, wait_for_kills
from faults.step_log_job import StepLogJob
from jobs.plain_keras import QUIET
from support.job_process import edl

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(400),
    pytest.mark.repetition,
    pytest.mark.filterwarnings(QUIET),
]

RECORDS, BATCH = 480, 24
MODULE = """

import keras
import tensorflow as tf


def custom_model():
    x = keras.Input([4])
    hidden = keras.layers.Dense(16, activation="tanh", name="hidden")(x)
    return keras.Model(x, keras.layers.Dense(1, name="output")(hidden))


loss = "mse"
optimizer = keras.optimizers.Adam(0.003)


def eval_metrics_fn():
    return {}


def feed(dataset, mode, metadata):
    def parse(row):
        row = paced(tf.strings.to_number(row, tf.float32))
        return row[:4], row[4:]

    return dataset.map(parse)
"""
"""A regression that a thousand steps learn well."""
SPOIL = """

class Spoil(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if takes_order("spoil"):
            kernel = self.model.get_layer("output").kernel
            kernel.assign(kernel + 1e-3)
            write_log("spoiled", os.getpid(), batch)


def callbacks():
    return [Spoil()]
"""
"""The first worker that finds the order changes a variable, and no other one does."""


def make_job(folder: Path, module: str, *, workers: int, epochs: int, compression: str = "none") -> StepLogJob:
    random = np.random.default_rng(7)
    x = np.round(random.normal(size=(RECORDS, 4)) * 64) / 64
    y = np.sin(x @ [[1.0], [-2.0], [0.5], [1.5]]) + random.normal(size=(RECORDS, 1)) * 0.3
    return StepLogJob.make(
        folder,
        "regression",
        module,
        np.hstack([x, np.round(y * 64) / 64]),
        workers=workers,
        epochs=epochs,
        global_batch=BATCH,
        strategy={"gradient_compression": compression},
        validates=True,
        checkpoint=None,
    )


def train_plainly(job: StepLogJob, steps: list[list[int]]) -> float:
    """The loss that plain Keras reaches with the same records in each step."""
    import keras

    scope: dict[str, object] = {}
    exec(MODULE, scope)
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    model = scope["custom_model"]()  # type: ignore[operator]
    model.compile(keras.optimizers.Adam(0.003), "mse")
    x, y = job.rows[:, :4].astype(np.float32), job.rows[:, 4:].astype(np.float32)
    for step in steps:
        model.train_on_batch(x[step], y[step])
    return float(model.evaluate(x, y, batch_size=RECORDS, verbose=0))


def test_compressed_gradients_reach_nearly_the_same_loss_with_equal_bits_on_all_workers(tmp_path: Path) -> None:
    job = make_job(tmp_path, MODULE, workers=2, epochs=40, compression="bfloat16")
    with job.run() as run:
        world_of(run, 2)
        run.wait_step(50)
        known = len(run.lines)
        run.send("worker", 0, SIGKILL)
        world_of(run, 2, after=known)
        summary, steps = job.check_end(run, lost=1)
    expected = train_plainly(job, steps)
    assert expected < 0.3, "nothing was learned"
    assert summary["metrics"]["loss"] == pytest.approx(expected, rel=0.01)
    digests: dict[int, list[int]] = defaultdict(list)
    for _, step, _, digest in job.read_log("digests"):
        digests[step].append(digest)
    assert sum(len(each) > 1 for each in digests.values()) > 3
    assert all(len(set(each)) == 1 for each in digests.values())


def test_a_variable_that_one_worker_changes_stops_the_job_and_is_named(tmp_path: Path) -> None:
    job = make_job(tmp_path, MODULE + SPOIL, workers=3, epochs=1000)
    with job.run() as run:
        world_of(run, 3)
        run.wait_step(50)
        wait_for_kills(order_kills(tmp_path, "spoil"))
        index_of_pid = {pid: index for index, pid in run.pids("worker").items()}
        job.hurry()
        assert run.wait(120) == 2
        summary = run.lines[-1]
    ((_, pid, _),) = job.read_log("spoiled")
    worker = index_of_pid[pid]
    reason = json.dumps(summary)
    assert f"worker-{worker} (rank " in reason
    assert "has another value of 'dense/output/kernel' than worker-" in reason
    why = edl("why", "regression", "--local", cwd=tmp_path)
    assert why.returncode == 0, why.stderr
    output = " ".join(why.stdout.split())
    assert f"worker-{worker} (rank " in output
    assert "has another value of 'dense/output/kernel' than worker-" in output
    assert "look for code of the model, the optimizer or a callback that assigns other values in one process" in output


def test_a_worker_that_starts_after_the_loss_was_edited_is_refused_with_the_file(tmp_path: Path) -> None:
    """Its variables are those of the others; trained with another loss, nothing would show that."""
    job = make_job(tmp_path, MODULE, workers=2, epochs=1000)
    module = tmp_path / "zoo" / "regression.py"
    with job.run() as run:
        world_of(run, 2)
        run.wait_step(20)
        module.write_text(module.read_text().replace('loss = "mse"', 'loss = "mae"'))
        run.send("worker", 1, SIGKILL)
        assert run.wait(120) == 2
        reason = json.dumps(run.lines[-1])
    assert "worker-2 and worker-0 have different models: regression.py has other code on worker-0" in reason
    assert "--resume" in reason
