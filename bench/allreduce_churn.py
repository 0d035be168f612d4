"""Four TensorFlow workers of strategy AllReduce, of which one is SIGKILLed again and again, beside a world of four.

Jobs of the zoo's MLP with Momentum on digits, with ``strategy.global_batch``. Each seed trains twice: undisturbed, and
with ``--kills`` workers killed, in the first seed one every 15 seconds for three minutes, in the others one every five
seconds. A worker is only killed while another one trains: without any, training would begin anew. No record may be
lost or rolled back, and the curves of the loss on held-back digits must be those of the undisturbed jobs to noise.
Steps of a disturbed run sleep, so that it lasts for all kills; the sleep changes no result.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from signal import SIGKILL
from statistics import fmean, stdev
from typing import Any

from figures import BenchFigure, ScriptResult, noise_of_difference
from mnist_job import DigitsFolder, digits_folder
from script import main, print_progress
from support.job_process import JobProcess, Line

ZOO = Path(__file__).with_name("zoo")
RECORDS, EPOCHS, MINIBATCH, WORKERS = 12_288, 12, 16, 4
GLOBAL_BATCH = MINIBATCH * WORKERS
STEPS = RECORDS * EPOCHS // GLOBAL_BATCH
EVALUATION_STEPS = STEPS // 8
SUMMARY_SECONDS = 300.0
CURVE_NOISE = 4.0
"""Standard errors. By chance (Student's t, five seeds) one of 8 points is as far away in at most 3 of 100 runs."""
KEPT = ("records_total", "records_done", "records_lost", "records_repeated", "records_rolled_back", "workers_lost")
Curve = dict[int, float]
"""The loss on held-back digits after some steps."""


def write_job(digits: DigitsFolder, seed: int) -> Path:
    """A job of one seed. All workers pause for an evaluation, so that each job evaluates the same steps."""
    return digits.job(
        f"churn-{seed}",
        strategy={"name": "AllReduce", "global_batch": GLOBAL_BATCH},
        model={"zoo": str(ZOO), "definition": "slow_digits.custom_model"},
        data={"training": str(digits.training_folder), "validation": str(digits.held_back)},
        train={
            "epochs": EPOCHS,
            "seed": seed,
            "minibatch_size": MINIBATCH,
            "minibatches_per_task": 16,
            "evaluation_steps": EVALUATION_STEPS,
        },
        evaluation={"max_workers": 0},
        checkpoint=None,
        workers={"max": WORKERS},
    )


def undisturbed_curve(digits: DigitsFolder, seed: int) -> Curve:
    """The losses of a run in which nothing is killed."""
    os.environ["EDL_BENCH_STEP_SECONDS"] = "0"
    with JobProcess(write_job(digits, seed), cwd=digits.folder) as run:
        summary = run.summary(SUMMARY_SECONDS)
        curve = loss_curve(run)
    if summary["workers_lost"]:
        raise RuntimeError(f"an undisturbed run lost workers: {summary}")
    return curve


def disturbed_run(digits: DigitsFolder, seed: int, kills: int, every: float) -> tuple[Curve, Line]:
    """The losses and the summary of a run in which a worker is killed after each ``every`` seconds."""
    os.environ["EDL_BENCH_STEP_SECONDS"] = str((kills + 1) * every / STEPS)
    killed = 0
    with JobProcess(write_job(digits, seed), cwd=digits.folder) as run:
        run.wait_event("world_changed", workers=WORKERS)
        for number in range(kills):
            time.sleep(every)
            training = survived_by_others(run)
            if not training:
                break
            run.send("worker", min(training), SIGKILL)
            killed += 1
            print_progress(f"killed {number + 1} of {kills} at step {run.status()['step']} of {STEPS}")
        summary = run.summary(SUMMARY_SECONDS)
        return loss_curve(run), {name: summary[name] for name in KEPT} | {"killed": killed, "every": every}


def survived_by_others(run: JobProcess) -> set[int]:
    """The indices of the workers that train, as soon as there are two; none if the job ends before."""
    while run.process.poll() is None:
        workers = run.status()["workers"]
        training = {worker["index"] for worker in workers if worker["state"] == "training"} & set(run.pids("worker"))
        if len(training) > 1:
            return training
        time.sleep(0.2)
    return set()


def loss_curve(run: JobProcess) -> Curve:
    """The loss of each evaluation of a run."""
    return {line["step"]: float(line["metrics"]["loss"]) for line in run.events("evaluation_ended")}


def measure(given: argparse.Namespace) -> ScriptResult:
    disturbed: list[Curve] = []
    undisturbed: list[Curve] = []
    summaries: list[Line] = []
    with digits_folder(RECORDS) as digits:
        for seed in range(given.rounds):
            every = given.every_later if seed else given.every
            curve, summary = disturbed_run(digits, seed, given.kills, every)
            disturbed.append(curve)
            summaries.append(summary)
            undisturbed.append(undisturbed_curve(digits, seed))
            losses = f"{curve[STEPS]:.4f} with {summary['killed']} kills, {undisturbed[-1][STEPS]:.4f} without"
            print_progress(f"seed {seed}: loss {losses}")
    details = {"disturbed": disturbed, "undisturbed": undisturbed, "summaries": summaries, "steps": STEPS}
    return ScriptResult("allreduce_churn", tuple(figures(disturbed, undisturbed, summaries)), details)


def figures(
    disturbed: Sequence[Curve], undisturbed: Sequence[Curve], summaries: Sequence[Line]
) -> Iterator[BenchFigure]:
    """The number of lost records, and how far the losses are from those of a world of four."""
    name = f"AllReduce, {WORKERS} workers, {sum(summary['killed'] for summary in summaries)} times one SIGKILLed"
    missing = sum(each["records_total"] - each["records_done"] + each["records_lost"] for each in summaries)
    yield BenchFigure(f"{name}: records lost", float(missing), "records", 0.0)
    rolled_back = sum(summary["records_rolled_back"] for summary in summaries)
    yield BenchFigure(f"{name}: records rolled back", float(rolled_back), "records", 0.0)
    ends, others = ([curve[STEPS] for curve in curves] for curves in (disturbed, undisturbed))
    if len(ends) > 1:
        yield BenchFigure(
            f"{name}: loss apart from that without kills, {len(ends)} seeds",
            abs(fmean(ends) - fmean(others)),
            "",
            noise_of_difference(ends, others),
            note="three standard errors",
        )
        yield BenchFigure(
            f"{name}: loss curve apart from that without kills, at most",
            largest_difference(disturbed, undisturbed),
            "standard errors",
            CURVE_NOISE,
        )
        yield BenchFigure("AllReduce, no worker killed: standard deviation of the loss over seeds", stdev(others), "")
    yield BenchFigure(f"{name}: loss on held-back digits", fmean(ends), "")
    yield BenchFigure("AllReduce, no worker killed: loss on held-back digits", fmean(others), "")
    repeated = sum(summary["records_repeated"] for summary in summaries)
    yield BenchFigure(f"{name}: records repeated", float(repeated), "records")


def largest_difference(curves: Sequence[Curve], others: Sequence[Curve]) -> float:
    """How far the mean curves are apart at most, in standard errors of their difference at that step."""
    steps = set.intersection(*(set(curve) for curve in (*curves, *others)))
    if len(steps) < STEPS // EVALUATION_STEPS:
        raise RuntimeError(f"only the steps {sorted(steps)} were evaluated by all runs")
    return max(_difference([curve[step] for curve in curves], [curve[step] for curve in others]) for step in steps)


def _difference(one: Sequence[float], other: Sequence[float]) -> float:
    noise = noise_of_difference(one, other)
    apart = abs(fmean(one) - fmean(other))
    return 3 * apart / noise if noise else float(apart > 0) * float("inf")


def options(parser: argparse.ArgumentParser) -> Any:
    parser.add_argument("--kills", type=int, default=12, help="of a run; default 12")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two kills; default 15")
    parser.add_argument("--every-later", type=float, default=5.0, help="the same, behind the first seed; default 5")


if __name__ == "__main__":
    main(__doc__, measure, rounds=5, options=options)
