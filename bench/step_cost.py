"""Where the processor time of a DeepFM step goes: one PS and two workers, by process and thread.

The job of deepfm.py. Processor time of every thread between two moments in its middle, as the kernel counts it, by the
steps that the ledger counts between them. What the limit of deepfm.py leaves for parameter servers is the difference
between this sum and the cores' time of one of its steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import psutil
from click_job import BLOCKS, ClickLogFolder, click_log_folder
from deepfm import in_its_middle
from figures import BenchFigure, ScriptResult
from script import main, print_progress

COMPUTING = "workers: TensorFlow's threads (the step, parsing)"
FEEDING = "workers: other threads (reading, parsing, progress)"
TURNING = "workers: main thread (ids, frames, sockets, calling the step)"
SERVING = "the PS"
RUNNING = "the master and `edl run`"
PARTS = (COMPUTING, FEEDING, TURNING, SERVING, RUNNING)
Costs = dict[str, float]


def part_of(module: str, thread: str, *, first: bool) -> str:
    """Which part a thread belongs to, by the module that its process runs, its name, and whether it is the first."""
    if module == "edl.worker":
        return COMPUTING if thread == "tf_Compute" else TURNING if first else FEEDING
    return SERVING if module == "edl.ps" else RUNNING


def processor_seconds() -> Costs:
    """Seconds of processor time so far of the job that runs below this process, by part."""
    costs: Costs = dict.fromkeys(PARTS, 0.0)
    for process in psutil.Process().children(recursive=True):
        try:
            words = process.cmdline()
            module = words[words.index("-m") + 1] if "-m" in words else ""
            for thread in process.threads():
                name = Path(f"/proc/{process.pid}/task/{thread.id}/comm").read_text().strip()
                costs[part_of(module, name, first=thread.id == process.pid)] += thread.user_time + thread.system_time
        except (psutil.NoSuchProcess, FileNotFoundError):
            continue  # it has just ended
    return costs


def measure_costs(clicks: ClickLogFolder, batch: int, seconds: float) -> Costs:
    """Milliseconds of processor time a step, by part, and how many cores were at work."""
    with in_its_middle(clicks, batch) as run:
        before, first, begun = processor_seconds(), run.status(), time.monotonic()
        time.sleep(seconds)
        after, last, ended = processor_seconds(), run.status(), time.monotonic()
    # The ledger counts in its own moments: rates are compared, not counts.
    steps = (last["records_done"] - first["records_done"]) / batch / (last["updated"] - first["updated"])
    used = {part: (after[part] - before[part]) / (ended - begun) for part in PARTS}
    return {part: 1e3 * cores / steps for part, cores in used.items()} | {"cores": sum(used.values())}


def measure(given: argparse.Namespace) -> ScriptResult:
    rounds: dict[int, list[Costs]] = {batch: [] for batch in given.batches}
    with click_log_folder(max(given.records, BLOCKS * max(given.batches)), given.vocabulary) as clicks:
        for number in range(given.rounds):
            for batch, batch_costs in rounds.items():
                batch_costs.append(measure_costs(clicks, batch, given.seconds))
                costs_text = ", ".join(f"{part} {value:.1f}" for part, value in batch_costs[-1].items())
                print_progress(f"round {number + 1} of {given.rounds}, batch {batch}: {costs_text}")
    return ScriptResult("step_cost", tuple(figures(rounds)), {"rounds": rounds, "vocabulary": given.vocabulary})


def figures(rounds: dict[int, list[Costs]]) -> Iterator[BenchFigure]:
    for batch, batch_costs in rounds.items():
        for part in PARTS:
            yield BenchFigure(f"DeepFM, batch {batch}, a step: {part}", median(one[part] for one in batch_costs), "ms")
        yield BenchFigure(f"DeepFM, batch {batch}: cores at work", median(one["cores"] for one in batch_costs), "")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=8.0, help="of a round; default 8")
    parser.add_argument("--records", type=int, default=200_000, help="of the log; default 200,000")
    parser.add_argument("--vocabulary", type=int, default=1_000_000, help="default a million")
    parser.add_argument("--batches", type=int, nargs="+", default=[512, 4096], help="default 512 and 4096")


if __name__ == "__main__":
    main(__doc__, measure, rounds=3, options=options)
