"""Strategy AllReduce under faults of real processes: the parameters are the sum over all records, to the bit.

The loss is a sum, numbers are small integers and the learning rate is a power of two, so the order of the steps does
not matter, and a record that is lost or counted twice shows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import keras
import numpy as np
import pytest
from faults.conftest import Measure
from faults.job_assertions import world_of
from faults.kill_points import order_kills, wait_for_kills, wait_for_workers
from faults.linear_job import LinearJob
from support.job_process import JobProcess, Line, edl
from support.journal_bytes import read_entries

from edl.simulation.counted_steps import CountedStep

pytestmark = pytest.mark.faults

Make = Callable[..., LinearJob]


@pytest.fixture
def all_reduce(linear: Make) -> Make:
    """Makes such a job."""

    def make(workers: int = 3, strategy: dict[str, object] | None = None, **fields: object) -> LinearJob:
        # A step takes 80 ms. Three workers train for 40 s unless the test hurries them.
        default: dict[str, object] = {"records": 12_000, "record_seconds": 0.01, "checkpoint": None}
        named = {"name": "AllReduce", **(strategy or {})}
        job = linear(workers=workers, strategy=named, export={}, **default | fields)
        del job.spec["ps"]
        job.job_folder.file.write_text(json.dumps(job.spec))
        return job

    return make


def check_end(
    job: LinearJob, run: JobProcess, *, lost: int = 0, silent: int = 0, told: int = 0, rolled_back: bool = False
) -> Line:
    """Wait for the end: the ledger has every record once, and the exported model is their sum.

    Args:
        job: what was to be done.
        run: who does it.
        lost: workers that ended before their work did.
        silent: workers that were lost and live.
        told: of the lost ones, those that were told to go: they leave at a boundary and repeat nothing.
        rolled_back: whether no worker was left that had the newest state.
    """
    job.hurry()
    summary = run.summary(400)
    assert summary["records_lost"] == 0
    assert summary["records_done"] == summary["records_total"] == job.total
    assert summary["workers_lost"] == lost
    assert bool(summary["records_rolled_back"]) == rolled_back
    # With a global batch, a share of a step, which is not larger than the step.
    share = int(job.spec["strategy"].get("global_batch", job.minibatch))
    assert summary["records_repeated"] <= (lost - told + silent) * share
    all_records = [
        CountedStep(0, 0, epoch, source, 0, len(records.y))
        for epoch in range(job.epochs)
        for source, records in job.records.items()
    ]
    expected = job.expected(all_records)
    model = keras.saving.load_model(run.run_dir / "export" / "model.keras", compile=False)
    for name in "abcd":
        kernel, bias = model.get_layer(name).get_weights()
        np.testing.assert_array_equal(kernel, expected[f"{name}/kernel"])
        np.testing.assert_array_equal(bias, expected[f"{name}/bias"])
    return summary


def first_steps_after(run_dir: Path, at: float) -> float:
    """When steps were entered first after ``at``, in unix seconds; read from the journal as it grows."""
    known = sum(entry["kind"] == "world_started" for entry in read_entries(run_dir / "journal"))
    until = time.monotonic() + 30.0
    while time.monotonic() < until:
        if sum(entry["kind"] == "world_started" for entry in read_entries(run_dir / "journal")) > known:
            return time.time()
        time.sleep(0.005)
    raise AssertionError(f"no round started within 30 s after {at}")


def test_workers_are_killed(all_reduce: Make, measure: Measure) -> None:
    job = all_reduce(records=6_000, record_seconds=0.02)  # as long as the others, with half of the steps
    with job.start() as run:
        world_of(run, 3)
        run.wait_step(25)
        at = run.send("worker", 1, SIGKILL)
        measure("AllReduce: worker SIGKILL to the next round", first_steps_after(run.run_dir, at) - at)
        run.wait_event("role_started", role="worker", index=3)
        summary = check_end(job, run, lost=1)
    assert summary["records_repeated"] > 0, "it had a lease, and so perhaps a minibatch in progress"


@pytest.mark.repetition
def test_workers_are_killed_and_stopped_with_a_global_batch(all_reduce: Make) -> None:
    job = all_reduce(strategy={"global_batch": 46})
    with job.start() as run:
        world_of(run, 3)
        run.wait_step(50)
        known = len(run.lines)
        run.send("worker", 1, SIGKILL)
        run.wait_event("role_started", role="worker", index=3)
        world_of(run, 3, after=known)
        run.send("worker", 0, SIGTERM)
        summary = check_end(job, run, lost=2, told=1)
        entries = read_entries(run.run_dir / "journal")
    # Without the records of a killed worker, which are tried alone, all steps but the last of an epoch are full.
    full = job.total // 46
    steps = max(entry["step"] for entry in entries if entry["kind"] in ("steps", "world_started"))
    assert full <= steps <= full + job.epochs + 60, summary


@pytest.mark.repetition
@pytest.mark.timeout(800)
def test_workers_are_killed_at_each_point_of_a_step(all_reduce: Make) -> None:
    """Before its gradient, before and within the reduction, before and after its update; also two in one step."""
    job = all_reduce(kill_points=True, records=120_000)
    points = [("compute", 1), ("computed", 1), ("reducing", 1), ("reduced", 1), ("applied", 1), ("reduced", 2)]
    with job.start() as run:
        known = 0
        for point, count in points:
            world_of(run, 3, after=known)
            known = len(run.lines)
            wait_for_kills(order_kills(job.job_folder.folder, point, count))
        world_of(run, 3, after=known)
        check_end(job, run, lost=sum(count for _, count in points))


@pytest.mark.repetition
@pytest.mark.timeout(800)
def test_workers_are_killed_at_each_point_of_a_change_of_the_world(all_reduce: Make) -> None:
    """After the death of one: who is about to confirm the next round, a worker that fetches the state, its source.

    These two before the transfer, behind it, and within it.
    """
    job = all_reduce(kill_points=True, records=120_000)
    points = ["confirm", "fetch", "serve", "sending", "receiving"]
    with job.start() as run:
        known = 0
        for point in points:
            world_of(run, 3, after=known)
            known = len(run.lines)
            taken_files = order_kills(job.job_folder.folder, point)
            run.send("worker", min(run.pids("worker")), SIGKILL)
            wait_for_kills(taken_files)
        world_of(run, 3, after=known)
        check_end(job, run, lost=2 * len(points))


@pytest.mark.repetition
def test_the_only_worker_that_applied_a_step_is_killed(all_reduce: Make) -> None:
    job = all_reduce(kill_points=True)
    with job.start() as run:
        world_of(run, 3)
        run.wait_step(20)
        wait_for_kills(order_kills(job.job_folder.folder, "only"))
        check_end(job, run, lost=1)
        entries = read_entries(run.run_dir / "journal")
    # It was the last holder of the step, which was never made: the survivors go on from the one before.
    before = max(int(file.name.split(".")[1]) for file in job.job_folder.folder.glob("only.*.2"))
    rounds_of_two = [entry for entry in entries if entry["kind"] == "world" and len(entry["members"]) == 2]
    assert rounds_of_two[-1]["step"] == before


@pytest.mark.repetition
def test_two_workers_are_killed_at_once(all_reduce: Make) -> None:
    job = all_reduce()
    with job.start() as run:
        world_of(run, 3)
        run.wait_step(50)
        for index in (0, 2):
            run.send("worker", index, SIGKILL)
        check_end(job, run, lost=2)


@pytest.mark.repetition
def test_a_worker_is_told_to_go(all_reduce: Make) -> None:
    job = all_reduce()
    with job.start() as run:
        world_of(run, 3)
        run.wait_step(50)
        run.send("worker", 0, SIGTERM)
        ended = run.wait_event("role_ended", role="worker", index=0)
        assert ended["exit_code"] == 0
        check_end(job, run, lost=1, told=1)


@pytest.mark.repetition
def test_a_worker_is_added_and_removed_by_hand(all_reduce: Make) -> None:
    job = all_reduce(1)
    with job.start() as run:
        world_of(run, 1)
        run.wait_step(20)

        def scale(workers: int) -> None:
            known = len(run.lines)
            scaled = edl("scale", "linear", "--local", "--max", str(workers), cwd=job.file.parent)
            assert scaled.returncode == 0, scaled.stderr
            world_of(run, workers, after=known)
            run.wait_status(lambda status: bool(status["workers_wanted"] == workers))

        scale(2)
        scale(1)
        # The newest one leaves at a boundary of a step, so nothing is repeated.
        ended = run.wait_event("role_ended", role="worker")
        assert (ended["index"], ended["exit_code"]) == (1, 0)
        summary = check_end(job, run)
    assert summary["records_repeated"] == 0


@pytest.mark.repetition
def test_a_worker_is_stopped_and_comes_back(all_reduce: Make) -> None:
    job = all_reduce()
    with job.start() as run:
        world_of(run, 3)
        run.wait_step(50)
        known = len(run.lines)
        run.send("worker", 1, SIGSTOP)
        world_of(run, 2, after=known)
        known = len(run.lines)
        run.send("worker", 1, SIGCONT)
        world_of(run, 3, after=known)
        check_end(job, run, silent=1)


@pytest.mark.repetition
def test_the_master_is_killed_during_a_change_of_the_world(all_reduce: Make) -> None:
    job = all_reduce()
    with job.start() as run:
        world_of(run, 3)
        run.wait_step(50)
        run.send("worker", 1, SIGKILL)
        run.send("master", 0, SIGKILL)
        check_end(job, run, lost=1)


@pytest.mark.repetition
def test_the_master_is_killed_between_the_announcement_of_a_round_and_its_start(all_reduce: Make) -> None:
    """Nobody knows which members have heard of the round, so the next master closes it."""
    job = all_reduce(kill_points=True)
    with job.start() as run:
        world_of(run, 3)
        run.wait_step(20)
        (waits,) = order_kills(job.job_folder.folder, "unconfirmed")
        run.send("worker", 1, SIGKILL)
        wait_for_workers([waits])
        run.send("master", 0, SIGKILL)
        run.wait_status(lambda status: bool(status["incarnation"] == 2))
        waits.unlink()
        check_end(job, run, lost=1)
        entries = read_entries(run.run_dir / "journal")
    kinds = [entry["kind"] for entry in entries if entry["kind"] in ("world", "world_started")]
    announced = [number for number, kind in enumerate(kinds) if kind == "world"]
    assert any(kinds[number : number + 2] == ["world", "world"] for number in announced), kinds


@pytest.mark.repetition
def test_all_workers_are_killed(all_reduce: Make) -> None:
    job = all_reduce()
    with job.start() as run:
        world_of(run, 3)
        run.wait_step(50)
        for index in range(3):
            run.send("worker", index, SIGKILL)
        check_end(job, run, lost=3, rolled_back=True)


def saved(run: JobProcess, step: int) -> Line:
    """Wait for a checkpoint of a step from ``step`` on."""
    return run.wait_line(lambda line: line["event"] == "checkpoint_saved" and line["step"] >= step)


@pytest.mark.repetition
def test_all_workers_are_killed_and_new_ones_go_on_from_the_checkpoint(all_reduce: Make) -> None:
    job = all_reduce(checkpoint={"every_steps": 50})
    with job.start() as run:
        world_of(run, 3)
        saved(run, 100)
        for index in range(3):
            run.send("worker", index, SIGKILL)
        back = run.wait_event("rolled_back")
        summary = check_end(job, run, lost=3, rolled_back=True)
    assert back["to_cut"]
    assert summary["records_rolled_back"] == back["records"] < job.total / 2


@pytest.mark.repetition
def test_a_stopped_run_is_resumed_with_another_number_of_workers(all_reduce: Make) -> None:
    job = all_reduce(checkpoint={"every_steps": 1000})
    with job.start() as run:
        world_of(run, 3)
        run.wait_step(50)
        run.interrupt()
        assert run.wait() == 130
    with job.start("--resume", "--workers", "2") as again:
        summary = check_end(job, again)
    assert summary["records_repeated"] == 0


@pytest.mark.repetition
def test_everything_is_killed_and_resumed(all_reduce: Make) -> None:
    job = all_reduce(checkpoint={"every_steps": 50})
    with job.start() as run:
        world_of(run, 3)
        # Steps behind the checkpoint, which are given up.
        run.wait_step(saved(run, 100)["step"] + 5)
        run.kill()
        run.wait_gone(2.0)
    with job.start("--resume") as again:
        check_end(job, again, lost=3, rolled_back=True)


@pytest.mark.repetition
def test_all_workers_are_told_to_go_and_nothing_is_trained_again(all_reduce: Make) -> None:
    job = all_reduce(checkpoint={"every_steps": 100000})
    with job.start() as run:
        world_of(run, 3)
        run.wait_step(50)
        for index in range(3):
            run.send("worker", index, SIGTERM)
        check_end(job, run, lost=3, told=3)
