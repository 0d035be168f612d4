"""Checkpoints of a job with several workers and parameter servers, of which a worker is killed and another one joins.

The second half of bench/checkpoint_stall.py. A checkpoint is beside a joining worker if any of it lies between the
SIGKILL of one and the tenth step of its successor, which imports TensorFlow, is granted a lease and traces its model.
The same is looked for half-way between two checkpoints, for as long as each takes: what the machine does anyway.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from signal import SIGKILL
from statistics import median
from typing import Any

from figures import BenchFigure
from script import print_progress
from stalls import (
    LINE,
    SavedCheckpoint,
    Window,
    beyond_usual,
    checkpoint_windows,
    each_saved,
    longest_step,
    read_checkpoints,
    read_steps,
    step_logs,
    windows_between,
)
from support.job_process import JobProcess

ZOO = Path(__file__).with_name("zoo")
WORKERS, SERVERS = 3, 2
EVERY = 20
"""Steps from one checkpoint to the next: less than a second with all workers."""
BEFORE = 3
"""Checkpoints before each kill; the first may have been due while the last worker joined."""
SETTLE_STEPS = 10
MINIBATCH, MINIBATCHES = 64, 64
LONGEST_SECONDS = 90.0
POLL_SECONDS = 0.1


def job(folder: Path) -> Path:
    """Write the job file."""
    spec = {
        "apiVersion": "edl.dev/v1",
        "name": "joining",
        "model": {"zoo": str(ZOO), "definition": "slow_step.custom_model"},
        "data": {"training": str(ZOO / "slow_step.py"), "reader": {"records": 1_000_000}},
        "train": {"epochs": 1000, "minibatch_size": MINIBATCH, "minibatches_per_task": MINIBATCHES},
        "checkpoint": {"every_steps": EVERY, "keep": 1},
        "export": None,
        "ps": {"count": SERVERS},
        "workers": {"max": WORKERS},
    }
    file = folder / "joining.json"
    file.write_text(json.dumps(spec))
    return file


def run_job(folder: Path, kept: Path, kills: int) -> tuple[list[SavedCheckpoint], list[Window]]:
    """Returns the checkpoints, and for each kill the time from it until the successor had settled."""
    joins: list[Window] = []
    with JobProcess(job(folder), cwd=folder) as run:
        for index in range(WORKERS):
            wait_settled(kept, run.wait_event("role_started", role="worker", index=index)["pid"])
        began = len(run.lines)
        for number in range(kills):
            wait_saved(run, BEFORE)
            lines_before = len(run.lines)
            killed = run.send("worker", min(run.pids("worker")), SIGKILL)
            wait_settled(kept, run.wait_event("role_started", after=lines_before, role="worker")["pid"])
            joins.append((killed, time.time()))
            print_progress(
                f"worker {number + 1} of {kills} joined {joins[-1][1] - killed:.1f} s after the kill of another"
            )
        wait_saved(run, BEFORE)
        lines = [line for line in run.lines[began:] if line["event"] == "checkpoint_saved"]
        run.interrupt()
        run.wait(LONGEST_SECONDS)
    return read_checkpoints(lines, EVERY), joins


def wait_settled(kept: Path, worker: int) -> None:
    """Wait until a process has made its first steps, which are slow."""
    until = time.monotonic() + LONGEST_SECONDS
    step_log = kept / str(worker)
    while not step_log.exists() or step_log.stat().st_size < 8 * LINE * SETTLE_STEPS:
        if time.monotonic() > until:
            raise TimeoutError(f"a worker has not made {SETTLE_STEPS} steps in {LONGEST_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


def wait_saved(run: JobProcess, count: int) -> None:
    """Wait for so many checkpoints more."""
    for _ in islice(each_saved(run, LONGEST_SECONDS), count):
        pass


@dataclass(frozen=True)
class JoiningSplit:
    """Seconds of windows, by whether a worker was joining.

    Attributes:
        joins: the most beside each join: of several checkpoints only one or two meet a new worker's first step.
        settled: of each window that meets no join.
    """

    joins: Sequence[float]
    settled: Sequence[float]


def split_values(values: Sequence[float], of: Sequence[Window], joins: Sequence[Window]) -> JoiningSplit:
    """Each value is of the window at its place."""
    paired = list(zip(of, values, strict=True))
    beside = [[value for window, value in paired if windows_overlap(window, join)] for join in joins]
    settled = [value for window, value in paired if not any(windows_overlap(window, join) for join in joins)]
    return JoiningSplit([max(join_values) for join_values in beside if join_values], settled)


def windows_overlap(one: Window, other: Window) -> bool:
    """Whether two windows have a time in common."""
    return one[0] < other[1] and other[0] < one[1]


def measure(folder: Path, kills: int) -> tuple[tuple[BenchFigure, ...], dict[str, Any]]:
    """Figures, and what is behind them."""
    with step_logs() as log_folder:
        saved, joins = run_job(folder, log_folder, kills)
        workers = [read_steps(step_log, SETTLE_STEPS) for step_log in log_folder.iterdir()]
    windows = checkpoint_windows(workers, saved, together=WORKERS)
    none = windows_between(windows)
    workers = beyond_usual(workers, windows)
    stalls = split_values([longest_step(workers, window) for window in windows], windows, joins)
    quiet = split_values([longest_step(workers, window) for window in none], none, joins)
    pauses = split_values([one.pause for one in saved], windows, joins)
    details = {"stalls": asdict(stalls), "between": asdict(quiet), "pause_seconds": asdict(pauses)}
    return figures(stalls, quiet, pauses), details | {"join_seconds": [until - since for since, until in joins]}


def figures(stalls: JoiningSplit, quiet: JoiningSplit, pauses: JoiningSplit) -> tuple[BenchFigure, ...]:
    """Medians, and the worst beside them; what is required is required while a worker joins."""
    name = f"checkpoint, {WORKERS} workers, {SERVERS} PS"
    stall, pause = "longest stall of a worker", "updates pause"

    def median_figure(
        what: str, seconds: Sequence[float], limit: float | None = None, aim: float | None = None
    ) -> BenchFigure:
        return BenchFigure(f"{name}, {what}", 1e3 * median(seconds), "ms", limit, aim=aim)

    def worst_figure(what: str, seconds: Sequence[float]) -> BenchFigure:
        return BenchFigure(f"{name}, {what}, the worst of {len(seconds)}", 1e3 * max(seconds), "ms")

    return (
        median_figure(f"one joining: {stall}", stalls.joins, 50.0, 20.0),
        worst_figure(f"one joining: {stall}", stalls.joins),
        median_figure(f"one joining: {stall} while there is none", quiet.joins),
        median_figure(f"one joining: {pause}", pauses.joins),
        worst_figure(f"one joining: {pause}", pauses.joins),
        median_figure(f"none joining: {stall}", stalls.settled),
        worst_figure(f"none joining: {stall}", stalls.settled),
        median_figure(f"none joining: {pause}", pauses.settled),
        worst_figure(f"none joining: {pause}", pauses.settled),
    )
