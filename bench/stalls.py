"""How long workers stand still for a checkpoint: from the logs of their steps and the lines of their job.

A worker's step begins when the one before was in, and what it slept (``zoo/slow_step.py``) is no part of it. What a
checkpoint adds is what the longest step beside it took, less the median of that worker's steps beside none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from support.job_process import JobProcess, Line

Seconds: TypeAlias = NDArray[np.float64]
Window: TypeAlias = tuple[float, float]
"""Unix seconds, from and until."""
LINE = 3


@contextmanager
def step_logs() -> Iterator[Path]:
    """The folder in which workers that are started within the block keep their step logs.

    It is in memory where the system has such a place: on the disk to which the checkpoint goes, a line more in a file
    waits for that file system's journal, at times for a tenth of a second, and in a job no step writes to a disk.
    """
    memory = Path("/dev/shm")
    with TemporaryDirectory(prefix="edl-bench-", dir=memory if memory.is_dir() else None) as name:
        os.environ["EDL_BENCH_DIARY"] = name
        yield Path(name)


@dataclass(frozen=True)
class WorkerSteps:
    """Steps of one worker, in order.

    Attributes:
        number: of the job's steps, as the worker knew: others may have pushed meanwhile.
        begin: when the step before was in, in unix seconds.
        end: when the step was in.
        step_seconds: seconds from begin to end without those that it slept.
    """

    number: Seconds
    begin: Seconds
    end: Seconds
    step_seconds: Seconds

    def steps_in_window(self, window: Window) -> NDArray[np.bool_]:
        """Which steps were under way at some time of the window."""
        under_way: NDArray[np.bool_] = (self.end > window[0]) & (self.begin < window[1])
        return under_way

    def seconds_outside(self, windows: Sequence[Window]) -> Seconds:
        """What steps took that lie in no window, from the first one on."""
        quiet = self.begin > windows[0][0]
        for window in windows:
            quiet &= ~self.steps_in_window(window)
        return self.step_seconds[quiet]


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint: the step at which it was due, when it was on disk, how long updates waited for it."""

    due_step: int
    saved_at: float
    pause: float


def read_steps(step_log: Path, settle: int) -> WorkerSteps:
    """A worker's steps without the first ``settle``, which are slow."""
    numbers = np.fromfile(step_log, np.float64)
    lines = numbers[: len(numbers) // LINE * LINE].reshape(-1, LINE)
    return steps_after_first(*lines[settle:].T)


def steps_after_first(number: Seconds, end: Seconds, slept: Seconds) -> WorkerSteps:
    """All steps but the first, of which nobody knows when it began."""
    return WorkerSteps(number[1:], end[:-1], end[1:], np.diff(end) - slept[1:])


def each_saved(run: JobProcess, longest: float) -> Iterator[Line]:
    """The events ``checkpoint_saved`` from now on, as they come, at most ``longest`` seconds apart."""
    after = len(run.lines)
    while True:
        line = run.wait_line(lambda line: line["event"] == "checkpoint_saved", longest, after)
        after = run.lines.index(line, after) + 1
        yield line


def read_checkpoints(lines: Iterable[Line], every: int) -> list[SavedCheckpoint]:
    """What the events ``checkpoint_saved`` say; the first one is of before the first step, and left out.

    A checkpoint is due at the first multiple of ``every`` after the one before, also when it took several attempts.
    """
    return [
        SavedCheckpoint((before["step"] // every + 1) * every, line["time"], line["pause_seconds"])
        for before, line in pairwise(lines)
    ]


def checkpoint_windows(
    workers: Sequence[WorkerSteps], saved: Iterable[SavedCheckpoint], together: int = 1
) -> list[Window]:
    """For each checkpoint the time from the step at which it was due until it was on disk.

    ``together`` workers push at once, so that the step that a worker calls ``n`` is one of the next as many.
    """

    def reached_at(step: int) -> float:
        ends = (worker.end[worker.number >= step] for worker in workers)
        return min((float(end[0]) for end in ends if len(end)), default=float("inf"))

    return [(min(reached_at(one.due_step - together), one.saved_at - one.pause), one.saved_at) for one in saved]


def windows_between(windows: Sequence[Window]) -> list[Window]:
    """Windows of the same lengths, half-way from each one to the next: what happens there no checkpoint has done."""
    between = []
    for (since, until), (following, _) in pairwise(windows):
        middle, length = (until + following) / 2, until - since
        if length <= following - until:
            between.append((middle - length / 2, middle + length / 2))
    return between


def beyond_usual(workers: Iterable[WorkerSteps], windows: Sequence[Window]) -> list[WorkerSteps]:
    """The same steps with what they took beyond the worker's median beside no window; without such steps, no worker."""
    beyond = []
    for worker in workers:
        quiet = worker.seconds_outside(windows)
        if len(quiet):
            beyond.append(replace(worker, step_seconds=worker.step_seconds - np.median(quiet)))
    return beyond


def longest_step(workers: Iterable[WorkerSteps], window: Window) -> float:
    """Of all steps of all workers beside a window."""
    return max(
        float(took.max()) for worker in workers if len(took := worker.step_seconds[worker.steps_in_window(window)])
    )
