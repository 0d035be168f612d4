"""Programs that take steps together: the state shows that every record was applied exactly once, whoever is killed."""

from __future__ import annotations

from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from typing import Any

import numpy as np
import pytest
from jobs.test_jobs_programs import RECORDS, hurry, make_job
from support.job_folder import JobFolder
from support.job_process import JobProcess
from support.repetition import repetition

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(240)]

EPOCHS = 2

# Record i adds 1 to element i, so the state says which records were applied, and how often.
COUNTS = """
    import os, time
    import numpy as np
    from edl.sharding import Client, WorkerLeaving

    counts, steps = np.zeros(600), 0

    def load(state):
        global steps
        counts[:], steps = state["counts"], state["steps"]

    with Client.from_env() as client:
        worlds = open(f"worlds-{client.uid}", "a", buffering=1)
        for step in client.steps(
            {"counts": counts},
            lambda: {"counts": counts, "steps": steps, "note": "x"},
            load,
            reduction="sum",
            on_world=lambda world: worlds.write(f"{world.round} {os.environ['RANK']} {os.environ['WORLD_SIZE']}\\n"),
        ):
            with step:
                added = np.zeros_like(counts)
                if step.batch is not None:
                    for record in step.batch:
                        added[int(record)] += 1
                if not os.path.exists("hurry"):
                    time.sleep(0.02)
                sums = step.allreduce(
                    {"counts": added}, weight=1.0, loss=float(step.batch is not None)
                )["counts"]
                counts += sums
                steps += 1
        if client.world is not None:
            np.save(f"counts-{client.uid}.npy", counts)
"""


def make_counting_job(folder: Path, program: str = COUNTS, **sections: Any) -> JobFolder:
    return make_job(folder, program, strategy={"name": "AllReduce"}, **sections)


def check_counts(job: JobFolder, run: JobProcess) -> None:
    hurry(job)
    summary = run.summary(120)
    assert run.wait() == 0
    assert summary["records_done"] == summary["records_total"] == EPOCHS * RECORDS
    assert summary["records_lost"] == 0
    count_arrays = [np.load(file) for file in job.folder.glob("counts-*.npy")]
    assert count_arrays
    for counts in count_arrays:
        np.testing.assert_array_equal(counts, np.full(RECORDS, EPOCHS))


@pytest.mark.repetition
def test_workers_add_their_records_to_one_state(tmp_path: Path) -> None:
    job = make_counting_job(tmp_path / "a")
    with job.run() as run:
        run.wait_event("world_changed", workers=2)
        check_counts(job, run)
    worlds = [file.read_text().splitlines()[-1].split() for file in job.folder.glob("worlds-*")]
    assert sorted(world[1:] for world in worlds) == [["0", "2"], ["1", "2"]]


@pytest.mark.parametrize("signal", [SIGKILL, repetition(SIGTERM)])
def test_a_lost_worker_costs_no_record(tmp_path: Path, signal: int) -> None:
    job = make_counting_job(tmp_path / "a", workers=3)
    with job.run() as run:
        run.wait_step(10)
        run.send("worker", 0, signal)
        run.wait_event("role_started", role="worker", index=3)
        check_counts(job, run)


@pytest.mark.repetition
def test_a_stopped_worker_is_left_behind_and_its_old_state_counts_for_nothing(tmp_path: Path) -> None:
    job = make_counting_job(tmp_path / "a", workers=3)
    with job.run() as run:
        run.wait_step(10)
        run.send("worker", 1, SIGSTOP)
        run.wait_event("world_changed", workers=2)
        run.wait_step(run.status()["step"] + 3)
        run.send("worker", 1, SIGCONT)
        run.wait_event("world_changed", workers=3)
        check_counts(job, run)


@pytest.mark.repetition
def test_steps_go_on_while_the_master_is_replaced(tmp_path: Path) -> None:
    job = make_counting_job(tmp_path / "a")
    with job.run() as run:
        run.wait_step(10)
        run.send("master", 0, SIGKILL)
        check_counts(job, run)


@pytest.mark.repetition
def test_all_workers_are_lost_and_others_go_on_from_the_checkpoint(tmp_path: Path) -> None:
    job = make_counting_job(tmp_path / "a", checkpoint={"every_steps": 5})
    with job.run() as run:
        run.wait_step(20)
        for index in range(2):
            run.send("worker", index, SIGKILL)
        check_counts(job, run)


@pytest.mark.repetition
def test_an_interrupted_run_goes_on_with_its_state(tmp_path: Path) -> None:
    job = make_counting_job(tmp_path / "a", checkpoint={"every_steps": 5})
    with job.run() as run:
        run.wait_step(20)
        run.interrupt()
        assert run.wait() == 130
    for file in job.folder.glob("counts-*.npy"):  # of workers whose steps ended before they were told to go
        file.unlink()
    with job.run("--resume", "r1", "--set", "workers.max=3") as run:
        check_counts(job, run)


# Slow until told to hurry: the world of three must come while there are records left.
SHARES = (
    COUNTS.replace(
        "            with step:\n",
        """            with step:
                if step.batch is not None:
                    sizes.write(f"{step.number} {len(step.batch)}\\n")
""",
        1,
    )
    .replace(
        "        worlds = open(",
        '        sizes = open(f"sizes-{client.uid}", "a", buffering=1)\n        worlds = open(',
        1,
    )
    .replace("time.sleep(0.02)", "time.sleep(0.2)")
)


def whole_shares(job: JobFolder) -> list[list[int]]:
    """What the workers have had of each step whose shares are a whole batch of 25 records."""
    by_step: dict[int, list[int]] = {}
    for file in job.folder.glob("sizes-*"):
        for number, size in {tuple(map(int, line.split())) for line in file.read_text().splitlines() if " " in line}:
            by_step.setdefault(number, []).append(size)
    return [sorted(sizes) for sizes in by_step.values() if sum(sizes) == 25]


@pytest.mark.repetition
def test_a_global_batch_is_divided_anew_for_each_world_and_each_record_is_applied_once(tmp_path: Path) -> None:
    strategy = {"name": "AllReduce", "global_batch": 25}
    job = make_job(tmp_path / "a", SHARES, workers=3, strategy=strategy)
    with job.run() as run:
        # Of the last one of these, the workers have only begun the step.
        run.wait_status(lambda _: whole_shares(job).count([8, 8, 9]) > 2)
        run.send("worker", 0, SIGKILL)
        run.wait_event("world_changed", workers=2)
        check_counts(job, run)
    shares = whole_shares(job)
    assert [8, 8, 9] in shares
    # Those of a step that was given up, and of the last ones of an epoch, have other sums.
    assert len(shares) > EPOCHS * RECORDS / 25 / 2
