"""How long workers of strategy AllReduce stand still when one of four is SIGKILLed, and when one joins.

Every worker notes when each step was applied (``zoo/step_times.py``). Killed and joined are real processes of a real
job. The other side is ``torchrun`` with a monitor interval of 0.1 s, which restarts all workers (Debian's PyTorch,
``apt-get install python3-torch``, with gloo); it is left out where that is not installed.

* *killed*: from ``os.kill`` to the moment at which all survivors have applied the next step of the new world, less a
  median step of the job before. A step that was applied after the kill with all four ranks does not count.
* *joined*: the longest time between two steps of a worker that stayed, from a second before the new worker's first step
  to a second after it, less a median step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
from allreduce import SYSTEM_PYTHON, missing_gloo
from figures import BenchFigure, ScriptResult
from numpy.typing import NDArray
from script import main, print_progress
from support.job_process import JobProcess

ZOO = Path(__file__).with_name("zoo")
TORCH_WORKER = Path(__file__).with_name("allreduce_torchrun.py")
WORKERS = 4
SETTLE_SECONDS = 2.0
"""Undisturbed steps before each fault; the median step is taken from them."""
AROUND_SECONDS = 1.0
LONGEST_SECONDS = 60.0
POLL_SECONDS = 0.02
Times = NDArray[np.float64]


@dataclass(frozen=True)
class TimedModel:
    """A model whose workers note their steps.

    Attributes:
        name: how figures call it.
        definition: in ``zoo``.
        minibatch: records of a step.
    """

    name: str
    definition: str
    params: dict[str, Any]
    minibatch: int


ARRAYS = TimedModel("a step of 10 ms without TensorFlow", "timed_arrays.custom_model", {}, 4)
TENSORFLOW = TimedModel("TensorFlow", "timed_replica.custom_model", {"hidden": 960}, 64)
LARGE = TimedModel("a model of 40 MB", "timed_replica.custom_model", {"hidden": 3130}, 8)
"""One and ten million parameters of four bytes."""


@dataclass(frozen=True)
class WorldChange:
    """What one kill and the join of the successor cost, in seconds.

    Attributes:
        step: a median step before the kill.
        exited: from the kill to the end of the process. Its memory is freed before its sockets are closed.
        killed: from the kill until all survivors had applied the next step, less a median step.
        joined: the longest gap around the round that the successor joined.
        starting: the longest gap while the successor imported TensorFlow, built its model and followed.
        join_step: a median step while the successor was being awaited, with three workers.
    """

    step: float
    exited: float
    killed: float
    joined: float
    starting: float
    join_step: float


@contextmanager
def step_times() -> Iterator[Path]:
    """The folder with the steps of processes that are started within the block; in memory where there is a place."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(prefix="edl-bench-", dir=memory if memory.is_dir() else None) as name:
        os.environ["EDL_BENCH_STEP_TIMES"] = name
        yield Path(name)


def read_step_times(folder: Path, pid: int) -> Times:
    """When a process applied its steps. The first is of the trace of the model and is left out."""
    try:
        return np.fromfile(folder / str(pid), np.float64)[1:]
    except FileNotFoundError:
        return np.zeros(0)


def wait_for_steps(folder: Path, pids: Sequence[int], after: float) -> None:
    """Wait until each of the processes has applied a step after a moment.

    Raises:
        TimeoutError: they do not.
    """
    until = time.monotonic() + LONGEST_SECONDS
    while any((read_step_times(folder, pid)[-1:] <= after).all() for pid in pids):
        if time.monotonic() > until:
            raise TimeoutError(f"no steps of all {len(pids)} workers in {LONGEST_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


def resume_time(survivors: Sequence[Times], killed: float) -> float:
    """When all survivors had applied the first step without the killed worker, in unix seconds.

    A step whose reduction was finished before the kill may be applied after it. So the step counts that ends the
    longest of the first gaps.
    """
    ends = []
    for times in survivors:
        first = int(np.searchsorted(times, killed, side="right"))
        ends.append(float(times[first + int(np.argmax(np.diff(times)[first - 1 : first + 2]))]))
    return max(ends)


def longest_gap(workers: Sequence[Times], begin: float, end: float) -> float:
    """The longest time between two steps of a worker that meets the window."""
    gaps = [
        np.diff(times)[(times[1:] > begin) & (times[:-1] < end)].max(initial=0.0) for times in workers if len(times) > 1
    ]
    return float(max(gaps))


def median_step(times: Times, begin: float, end: float) -> float:
    """A median step that lies in the window."""
    return float(np.median(np.diff(times[(times >= begin) & (times <= end)])))


def job(folder: Path, model: TimedModel) -> Path:
    """Write the job file."""
    spec = {
        "apiVersion": "edl.dev/v1",
        "name": "world-changes",
        "strategy": {"name": "AllReduce"},
        "model": {"zoo": str(ZOO), "definition": model.definition, "params": model.params},
        "data": {"training": str(ZOO / "number_reader.py"), "reader": {"records": 1_000_000}},
        "train": {"epochs": 1000, "minibatch_size": model.minibatch, "minibatches_per_task": 64},
        "checkpoint": None,
        "export": None,
        "workers": {"max": WORKERS},
    }
    file = folder / "world-changes.json"
    file.write_text(json.dumps(spec))
    return file


def change_world(run: JobProcess, times: Path) -> WorldChange:
    """Kill the worker of the lowest index, and wait until its successor has trained for a while."""
    pids = run.pids("worker")
    wait_for_steps(times, list(pids.values()), time.time())
    time.sleep(SETTLE_SECONDS)
    victim = min(pids)
    survivors = [pid for index, pid in pids.items() if index != victim]
    lines_before = len(run.lines)
    killed = run.send("worker", victim, SIGKILL)
    exited = run.wait_event("role_ended", after=lines_before, role="worker", index=victim)["time"]
    successor: int = run.wait_event("role_started", after=lines_before, role="worker")["pid"]
    # It follows the steps of the others before that.
    joined = run.wait_event("world_changed", after=lines_before, workers=WORKERS)["time"]
    time.sleep(AROUND_SECONDS)
    wait_for_steps(times, [*survivors, successor], joined + AROUND_SECONDS)
    steps = [read_step_times(times, pid) for pid in survivors]
    again = resume_time(steps, killed)
    step = median_step(steps[0], killed - SETTLE_SECONDS, killed)
    join_step = median_step(steps[0], again, joined)
    around = longest_gap(steps, joined - AROUND_SECONDS, joined + AROUND_SECONDS)
    starting = longest_gap(steps, again, joined - AROUND_SECONDS)
    return WorldChange(
        step, exited - killed, again - killed - step, around - join_step, starting - join_step, join_step
    )


def edl_changes(model: TimedModel, folder: Path, rounds: int) -> list[WorldChange]:
    """Several kills in one job."""
    changes = []
    with step_times() as times, JobProcess(job(folder, model), cwd=folder) as run:
        for index in range(WORKERS):
            run.wait_event("role_started", role="worker", index=index)
        run.wait_event("world_changed", workers=WORKERS)
        for _ in range(rounds):
            changes.append(change_world(run, times))
            print_progress(f"EDL, {model.name}: {change_text(changes[-1])}")
        run.interrupt()
        run.wait()
    return changes


def change_text(change: WorldChange) -> str:
    return ", ".join(f"{name} {1e3 * value:.0f} ms" for name, value in vars(change).items())


def torchrun_seconds(folder: Path, rounds: int) -> list[float]:
    """From each kill until all workers had applied a step again, less a median step."""
    command = [SYSTEM_PYTHON, "-m", "torch.distributed.run", "--standalone", "--nnodes=1"]
    command += [f"--nproc_per_node={WORKERS}", f"--max_restarts={rounds + 1}", "--monitor_interval=0.1"]
    # Of 0 to 3, PyTorch 1.13 reads only 1 and 2 under Python 3.11: the default, 0, fails.
    command += ["--redirects=1", "--tee=1", f"--log_dir={folder}"]
    seconds = []
    with step_times() as times:
        agent = subprocess.Popen(
            [*command, str(TORCH_WORKER)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            for _ in range(rounds):
                pids = wait_for_processes(times, time.time())
                time.sleep(SETTLE_SECONDS)
                killed = time.time()
                os.kill(pids[0], SIGKILL)
                step = median_step(read_step_times(times, pids[1]), killed - SETTLE_SECONDS, killed)
                successors = wait_for_processes(times, killed, without=pids)
                again = max(float(read_step_times(times, pid)[0]) for pid in successors)
                seconds.append(again - killed - step)
                print_progress(f"torchrun: killed {1e3 * seconds[-1]:.0f} ms, step {1e3 * step:.0f} ms")
        finally:
            end_tree(agent)
    return seconds


def wait_for_processes(times: Path, after: float, without: Sequence[int] = ()) -> list[int]:
    """The processes of a world, once all of them have applied a step after a moment."""
    until = time.monotonic() + LONGEST_SECONDS
    while True:
        pids = [int(path.name) for path in times.iterdir() if int(path.name) not in without]
        moving = [pid for pid in pids if (read_step_times(times, pid)[-1:] > after).any()]
        if len(moving) == WORKERS:
            return moving
        if time.monotonic() > until:
            raise TimeoutError(f"torchrun's workers take no steps after {LONGEST_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and what it started."""
    started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    for child in started:
        if child.is_running():
            child.kill()


def measure(arguments: argparse.Namespace) -> ScriptResult:
    skipped = missing_gloo()
    if skipped:
        print_progress(f"torchrun is SKIPPED: {skipped}")
    with TemporaryDirectory(prefix="edl-bench-") as folder:
        changes = {
            model.name: edl_changes(model, Path(folder), arguments.rounds) for model in (ARRAYS, TENSORFLOW, LARGE)
        }
        torchrun = [] if skipped else torchrun_seconds(Path(folder), arguments.rounds)
    details = {name: [vars(change) for change in model_changes] for name, model_changes in changes.items()}
    return ScriptResult(
        "allreduce_recovery",
        tuple(figures(changes, torchrun)),
        {"changes": details, "torchrun": torchrun, "skipped": skipped},
    )


def figures(changes: dict[str, list[WorldChange]], torchrun: list[float]) -> Iterator[BenchFigure]:
    """Medians against the limits; the slowest of each beside them, since a median hides a miss."""

    def median_and_worst(values: Sequence[float]) -> tuple[float, float]:
        return 1e3 * median(values), 1e3 * max(values)

    beside = []
    for model in (ARRAYS, TENSORFLOW):
        name = f"AllReduce, 1 of {WORKERS} workers SIGKILLed, {model.name}: the others' next step, beyond a step's time"
        usual, slowest = median_and_worst([change.killed for change in changes[model.name]])
        yield BenchFigure(name, usual, "ms", 250.0, aim=50.0)
        beside.append(BenchFigure(f"{name}, slowest of {len(changes[model.name])}", slowest, "ms"))
    name = f"AllReduce, a worker joins, {LARGE.name}: longest gap around its entry, less a median step"
    usual, slowest = median_and_worst([change.joined for change in changes[LARGE.name]])
    step, _ = median_and_worst([change.join_step for change in changes[LARGE.name]])
    yield BenchFigure(name, usual, "ms", 250.0, aim=step)
    beside.append(BenchFigure(f"{name}, slowest of {len(changes[LARGE.name])}", slowest, "ms"))
    for model in (ARRAYS, TENSORFLOW, LARGE):
        model_changes = changes[model.name]
        name = f"AllReduce, {model.name}:"
        beside.append(BenchFigure(f"{name} a median step", 1e3 * median(each.step for each in model_changes), "ms"))
        exited = 1e3 * median(each.exited for each in model_changes)
        beside.append(BenchFigure(f"{name} from SIGKILL to the end of the process", exited, "ms"))
        if model is not LARGE:
            joined = 1e3 * median(each.joined for each in model_changes)
            beside.append(BenchFigure(f"{name} a worker joins, longest gap less a median step", joined, "ms"))
        starting = 1e3 * median(each.starting for each in model_changes)
        beside.append(BenchFigure(f"{name} longest gap less a median step while a new worker starts", starting, "ms"))
    if torchrun:
        name = f"`torchrun`, 1 of {WORKERS} workers SIGKILLed, a step of 10 ms: next step, beyond a step's time"
        usual, slowest = median_and_worst(torchrun)
        beside += [BenchFigure(name, usual, "ms"), BenchFigure(f"{name}, slowest of {len(torchrun)}", slowest, "ms")]
    yield from beside


if __name__ == "__main__":
    main(__doc__, measure, rounds=3)
