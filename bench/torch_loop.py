"""A training loop in PyTorch whose records come through ``edl.sharding``, beside the same loop with its own DataLoader.

Both sides train the same model on the same file with the same number of processes, one thread each. The peer's loader
is tuned first: minibatches made of records one by one, or taken from the arrays at once; in the process of the loop, or
in one process more. Sides take turns, and a figure is the median of the ratios of the rounds.

It needs a Python with PyTorch: Debian's ``python3-torch``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import numpy as np
from figures import BenchFigure, ScriptResult
from script import main, print_progress
from support.program_environment import PLATFORM, make_environment

SYSTEM_PYTHON = "/usr/bin/python3"
SIDE = Path(__file__).with_name("torch_loop_side.py")
RECORDS = 20_000
START_SECONDS = 120.0
SETTLE_SECONDS = 0.05
"""Between two turns: the steps in progress end."""
LIMITS: Mapping[str, Any] = {"convolutions": {"limit": 0.97, "aim": 1.0}}
"""By model. The step of the dense layers takes two milliseconds: how far that is off is shown beside it."""
NOBODY, JOB, END = 0, 1, 255
"""Sides in the file of turns; the peers have the numbers between."""
PEERS: Mapping[str, Sequence[str]] = {
    "records, 0 loading": ("records", "--loaders", "0"),
    "records, 1 loading": ("records", "--loaders", "1"),
    "minibatches, 0 loading": ("minibatches", "--loaders", "0"),
    "minibatches, 1 loading": ("minibatches", "--loaders", "1"),
}
"""By name: arguments of the peer's process, whose loader may have a process of its own."""


def write_data(file: Path) -> None:
    """Images of 28 x 28, as MNIST's."""
    rng = np.random.default_rng(1)
    images = rng.integers(0, 255, (RECORDS, 28, 28), np.uint8)
    np.savez(file, image=images, label=rng.integers(0, 10, RECORDS))


class Rates(NamedTuple):
    """Records a second, and a second of the processors' time in the processes of the loops."""

    seconds: float
    cpu_seconds: float


class TrainingSides:
    """The job and its peers, all started and taking turns; a context manager, entered when all of them train.

    Args:
        given: arguments of the benchmark.
        data: the file.
        model: that all of them train.
        python: that has PyTorch.
    """

    def __init__(self, given: argparse.Namespace, data: Path, model: str, python: Path) -> None:
        self._given = given
        self._resources = ExitStack()
        self._folder = Path(self._resources.enter_context(TemporaryDirectory(prefix="edl-bench-")))
        self._data, self._model, self._python = data, model, python
        self._processes: list[subprocess.Popen[bytes]] = []
        self._turn = 0

    def __enter__(self) -> Self:
        with self._resources as parts:
            self._say(NOBODY)
            parts.callback(self._end)
            self._start([str(self._python.with_name("edl")), "run", str(self._write_job()), "--json"])
            for side, form in enumerate(PEERS.values(), JOB + 1):
                for index in range(self._given.processes):
                    arguments = [*form, *self._arguments(side), "--index", str(index)]
                    self._start([str(self._python), str(SIDE), *arguments])
            self._wait_until_ready((1 + len(PEERS)) * self._given.processes)
            self._resources = parts.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()

    def _arguments(self, side: int) -> list[str]:
        arguments = self._given
        values = {"folder": self._folder, "data": self._data, "model": self._model, "minibatch": arguments.minibatch}
        values |= {"processes": arguments.processes, "side": side}
        return [text for name, value in values.items() for text in (f"--{name}", str(value))]

    def _write_job(self) -> Path:
        spec = {
            "apiVersion": "edl.dev/v1",
            "name": "torch",
            "command": ["python", SIDE.name, "edl", *self._arguments(JOB)],
            "model": {"zoo": str(SIDE.parent)},
            "data": {"training": str(self._data)},
            "train": {"epochs": 10_000, "minibatch_size": self._given.minibatch},
            "workers": {"max": self._given.processes},
        }
        file = self._folder / "job.json"
        file.write_text(json.dumps(spec))
        return file

    def _start(self, command: Sequence[str]) -> None:
        environment = {**os.environ, "PYTHONPATH": str(PLATFORM)}
        with (self._folder / f"said-{len(self._processes)}").open("wb") as output:
            self._processes.append(
                subprocess.Popen(command, cwd=self._folder, env=environment, stdout=output, stderr=output)
            )

    def _say(self, side: int) -> None:
        with (self._folder / "turn").open("r+b" if (self._folder / "turn").exists() else "wb") as file:
            file.write(bytes([side, self._turn]))

    def _wait_until_ready(self, count: int) -> None:
        until = time.monotonic() + START_SECONDS
        while len(list(self._folder.glob("ready-*"))) < count:
            ended = [process for process in self._processes if process.poll() is not None]
            if ended or time.monotonic() > until:
                outputs = "\n".join(file.read_text(errors="replace")[-2000:] for file in self._folder.glob("said-*"))
                raise RuntimeError(f"not all processes train:\n{outputs}")
            time.sleep(SETTLE_SECONDS)

    def _end(self) -> None:
        self._say(END)
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.terminate()
        for process in self._processes:
            process.wait()

    def measure_rate(self, side: int) -> Rates:
        """The rates of all processes of a side, in a turn of its own."""
        self._turn = (self._turn + 1) % 200
        self._say(side)
        time.sleep(self._given.seconds)
        self._say(NOBODY)
        until = time.monotonic() + START_SECONDS
        while len(rates := list(self._counts(side))) < self._given.processes:
            if time.monotonic() > until:
                raise RuntimeError(f"side {side} did not count")
            time.sleep(SETTLE_SECONDS)
        return Rates(sum(rate.seconds for rate in rates), sum(rate.cpu_seconds for rate in rates))

    def _counts(self, side: int) -> Iterator[Rates]:
        for file in self._folder.glob(f"counts-{side}-*"):
            lines = file.read_text().splitlines()
            if lines and json.loads(lines[-1])[0] == self._turn:
                yield Rates(*json.loads(lines[-1])[1:])


def measure_model(sides: TrainingSides, rounds: int) -> tuple[str, list[tuple[Rates, Rates]]]:
    """The name of the best peer, and the rates of the job and of that peer in each round."""
    tried = {name: [sides.measure_rate(side).seconds for _ in range(3)] for side, name in enumerate(PEERS, JOB + 1)}
    best = max(tried, key=lambda name: median(tried[name]))
    print_progress(", ".join(f"{name} {median(rates):,.0f}/s" for name, rates in tried.items()))
    peer = JOB + 1 + list(PEERS).index(best)
    round_rates = []
    for number in range(rounds):
        rates = {side: sides.measure_rate(side) for side in ((JOB, peer) if number % 2 else (peer, JOB))}
        round_rates.append((rates[JOB], rates[peer]))
    return best, round_rates


def measure(given: argparse.Namespace) -> ScriptResult:
    if subprocess.run([SYSTEM_PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode:
        sys.exit("the system's Python has no PyTorch: install Debian's python3-torch")
    figures, details = [], {}
    with TemporaryDirectory(prefix="edl-bench-") as name:
        python = make_environment(Path(name) / "environment", SYSTEM_PYTHON, system_packages=True)
        data = Path(name) / "images.npz"
        write_data(data)
        print_progress("the environment is made")
        for model in given.models.split(","):
            with TrainingSides(given, data, model, python) as sides:
                best, rounds = measure_model(sides, given.rounds)
            details[model] = {"peer": best, "rounds": rounds}
            ratios = [job.seconds / peer.seconds for job, peer in rounds]
            cpu_ratio = median(job.cpu_seconds / peer.cpu_seconds for job, peer in rounds)
            print_progress(f"{model}: {', '.join(f'{ratio:.2f}' for ratio in ratios)}; of CPU time {cpu_ratio:.3f}")
            rates = " of ".join(f"{median(both[at].seconds for both in rounds):,.0f}" for at in (0, 1))
            note = f"{given.processes} processes, minibatches of {given.minibatch}, {rates} records/s; {best}"
            name_of_figure = f"PyTorch loop through edl.sharding, {model}: records/s, of its own DataLoader's"
            figures += [
                BenchFigure(name_of_figure, median(ratios), "x", note=note, at_least=True, **LIMITS.get(model, {})),
                BenchFigure(f"the same, {model}: records of a second of the loops' CPU time", cpu_ratio, "x"),
            ]
    return ScriptResult("torch_loop", figures, details)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn, default 1")
    parser.add_argument("--processes", type=int, default=2, help="of each side, default 2")
    parser.add_argument("--minibatch", type=int, default=64, help="default 64")
    parser.add_argument("--models", default="convolutions,dense", help="default convolutions,dense")


if __name__ == "__main__":
    main(__doc__, measure, rounds=15, options=options)
