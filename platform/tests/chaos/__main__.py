"""Random faults for a counting job: ``make chaos SEED=7 MODE=sync``.

Every 3 to 8 seconds one role of the job, chosen at random, gets SIGKILL, SIGTERM or SIGSTOP (and SIGCONT 1 to 12 s
later). After six minutes, or ``--seconds``, the faults end, the job is hurried to its end, and ``counting_check``
holds journal, parameters and summary against each other. The schedule is a function of SEED; what each signal meets
is not.

Prints every fault and, at the end, one line of JSON. Exits with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.counting_check import violations
from chaos.counting_job import MODES, CountingJob
from support.job_process import JobProcess

ROLES = {"worker": 0.6, "ps": 0.2, "master": 0.2}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
END_SECONDS = 300.0


@dataclass(frozen=True)
class PlannedFault:
    """A signal ``at`` seconds after training began; ``stopped`` seconds until SIGCONT, for SIGSTOP."""

    at: float
    role: str
    pick: float
    number: signal.Signals
    stopped: float


def schedule(seed: int, seconds: float) -> Iterator[PlannedFault]:
    """The faults of a seed, in order."""
    chance = random.Random(seed)
    at = 0.0
    while (at := at + chance.uniform(3.0, 8.0)) < seconds:
        role = chance.choices(list(ROLES), list(ROLES.values()))[0]
        yield PlannedFault(at, role, chance.random(), chance.choice(SIGNALS), chance.uniform(1.0, 12.0))


def send_faults(run: JobProcess, faults: Iterator[PlannedFault], seconds: float) -> Counter[str]:
    """Send the faults when they are due; returns how many were sent, by role and signal."""
    began, sent = time.monotonic(), Counter[str]()
    stopped: dict[int, float] = {}
    fault = next(faults, None)
    while run.process.poll() is None and (fault or stopped):
        now = time.monotonic() - began
        for pid in [pid for pid, until in stopped.items() if until <= now]:
            del stopped[pid]
            deliver(pid, signal.SIGCONT)
        if fault and fault.at <= now:
            live = run.pids(fault.role)
            if live:
                index = sorted(live)[int(fault.pick * len(live))]
                if deliver(live[index], fault.number):
                    sent[f"{fault.role} {fault.number.name}"] += 1
                    step = run.status().get("step")
                    print(f"{now:6.1f} s  {fault.number.name} to {fault.role}-{index} at step {step}", flush=True)
                    if fault.number == signal.SIGSTOP:
                        stopped[live[index]] = min(now + fault.stopped, seconds)
            fault = next(faults, None)
        time.sleep(0.05)
    for pid in stopped:
        deliver(pid, signal.SIGCONT)
    return sent


def deliver(pid: int, number: signal.Signals) -> bool:
    """Send a signal; returns whether the process was there."""

    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def run_chaos(folder: Path, *, seed: int, mode: str, seconds: float, workers: int = 3) -> dict[str, Any]:
    """One job under random faults, checked.

    Returns:
        ``seed``, ``mode``, ``seconds``, ``faults`` (sent, by role and signal), the summary's accounts, and
        ``violations``: one line for each promise that was broken.
    """
    step_seconds = 0.1
    job = CountingJob.make(
        folder, mode, steps=max(800, int(seconds * workers / step_seconds)), step_seconds=step_seconds, workers=workers
    )
    with job.job_folder.run(started=True) as run:
        run.wait_step(1)
        sent = send_faults(run, schedule(seed, seconds), seconds)
        under_fault = run.status().get("step", 0)
        job.hurry()
        summary = run.summary(END_SECONDS)
        wrong = violations(run.run_dir, summary, records=job.records, epochs=job.epochs, ps=job.ps)
    summary_fields = ("records_done", "records_repeated", "records_rolled_back", "updates_rolled_back", "workers_lost")
    return {
        "seed": seed,
        "mode": mode,
        "seconds": seconds,
        "faults": dict(sorted(sent.items())),
        "steps_under_faults": under_fault,
        **{name: summary[name] for name in summary_fields},
        "violations": wrong,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", choices=sorted(MODES), default="async")
    parser.add_argument("--seconds", type=float, default=360.0)
    parser.add_argument("--keep", type=Path, help="a new folder for the job, which is kept; else a temporary one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="edl-chaos-") as temporary:
        folder = arguments.keep or Path(temporary)
        report = run_chaos(folder, seed=arguments.seed, mode=arguments.mode, seconds=arguments.seconds)
    print(json.dumps(report))
    return 1 if report["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
