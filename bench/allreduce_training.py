"""Samples a second of strategy AllReduce beside ``MultiWorkerMirroredStrategy``, and beside no exchange at all.

Two workers with one thread each, Momentum; a CNN of a million parameters with minibatches of 128, and an MLP of ten
million with minibatches of 256. EDL's side is ``edl run``, whose workers read records and parse them with ``feed``; the
rate is the ledger's, in the middle of a run. The others have their minibatches in memory
(``allreduce_training_side.py``). They take turns. Of two programs under the strategy, the faster one is the peer.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from figures import BenchFigure, ScriptResult, steady_rate
from peer import PeerScript, ask_all
from script import main, print_progress
from support.job_process import JobProcess

ZOO = Path(__file__).with_name("zoo")
WORKERS = 2
BATCHES = {"cnn": 128, "mlp": 256}
TITLES = {"cnn": "CNN of 1 M parameters, minibatch 128", "mlp": "MLP of 10 M parameters, minibatch 256"}
UNROLLS = (1, 4)
PROGRAMS = ("mirrored", "fit")
"""Under the strategy: a loop over raw variables, and ``fit`` of ``tf_keras``."""
WARM_STEPS = 5
POLL_SECONDS = 0.25
LIMIT, PEER = "two workers that exchange nothing", "`MultiWorkerMirroredStrategy`"
Rates = dict[str, float]


def edl_rate(folder: Path, model: str, seconds: float) -> float:
    """Samples a second of both workers of a job, in its middle."""
    spec = {
        "apiVersion": "edl.dev/v1",
        "name": f"training-{model}",
        "strategy": {"name": "AllReduce"},
        "model": {"zoo": str(ZOO), "definition": f"momentum_models.{model}"},
        "data": {"training": str(ZOO / "momentum_models.py"), "reader": {"records": 1_000_000}},
        "train": {"epochs": 1000, "minibatch_size": BATCHES[model], "minibatches_per_task": 64},
        "checkpoint": None,
        "export": None,
        "workers": {"max": WORKERS},
    }
    file = folder / f"{model}.json"
    file.write_text(json.dumps(spec))
    samples: list[tuple[float, int]] = []
    with JobProcess(file, cwd=folder) as run:
        run.wait_event("world_changed", workers=WORKERS)
        run.wait_step(run.status()["step"] + WARM_STEPS)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            status = run.status()
            samples.append((status["updated"], status["records_done"]))
            time.sleep(POLL_SECONDS)
        run.interrupt()
        run.wait()
    return steady_rate(samples[1:], samples[0][1] + 1)


class OtherSide:
    """Two processes of ``allreduce_training_side.py``.

    Args:
        unrolls: numbers of steps in a function, of which the fastest is taken.
    """

    def __init__(self, stack: ExitStack, model: str, side: str, unrolls: Sequence[int], seconds: float) -> None:
        addresses = free_addresses() if side in PROGRAMS else []
        self._ranks = [
            PeerScript("allreduce_training_side.py", model, side, str(rank), *addresses) for rank in range(WORKERS)
        ]
        # A rank of the strategy is ready when all are.
        for rank in self._ranks:
            rank.start()
            stack.callback(rank.__exit__, None, None, None)
        for rank in self._ranks:
            rank.ready_message = rank.receive_answer()
        self._batch = BATCHES[model]
        self.tried_options = {unroll: self.samples_per_second(seconds / 4, unroll) for unroll in unrolls}
        self._unroll = max(self.tried_options, key=lambda unroll: self.tried_options[unroll])
        self.best_rate = self.tried_options[self._unroll]
        print_progress(
            f"{side}, {model}: "
            + ", ".join(f"{unroll} steps {rate:,.0f}/s" for unroll, rate in self.tried_options.items())
        )

    def samples_per_second(self, seconds: float, unroll: int | None = None) -> float:
        """Samples a second of both, for about so many seconds."""
        unroll = unroll or self._unroll
        took = self._call_seconds(2, unroll)
        calls = max(2, int(2 * seconds / took))
        return calls * unroll * WORKERS * self._batch / self._call_seconds(calls, unroll)

    def _call_seconds(self, calls: int, unroll: int) -> float:
        answers = ask_all(self._ranks, calls=calls, unroll=unroll, batch=self._batch)
        return max(float(answer["seconds"]) for answer in answers)


def free_addresses() -> list[str]:
    """Free ports of this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(WORKERS)]
    names = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return names


def measure(arguments: argparse.Namespace) -> ScriptResult:
    rates: dict[str, list[Rates]] = {}
    tried: dict[str, Any] = {}
    for model in BATCHES:
        with TemporaryDirectory(prefix="edl-bench-") as folder, ExitStack() as stack:
            limit = OtherSide(stack, model, "limit", (1,), arguments.seconds)
            programs = {name: OtherSide(stack, model, name, UNROLLS, arguments.seconds) for name in PROGRAMS}
            tried[model] = {name: program.tried_options for name, program in programs.items()}
            peer = max(programs.values(), key=lambda program: program.best_rate)
            rates[model] = []
            for _ in range(arguments.rounds):
                rates[model].append(
                    {
                        "EDL": edl_rate(Path(folder), model, arguments.seconds),
                        LIMIT: limit.samples_per_second(arguments.seconds),
                        PEER: peer.samples_per_second(arguments.seconds),
                    }
                )
                print_progress(
                    f"{model}: " + ", ".join(f"{name} {rate:,.0f}/s" for name, rate in rates[model][-1].items())
                )
    return ScriptResult("allreduce_training", tuple(figures(rates)), {"rounds": rates, "tried": tried})


def figures(rates: dict[str, list[Rates]]) -> Iterator[BenchFigure]:
    """Ratios are medians of ratios within a round."""
    for model, rounds in rates.items():
        for side, limit, aim in ((PEER, 1.2, 1.6), (LIMIT, 0.85, 0.95)):
            ratio = median(round_rates["EDL"] / round_rates[side] for round_rates in rounds)
            name = f"AllReduce, 2 workers, {TITLES[model]}: samples/s, of {side}'s"
            if side == LIMIT:
                name = f"AllReduce, 2 workers, {TITLES[model]}: samples/s, of {side}"
            yield BenchFigure(name, ratio, "x", limit, at_least=True, aim=aim)
    for model, rounds in rates.items():
        for side in ("EDL", LIMIT, PEER):
            rate = median(round_rates[side] for round_rates in rounds)
            yield BenchFigure(f"AllReduce, 2 workers, {TITLES[model]}: {side}", rate, "samples/s")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=5.0, help="of each side in each round; default 5")


if __name__ == "__main__":
    main(__doc__, measure, rounds=5, options=options)
