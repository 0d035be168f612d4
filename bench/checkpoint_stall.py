"""How long workers stand still for a checkpoint, in two real jobs.

* A large table: 10 million rows of 16 floats under Adagrad, one worker, one PS. The first epoch touches every row once,
  so that the PS holds all of them; from then on checkpoints are taken while the worker goes on.
* Several workers and PS, of which workers are killed and others join: ``joining.py``.

Workers say when each step was in: pull, computation, push. A stall is the longest time from one step to the next while
a checkpoint is taken and written, less the median of such times while none is. A checkpoint counts from the step at
which it is due to the event ``checkpoint_saved``. The longest time while there is none stands beside it: what the
machine does anyway.
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import joining
from figures import BenchFigure, ScriptResult, percentile
from script import main, print_progress
from stalls import (
    SavedCheckpoint,
    beyond_usual,
    checkpoint_windows,
    each_saved,
    longest_step,
    read_checkpoints,
    read_steps,
    step_logs,
)
from support.job_process import JobProcess

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


def run_job(folder: Path, rows: int, every: int, count: int) -> tuple[list[SavedCheckpoint], float]:
    """Take ``count`` checkpoints of the whole table; returns them and the bytes of the last one."""
    full = -(-rows // EACH) // MINIBATCH
    with JobProcess(job(folder, rows, every), cwd=folder) as run:
        filled = (line for line in each_saved(run, LONGEST_SECONDS) if line["step"] >= full)
        for number, line in enumerate(islice(filled, count), 1):
            print_progress(f"checkpoint {number} of {count}, at step {line['step']}")
        saved = read_checkpoints(run.events("checkpoint_saved"), every)[-count:]
        size = sum(file.stat().st_size for file in (run.run_dir / "checkpoints").rglob("*.safetensors"))
        run.interrupt()
        run.wait(LONGEST_SECONDS)
    return saved, float(size)


def measure(given: argparse.Namespace) -> ScriptResult:
    with TemporaryDirectory(prefix="edl-bench-") as name:
        stall_figures, details = large_table(Path(name), given)
        more, details["joining"] = joining.measure(Path(name), given.rounds)
    return ScriptResult("checkpoint_stall", (*stall_figures, *more), details)


def large_table(folder: Path, given: argparse.Namespace) -> tuple[tuple[BenchFigure, ...], dict[str, Any]]:
    """Figures, and what is behind them."""
    with step_logs() as log_folder:
        saved, size = run_job(folder, given.rows, given.every, given.rounds)
        workers = [read_steps(step_log, SETTLE_STEPS) for step_log in log_folder.iterdir()]
    windows = checkpoint_windows(workers, saved)
    usual = median(workers[0].seconds_outside(windows))
    [worker] = beyond_usual(workers, windows)
    quiet = worker.seconds_outside(windows)
    stalls = [longest_step([worker], window) for window in windows]
    details = {
        "stalls": stalls,
        "pause_seconds": [one.pause for one in saved],
        "quiet": {"median": usual, "p99": usual + percentile(quiet.tolist(), 0.99), "longest": usual + quiet.max()},
        "bytes": size,
        "settings": vars(given) | {"minibatch": MINIBATCH, "ids_of_a_record": EACH, "out": None},
    }
    return figures(stalls, float(quiet.max()), saved, given.rows), details


def figures(stalls: list[float], quiet: float, saved: list[SavedCheckpoint], rows: int) -> tuple[BenchFigure, ...]:
    name = f"checkpoint of {rows / 1e6:.3g} M rows"
    return (
        BenchFigure(
            f"{name}: longest stall of a worker, median of {len(stalls)}", 1e3 * median(stalls), "ms", 50.0, aim=20.0
        ),
        BenchFigure(f"{name}: the worst of {len(stalls)}", 1e3 * max(stalls), "ms"),
        BenchFigure(f"{name}: longest stall while there is none", 1e3 * quiet, "ms"),
        BenchFigure(f"{name}: updates pause", 1e3 * median(one.pause for one in saved), "ms"),
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the table; default 10 million")
    parser.add_argument("--every", type=int, default=2500, help="steps from one checkpoint to the next; default 2500")


if __name__ == "__main__":
    main(__doc__, measure, rounds=5, options=options)
