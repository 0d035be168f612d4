"""From ``edl run`` to the first completed step, beside ``import tensorflow`` in the same run.

A step is complete when it is in the ledger: the time is that of the first ``progress`` or ``done`` entry of a training
lease in the journal, which is looked at every few milliseconds. It includes the worker's own batching of progress.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from figures import BenchFigure, ScriptResult
from mnist_job import DigitsFolder, digits_folder
from script import main, print_progress
from support.job_process import JobProcess
from support.journal_bytes import MalformedJournalError, read_entries

ALLOWED_SECONDS = 2.5
POLL_SECONDS = 0.005
LONGEST_SECONDS = 120.0


def import_seconds() -> float:
    """Wall time of a process that imports TensorFlow and ends."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import tensorflow"], check=True, capture_output=True)
    return time.perf_counter() - began


def measure_phases(job: Path, digits: DigitsFolder) -> dict[str, float]:
    """Seconds from the start of the command to each thing that happens on the way to the first step."""
    with JobProcess(job, cwd=digits.folder) as run:
        phases: dict[str, float] = {}
        stepped = first_step(run)
        for line in run.lines:
            name = _event_name(line)
            if name and name not in phases:
                phases[name] = line["time"] - run.began
        phases["first step"] = stepped - run.began
        run.interrupt()
        run.wait()
    return dict(sorted(phases.items(), key=lambda item: item[1]))


def first_step(run: JobProcess) -> float:
    """When the journal first told of a training step, in unix seconds; waits for it."""
    journal = run.run_dir / "journal"
    until = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < until:
        if any(entry["kind"] in ("progress", "done") for entry in _read_entries(journal)):
            return time.time()
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"no step in {LONGEST_SECONDS:.0f} s\n{run.errors}")


def _read_entries(journal: Path) -> list[dict[str, Any]]:
    try:
        return read_entries(journal)
    except (FileNotFoundError, MalformedJournalError):
        return []  # its first segment is being written


def _event_name(line: Any) -> str:
    if line["event"] == "role_started":
        return f"{line['role']}-{line['index']} started"
    return {"run_started": "run started", "checkpoint_saved": "first checkpoint"}.get(line["event"], "")


def measure(arguments: argparse.Namespace) -> ScriptResult:
    imports, runs = [], []
    with digits_folder(4096) as digits:
        job = digits.job("start", train={"epochs": 50})
        measure_phases(job, digits)  # the first one reads the disk
        for _ in range(arguments.rounds):
            imports.append(import_seconds())
            runs.append(measure_phases(job, digits))
            print_progress(f"import {imports[-1]:.2f} s, first step {runs[-1]['first step']:.2f} s")
    steps = [run["first step"] for run in runs]
    limit = median(imports) + ALLOWED_SECONDS
    figures = (
        BenchFigure("`edl run` to the first completed step", median(steps), "s", limit, note="import + 2.5 s"),
        BenchFigure("`import tensorflow`, in the same run", median(imports), "s"),
        BenchFigure("first step, beyond the import", median(s - i for s, i in zip(steps, imports, strict=True)), "s"),
    )
    return ScriptResult("start", figures, {"import_seconds": imports, "phases_seconds": runs})


if __name__ == "__main__":
    main(__doc__, measure, rounds=5)
