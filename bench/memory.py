"""Resident memory of the master and of a parameter server, idle and at work.

RSS counts pages that processes share (the interpreter, shared libraries) in each of them; PSS counts them once, shared
out. The requirement is about RSS, the larger of the two.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import psutil
from figures import BenchFigure, ScriptResult
from mnist_job import digits_folder
from script import main, print_progress
from support.job_process import JobProcess

ROLES = ("master", "ps")
MEGABYTE = 1_000_000


def resident_memory(run: JobProcess) -> dict[str, dict[str, float]]:
    """RSS and PSS in MB of the master and of the PS."""
    resident = {}
    for role in ROLES:
        memory = psutil.Process(run.pids(role)[0]).memory_full_info()
        resident[role] = {"rss_mb": memory.rss / MEGABYTE, "pss_mb": memory.pss / MEGABYTE}
    return resident


def one_run(job: JobProcess, seconds: float) -> dict[str, dict[str, dict[str, float]]]:
    """Memory before there is a model, and after ``seconds`` of training."""
    with job as run:
        run.wait_event("role_started", role="ps")
        run.wait_status(lambda status: len(status["workers"]) == 2)
        time.sleep(1.0)  # both serve by now; the workers still import TensorFlow
        idle = resident_memory(run)
        run.wait_step(1)
        time.sleep(seconds)
        busy = resident_memory(run)
        run.interrupt()
        run.wait()
    return {"idle": idle, "training": busy}


def measure(arguments: argparse.Namespace) -> ScriptResult:
    rounds = []
    with digits_folder(4096) as digits:
        job = digits.job("memory", train={"epochs": 100_000})
        for _ in range(arguments.rounds):
            rounds.append(one_run(JobProcess(job, cwd=digits.folder), arguments.seconds))
            print_progress(str(rounds[-1]))
    return ScriptResult("memory", figures(rounds), {"rounds": rounds})


def figures(taken: list[dict[str, dict[str, dict[str, float]]]]) -> tuple[BenchFigure, ...]:
    def median_value(when: str, role: str, kind: str) -> float:
        return median(each[when][role][kind] for each in taken)

    return (
        BenchFigure(
            "master: resident memory while a job trains", median_value("training", "master", "rss_mb"), "MB", 100
        ),
        BenchFigure("an idle PS: resident memory", median_value("idle", "ps", "rss_mb"), "MB", 100),
        BenchFigure("master: PSS while a job trains", median_value("training", "master", "pss_mb"), "MB"),
        BenchFigure("an idle PS: PSS", median_value("idle", "ps", "pss_mb"), "MB"),
        BenchFigure(
            "PS that serves the MLP (0.4 MB of parameters): resident", median_value("training", "ps", "rss_mb"), "MB"
        ),
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=10.0, help="of training before the second look; default 10")


if __name__ == "__main__":
    main(__doc__, measure, rounds=2, options=options)
