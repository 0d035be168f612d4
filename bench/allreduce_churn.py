"""Four TensorFlow workers of strategy AllReduce, of which one is SIGKILLed every 15 seconds for three minutes.

The job trains the zoo's MLP with Momentum on digits; what counts is that no record is lost, and the loss on held-back
digits at the end. It is compared with runs of other seeds in which nothing is killed. In the disturbed run each step
sleeps, so that it lasts for the three minutes; the sleep changes no result.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL
from statistics import fmean, stdev
from typing import Any

from figures import BenchFigure, ScriptResult
from mnist_job import DigitsFolder, digits_folder
from script import main, print_progress
from support.job_process import JobProcess, Line

ZOO = Path(__file__).with_name("zoo")
RECORDS, EPOCHS, MINIBATCH, WORKERS = 12_288, 12, 16, 4
STEPS = RECORDS * EPOCHS // (MINIBATCH * WORKERS)
SUMMARY_SECONDS = 300.0
KEPT = ("records_total", "records_done", "records_lost", "records_repeated", "records_rolled_back", "workers_lost")


def write_job(digits: DigitsFolder, seed: int) -> Path:
    """A job of one seed; its learning rate is scaled by the number of ranks."""
    return digits.job(
        f"churn-{seed}",
        strategy={"name": "AllReduce", "learning_rate_scaling": "linear", "reference_world": WORKERS},
        model={"zoo": str(ZOO), "definition": "slow_digits.custom_model"},
        data={"training": str(digits.training_folder), "validation": str(digits.held_back)},
        train={"epochs": EPOCHS, "seed": seed, "minibatch_size": MINIBATCH, "minibatches_per_task": 16},
        checkpoint=None,
        workers={"max": WORKERS},
    )


def undisturbed_loss(digits: DigitsFolder, seed: int) -> float:
    """The loss on held-back digits at the end of a run in which nothing is killed."""
    os.environ["EDL_BENCH_STEP_SECONDS"] = "0"
    with JobProcess(write_job(digits, seed), cwd=digits.folder) as run:
        summary = run.summary(SUMMARY_SECONDS)
    if summary["workers_lost"]:
        raise RuntimeError(f"an undisturbed run lost workers: {summary}")
    return float(summary["metrics"]["loss"])


def disturbed_summary(digits: DigitsFolder, kills: int, every: float) -> tuple[Line, int]:
    """The summary of a run in which a worker is killed after each ``every`` seconds, and how many were killed."""
    os.environ["EDL_BENCH_STEP_SECONDS"] = str((kills + 1) * every / STEPS)
    killed = 0
    with JobProcess(write_job(digits, 0), cwd=digits.folder) as run:
        run.wait_event("world_changed", workers=WORKERS)
        for number in range(kills):
            time.sleep(every)
            if run.process.poll() is not None or not (pids := run.pids("worker")):
                break
            run.send("worker", min(pids), SIGKILL)
            killed += 1
            print_progress(f"killed {number + 1} of {kills} at step {run.status()['step']} of about {STEPS}")
        return run.summary(SUMMARY_SECONDS), killed


def measure(arguments: argparse.Namespace) -> ScriptResult:
    with digits_folder(RECORDS) as digits:
        summary, killed = disturbed_summary(digits, arguments.kills, arguments.every)
        print_progress(f"killed {killed}: loss {summary['metrics']['loss']:.4f}")
        losses = []
        for seed in range(1, arguments.rounds + 1):
            losses.append(undisturbed_loss(digits, seed))
            print_progress(f"undisturbed, seed {seed}: loss {losses[-1]:.4f}")
    disturbed = {name: summary[name] for name in KEPT} | {"loss": summary["metrics"]["loss"], "killed": killed}
    details = {"disturbed": disturbed, "undisturbed": losses, "steps": STEPS, "every": arguments.every}
    return ScriptResult("allreduce_churn", tuple(figures(disturbed, losses)), details)


def figures(disturbed: dict[str, Any], losses: list[float]) -> Iterator[BenchFigure]:
    """The number of lost records, and how far the loss is from the others'."""
    name = f"AllReduce, {WORKERS} workers, {disturbed['killed']} times one SIGKILLed"
    missing = disturbed["records_total"] - disturbed["records_done"]
    yield BenchFigure(f"{name}: records lost", float(missing + disturbed["records_lost"]), "records", 0.0)
    if len(losses) > 1:
        apart = abs(disturbed["loss"] - fmean(losses))
        note = "three standard deviations of the runs without kills"
        yield BenchFigure(
            f"{name}: loss apart from that of {len(losses)} runs without kills",
            apart,
            "",
            3 * stdev(losses),
            note=note,
        )
    yield BenchFigure(f"{name}: loss on held-back digits", disturbed["loss"], "")
    yield BenchFigure("AllReduce, no worker killed: loss on held-back digits", fmean(losses), "")
    yield BenchFigure(f"{name}: records repeated", float(disturbed["records_repeated"]), "records")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=12, help="default 12")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two kills; default 15")


if __name__ == "__main__":
    main(__doc__, measure, rounds=4, options=options)
