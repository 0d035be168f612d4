"""How soon a job goes on after a fault, with signals from outside on pids that the ``--json`` lines tell.

* a worker is SIGKILLed: its records are back in the queue (``records_returned``), and leased again by another one;
* a worker is told to go (SIGTERM): its process is gone;
* the master is SIGKILLed: a step that a later incarnation enters into the journal.

Each round is one job that meets all three, each when two workers make steps. Tasks are small, so that the worker that
is left soon asks for more.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL, SIGTERM
from statistics import median
from typing import Any

import psutil
from figures import BenchFigure, ScriptResult
from mnist_job import digits_folder
from script import main, print_progress
from support.job_process import JobProcess, Line
from support.journal_bytes import MalformedJournalError, read_entries

POLL_SECONDS = 0.005
SETTLE_SECONDS = 0.5
LONGEST_SECONDS = 60.0
MINIBATCH, MINIBATCHES = 64, 8
"""Small tasks: the worker that is left comes to the end of its own soon, and asks."""


def wait_working(run: JobProcess) -> None:
    """Wait until two live workers have made steps: a worker holds leases, and is called training, while it imports."""

    def has_trained(entries: list[dict[str, Any]]) -> bool:
        holders = {entry["lease"]: entry["worker"] for entry in entries if entry["kind"] == "leased"}
        stepped = {holders[entry["lease"]] for entry in entries if entry["kind"] in ("progress", "done")}
        return sum(worker["uid"] in stepped for worker in run.status().get("workers", ())) >= 2

    wait_for_entry(run, has_trained)
    time.sleep(SETTLE_SECONDS)


def kill_worker(run: JobProcess) -> dict[str, float]:
    """SIGKILL a worker that trains."""
    lines_before = len(run.lines)
    victim = min(run.training())
    at = run.send("worker", victim, SIGKILL)
    returned = run.wait_event("records_returned", LONGEST_SECONDS, lines_before, worker=victim)
    durations = {"worker SIGKILLed: records returned": returned["time"] - at}
    durations["worker SIGKILLed: records leased again"] = leased_again(run, returned) - at
    return durations


def leased_again(run: JobProcess, returned: Line) -> float:
    """When the head of the returned range was leased again, in unix seconds."""
    return wait_for_entry(run, lambda entries: leased_after_return(entries, returned["start"]))


def leased_after_return(entries: list[dict[str, Any]], start: int) -> bool:
    """Whether a lease from ``start`` on follows the newest return; the job's data is one file.

    A journal names no file where an epoch is shuffled, but the event does: they are not compared.
    """
    back = [i for i, entry in enumerate(entries) if entry["kind"] == "returned"]
    return any(entry["kind"] == "leased" and entry["work"][2] == start for entry in entries[back[-1] :])


def end_worker(run: JobProcess) -> dict[str, float]:
    """SIGTERM a worker that trains."""
    victim, pid = min(run.training().items())
    process = psutil.Process(pid)
    at = run.send("worker", victim, SIGTERM)
    _, alive = psutil.wait_procs([process], timeout=LONGEST_SECONDS)
    if alive:
        raise TimeoutError("a worker that was told to go is still there")
    return {"worker SIGTERMed: gone": time.time() - at}


def kill_master(run: JobProcess) -> dict[str, float]:
    """SIGKILL the master."""
    incarnation, lines_before = run.status()["incarnation"], len(run.lines)
    at = run.send("master", 0, SIGKILL)

    def later_entries(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        first = [i for i, e in enumerate(entries) if e["kind"] == "incarnation" and e["number"] > incarnation]
        return entries[first[0] :] if first else []

    def has_stepped(entries: list[dict[str, Any]]) -> bool:
        return any(entry["kind"] in ("progress", "done") for entry in later_entries(entries))

    restarted = run.wait_event("role_started", LONGEST_SECONDS, lines_before, role="master")["time"]
    durations = {
        "master SIGKILLed: its successor serves": restarted - at,
        "master SIGKILLed: it decides": wait_for_entry(run, lambda entries: bool(later_entries(entries))) - at,
        "master SIGKILLed: steps go on": wait_for_entry(run, has_stepped) - at,
    }
    run.wait_status(lambda status: status["incarnation"] > incarnation and bool(status["workers"]))
    return durations


def wait_for_entry(run: JobProcess, told: Callable[[list[dict[str, Any]]], bool]) -> float:
    """When the journal first held what ``told`` looks for, in unix seconds; late by at most one look.

    Looks get rarer as the journal grows, so that they take a fifth of a core at most from the job that is measured.

    Raises:
        TimeoutError: it does not come.
    """
    until = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < until:
        began = time.monotonic()
        if told(_read_entries(run.run_dir / "journal")):
            return time.time()
        time.sleep(max(POLL_SECONDS, 4 * (time.monotonic() - began)))
    raise TimeoutError(f"it is not in the journal after {LONGEST_SECONDS:.0f} s\n{run.errors}")


def _read_entries(journal: Path) -> list[dict[str, Any]]:
    try:
        return read_entries(journal)
    except (FileNotFoundError, MalformedJournalError):
        return []  # a segment is just being begun


FAULTS = (kill_worker, end_worker, kill_master)


def one_run(job: Path, folder: Path) -> dict[str, float]:
    """Every fault once, in one job, each when two workers make steps."""
    durations: dict[str, float] = {}
    with JobProcess(job, cwd=folder) as run:
        for fault in FAULTS:
            wait_working(run)
            durations |= fault(run)
            print_progress(", ".join(f"{name} {seconds:.3f} s" for name, seconds in durations.items()))
        run.interrupt()
        run.wait()
    return durations


def measure(arguments: argparse.Namespace) -> ScriptResult:
    with digits_folder(8192) as digits:
        train = {"epochs": 100_000, "minibatch_size": MINIBATCH, "minibatches_per_task": MINIBATCHES}
        job = digits.job("recovery", train=train, checkpoint={"every_steps": 1_000_000})
        rounds = [one_run(job, digits.folder) for _ in range(arguments.rounds)]
    return ScriptResult("recovery", figures(rounds), {"rounds": rounds})


LIMITS = {
    "worker SIGKILLed: records returned": 1.0,
    "worker SIGKILLed: records leased again": 1.0,
    "worker SIGTERMed: gone": 1.0,
    "master SIGKILLed: steps go on": 3.0,
}


def figures(rounds: list[dict[str, float]]) -> tuple[BenchFigure, ...]:
    """Medians against the limits; the slowest round stands beside, since a median hides a miss."""
    required = [
        BenchFigure(name, median(durations[name] for durations in rounds), "s", limit, note=_figure_note(name))
        for name, limit in LIMITS.items()
    ]
    slowest = [
        BenchFigure(f"{name}, slowest of {len(rounds)}", max(durations[name] for durations in rounds), "s")
        for name in LIMITS
    ]
    return (*required, *slowest)


def _figure_note(name: str) -> str:
    return "1 s plus a minibatch, which is left out" if "SIGTERM" in name else ""


if __name__ == "__main__":
    main(__doc__, measure, rounds=3)
