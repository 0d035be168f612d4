"""How long a worker stands still for a checkpoint of a large table: 10 million rows of 16 floats under Adagrad.

A real job with one worker and one PS. The first epoch touches every row once, so that the PS holds all of them; from
then on checkpoints are taken while the worker goes on. The worker says when each step was in: pull, computation, push.
A stall is the longest time from one step to the next while a checkpoint is taken and written, less the median of such
times while none is. A checkpoint counts from the step at which it is due to the event ``checkpoint_saved``. The longest
time while there is none stands beside it: what the machine does anyway.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from figures import Figure, Result, percentile
from numpy.typing import NDArray
from script import main, say

from edl.testing.jobs import JobProcess

ZOO = Path(__file__).with_name("zoo")
EACH, DIM = 100, 16
MINIBATCH, MINIBATCHES = 64, 64
LONGEST_SECONDS = 300.0
SETTLE_STEPS = 200
"""After the start of the job; its first steps are slow."""


def job(folder: Path, rows: int, every: int) -> Path:
    """Write the job file."""
    spec = {
        "apiVersion": "edl.dev/v1",
        "name": "stall",
        "model": {"zoo": str(ZOO), "definition": "many_rows.custom_model", "params": {"rows": rows, "dim": DIM}},
        "data": {"training": str(ZOO / "many_rows.py"), "reader": {"records": rows // EACH}},
        "train": {"epochs": 100_000, "minibatch_size": MINIBATCH, "minibatches_per_task": MINIBATCHES},
        "checkpoint": {"every_steps": every, "keep": 1},
        "export": None,
        "ps": {"count": 1},
        "workers": {"max": 1},
    }
    file = folder / "stall.json"
    file.write_text(json.dumps(spec))
    return file


@dataclass(frozen=True)
class Saved:
    """A checkpoint: the step at which it was due, when it was on disk, how long updates waited for its copy."""

    step: int
    at: float
    pause: float


def run_job(folder: Path, rows: int, every: int, count: int) -> tuple[list[Saved], float]:
    """Take ``count`` checkpoints of the whole table; returns them and the bytes of the last one."""
    full = -(-rows // EACH) // MINIBATCH
    found: list[Saved] = []
    after = 0
    with JobProcess(job(folder, rows, every), cwd=folder) as run:
        while len(found) < count:
            line = run.wait_line(lambda line: line["event"] == "checkpoint_saved", LONGEST_SECONDS, after)
            after = run.lines.index(line, after) + 1
            if line["step"] >= full:
                found.append(Saved(line["step"], line["time"], line["pause_seconds"]))
                say(f"checkpoint {len(found)} of {count}, at step {line['step']}")
        size = sum(file.stat().st_size for file in (run.run_dir / "checkpoints").rglob("*.safetensors"))
        run.interrupt()
        run.wait(LONGEST_SECONDS)
    return found, float(size)


def diary(path: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps, and when each was in."""
    lines = np.fromfile(path, np.float64)
    lines = lines[: len(lines) // 2 * 2].reshape(-1, 2)
    return lines[:, 0], lines[:, 1]


def stalls(
    steps: NDArray[np.float64], times: NDArray[np.float64], saved: list[Saved]
) -> tuple[list[float], NDArray[np.float64]]:
    """For each checkpoint the longest time between two steps; and all such times while there was none. In seconds."""
    between, ends = np.diff(times), times[1:]
    quiet = np.arange(len(between)) >= SETTLE_STEPS
    longest = []
    for one in saved:
        due = times[np.searchsorted(steps, one.step - 1)]
        during = (ends > due) & (times[:-1] < one.at)
        longest.append(float(between[during].max()))
        quiet &= ~during
    return longest, between[quiet & (ends > times[np.searchsorted(steps, saved[0].step - 1)])]


def measure(given: argparse.Namespace) -> Result:
    with TemporaryDirectory(prefix="edl-bench-") as name:
        folder = Path(name)
        os.environ["EDL_BENCH_DIARY"] = str(folder / "diary")
        saved, size = run_job(folder, given.rows, given.every, given.rounds)
        longest, quiet = stalls(*diary(folder / "diary"), saved)
    usual = float(np.median(quiet))
    found = [one - usual for one in longest]
    details = {
        "stalls": found,
        "pause_seconds": [one.pause for one in saved],
        "quiet": {"median": usual, "p99": percentile(quiet.tolist(), 0.99), "longest": float(quiet.max())},
        "bytes": size,
        "settings": vars(given) | {"minibatch": MINIBATCH, "ids_of_a_record": EACH, "out": None},
    }
    return Result("checkpoint_stall", figures(found, quiet - usual, saved, given.rows), details)


def figures(found: list[float], quiet: NDArray[np.float64], saved: list[Saved], rows: int) -> tuple[Figure, ...]:
    name = f"checkpoint of {rows / 1e6:.3g} M rows"
    return (
        Figure(f"{name}: longest stall of a worker", 1e3 * median(found), "ms", 50.0, aim=20.0),
        Figure(f"{name}: the worst of {len(found)}", 1e3 * max(found), "ms"),
        Figure(f"{name}: longest stall while there is none", 1e3 * float(quiet.max()), "ms"),
        Figure(f"{name}: updates pause", 1e3 * median(one.pause for one in saved), "ms"),
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the table; default 10 million")
    parser.add_argument("--every", type=int, default=2500, help="steps from one checkpoint to the next; default 2500")


if __name__ == "__main__":
    main(__doc__, measure, rounds=5, options=options)
