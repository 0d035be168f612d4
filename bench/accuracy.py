"""Accuracy on held-back digits after the same epochs: asynchronous training by two workers, beside plain Keras.

The same model, optimizer and records; five seeds each. The held-back digits are originals that no training record was
made of.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from statistics import fmean, stdev

from figures import BenchFigure, ScriptResult
from mnist_job import DigitsFolder, digits_folder
from script import main, print_progress
from support.job_process import JobProcess
from throughput import FIT

RECORDS = 12_288
POINT = 100.0


def edl_accuracy(digits: DigitsFolder, epochs: int, seed: int) -> float:
    """Accuracy at the end of one run."""
    # Short tasks, so that the workers take turns through the epoch as they do in a job that is larger.
    train = {"epochs": epochs, "seed": seed, "minibatches_per_task": 16}
    data = {"training": str(digits.training_folder), "validation": str(digits.held_back)}
    with JobProcess(digits.job("accuracy", train=train, data=data), cwd=digits.folder) as run:
        accuracy: float = run.summary(300.0)["metrics"]["accuracy"]
    return accuracy


def keras_accuracies(digits: DigitsFolder, epochs: int, seeds: list[int]) -> list[float]:
    """The same from plain Keras."""
    arguments = ["--epochs", str(epochs), "--held-back", str(digits.held_back), "--seeds", *map(str, seeds)]
    command = [sys.executable, str(FIT), str(digits.training_folder), *arguments]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    accuracies: list[float] = json.loads(ran.stdout)["accuracy"]
    return accuracies


def measure(arguments: argparse.Namespace) -> ScriptResult:
    seeds = list(range(arguments.rounds))
    ours, theirs = [], []
    with digits_folder(RECORDS) as digits:
        for seed in seeds:
            ours.append(edl_accuracy(digits, arguments.epochs, seed))
            theirs += keras_accuracies(digits, arguments.epochs, [seed])
            print_progress(f"seed {seed}: EDL {ours[-1]:.4f}, Keras {theirs[-1]:.4f}")
    return ScriptResult("accuracy", figures(ours, theirs), {"edl": ours, "keras": theirs, "epochs": arguments.epochs})


def figures(ours: list[float], theirs: list[float]) -> tuple[BenchFigure, ...]:
    behind = POINT * (fmean(theirs) - fmean(ours))
    bench_figures = [
        BenchFigure("held-back digits: accuracy behind plain Keras, mean over seeds", behind, "points", 1.0),
        BenchFigure("held-back digits: accuracy, EDL", POINT * fmean(ours), "%"),
        BenchFigure("held-back digits: accuracy, plain Keras", POINT * fmean(theirs), "%"),
    ]
    if len(ours) > 1:
        bench_figures.append(BenchFigure("standard deviation over seeds, EDL", POINT * stdev(ours), "points"))
        bench_figures.append(BenchFigure("standard deviation over seeds, plain Keras", POINT * stdev(theirs), "points"))
    return tuple(bench_figures)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=int, default=3, help="default 3")


if __name__ == "__main__":
    main(__doc__, measure, rounds=5, options=options)
