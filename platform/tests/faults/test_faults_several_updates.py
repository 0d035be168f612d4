"""A GAN under faults of real processes: its variables are those of the model's own ``train_step`` on the same records.

In float64, so that the order of a sum plays no part. The first optimizer is Adam: its second update sees whether the
first one was lost or made twice.
"""

from __future__ import annotations

from pathlib import Path
from signal import SIGKILL
from typing import Any

import numpy as np
import pytest
from faults.job_assertions import world_of
from faults.kill_points import order_kills, wait_for_kills
from faults.step_log_job import StepLogJob
from jobs.plain_keras import QUIET, checkpoint_arrays
from support.gan_model import ADVERSARIAL, pick, train_plainly, write_gan
from support.job_folder import newest_cut
from support.job_process import JobProcess

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400), pytest.mark.filterwarnings(QUIET)]

RECORDS, BATCH = 480, 12
FEED = """
def feed(dataset, mode, metadata):
    def parse(row):
        row = paced(tf.strings.to_number(row, tf.float64))
        return {"real": row[:3], "noise": row[3:5]}, row[5:]

    return dataset.map(parse)
"""
CHANGES = {
    "def feed(dataset, mode, metadata):\n    return dataset\n": FEED,
    # Slow enough that a thousand steps do not amplify the rounding of a sum.
    "Adam(0.02)": "Adam(0.001)",
    "SGD(0.05,": "SGD(0.01,",
}
TOLERANCE = 1e-8
"""Of the norm of each variable."""


def make_gan_job(folder: Path, *, workers: int, epochs: int, record_seconds: float = 0.01) -> StepLogJob:
    write_gan(folder, ADVERSARIAL, CHANGES)
    rows = np.round(np.random.default_rng(5).normal(size=(RECORDS, 6)) * 64) / 64
    return StepLogJob.make(
        folder,
        "gan",
        (folder / "gan.py").read_text(),
        rows,
        workers=workers,
        epochs=epochs,
        global_batch=BATCH,
        record_seconds=record_seconds,
        checkpoint={"every_steps": 1_000_000},
    )


def check_gan(job: StepLogJob, run: JobProcess, *, lost: int) -> list[list[int]]:
    """Wait for the end; all variables, with those of both optimizers, are those of one process on the same steps."""
    _, steps = job.check_end(run, lost=lost)
    arrays = checkpoint_arrays(newest_cut(run.run_dir))
    records = {"real": job.rows[:, :3], "noise": job.rows[:, 3:5]}, job.rows[:, 5:]
    plain, _ = train_plainly(job.job_folder.folder, [], [pick(records, step) for step in steps])
    expected: dict[str, Any] = {f"dense/{weight.path}": weight for weight in plain.trainable_weights}
    for name in ("d_optimizer", "g_optimizer"):
        expected |= {f"slot/{name}/{at}": each for at, each in enumerate(getattr(plain, name).variables)}
    for name, variable in expected.items():
        values = variable.numpy()
        assert arrays[name].dtype == values.dtype, name
        assert np.linalg.norm(arrays[name] - values) <= TOLERANCE * np.linalg.norm(values), name
    return steps


@pytest.mark.repetition
def test_a_worker_of_a_gan_is_killed_between_two_updates_and_another_one_joins(tmp_path: Path) -> None:
    job = make_gan_job(tmp_path, workers=2, epochs=12, record_seconds=0.02)
    with job.run() as run:
        world_of(run, 2)
        run.wait_step(20)
        known = len(run.lines)
        wait_for_kills(order_kills(tmp_path, "updated"))
        world_of(run, 2, after=known)
        check_gan(job, run, lost=1)


@pytest.mark.repetition
@pytest.mark.timeout(900)
def test_workers_of_a_gan_are_killed_at_each_point_of_a_step_and_of_a_change_of_the_world(tmp_path: Path) -> None:
    """Around each of the two reductions, two in one step, and a worker that fetches the state, or serves it."""
    job = make_gan_job(tmp_path, workers=3, epochs=100, record_seconds=0.02)
    points = [("computed", 1), ("reducing", 1), ("updated", 1), ("updated", 2), ("reduced", 1), ("applied", 1)]
    with job.run() as run:
        known = lost = 0
        for point, count in points:
            world_of(run, 3, after=known)
            known = len(run.lines)
            wait_for_kills(order_kills(tmp_path, point, count))
            lost += count
        for point in ("confirm", "fetch", "serve"):
            world_of(run, 3, after=known)
            known = len(run.lines)
            taken_files = order_kills(tmp_path, point)
            run.send("worker", min(run.pids("worker")), SIGKILL)
            wait_for_kills(taken_files)
            lost += 2
        world_of(run, 3, after=known)
        check_gan(job, run, lost=lost)
