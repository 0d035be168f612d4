"""Samples a second of the MLP (784-128-10, plain SGD, batch 64): two workers and a PS, beside ``keras.fit``.

Both read the same RecordIO files through the same ``feed``. EDL trains asynchronously with a push for every minibatch;
its rate is that of the ledger between two moments of one run, both away from its ends: the time from the first look at
which a fifth of the records is done to the last at which nine tenths are not. Keras trains in one process that has the
whole machine, as EDL's four together have it; its rate begins with its second epoch. They take turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from figures import BenchFigure, ScriptResult, steady_rate
from mnist_job import DigitsFolder, digits_folder
from script import main, print_progress
from support.job_process import JobProcess

FIT = Path(__file__).with_name("keras_fit.py")
RECORDS = 12_288
POLL_SECONDS = 0.05
BEGIN, END = 0.2, 0.9


def edl_rate(digits: DigitsFolder, epochs: int) -> tuple[float, dict[str, Any]]:
    """Samples a second in the middle of a run, and its summary."""
    job = digits.job("throughput", train={"epochs": epochs}, checkpoint={"every_steps": 1_000_000})
    samples: list[tuple[float, int]] = []
    with JobProcess(job, cwd=digits.folder) as run:
        while run.process.poll() is None:
            status = run.status() if run.events("run_started") else {}
            if status:
                samples.append((status["updated"], status["records_done"]))
            time.sleep(POLL_SECONDS)
        summary = run.summary()
    total = summary["records_total"]
    summary_part = {
        name: summary[name] for name in ("records_total", "records_repeated", "samples_per_second", "seconds")
    }
    return steady_rate([sample for sample in samples if sample[1] <= END * total], int(BEGIN * total)), summary_part


def keras_rates(digits: DigitsFolder, epochs: int) -> dict[str, float]:
    """What keras_fit.py measures."""
    command = [sys.executable, str(FIT), str(digits.training_folder), "--epochs", str(epochs)]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    rates: dict[str, float] = json.loads(ran.stdout)
    return rates


def measure(arguments: argparse.Namespace) -> ScriptResult:
    ours: list[float] = []
    theirs: list[dict[str, float]] = []
    summaries = []
    with digits_folder(RECORDS) as digits:
        for _ in range(arguments.rounds):
            rate, summary = edl_rate(digits, arguments.epochs)
            ours.append(rate)
            summaries.append(summary)
            print_progress(f"EDL: {rate:,.0f} samples/s")
            theirs.append(keras_rates(digits, arguments.keras_epochs or max(1, arguments.epochs // 4)))
            print_progress("Keras: " + ", ".join(f"{name} {value:,.0f}" for name, value in theirs[-1].items()))
    return ScriptResult("throughput", figures(ours, theirs), {"edl": ours, "keras": theirs, "summaries": summaries})


def figures(ours: list[float], theirs: list[dict[str, float]]) -> tuple[BenchFigure, ...]:
    def best_rate(*names: str) -> float:
        return max(median(rates[name] for rates in theirs) for name in names)

    rate, single, many = median(ours), best_rate("fit_1", "fit_1_xla"), best_rate("fit_32", "fit_32_xla")
    return (
        BenchFigure("MLP, 2 workers + 1 PS: samples/s, of `keras.fit`'s", rate / single, "x", 0.8, at_least=True),
        BenchFigure("the same, of `keras.fit` with `steps_per_execution=32`", rate / many, "x"),
        BenchFigure("MLP, 2 workers + 1 PS", rate, "samples/s"),
        BenchFigure("`keras.fit`, `steps_per_execution=1`", single, "samples/s"),
        BenchFigure("`keras.fit`, `steps_per_execution=32`", many, "samples/s"),
        BenchFigure(
            "forward, backward, update alone, one process, data in memory", best_rate("step_only"), "samples/s"
        ),
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=int, default=24, help=f"of {RECORDS} records, for EDL; default 24")
    parser.add_argument("--keras-epochs", type=int, help="for each of four ways to fit; default a quarter of --epochs")


if __name__ == "__main__":
    main(__doc__, measure, rounds=3, options=options)
