"""How fast buffers are summed over processes of one machine: ``edl.collective``, gloo, and what the machine allows.

All ranks are processes that live through the run; contestants take turns in every round. A buffer's bytes by the median
time of a reduction are GB/s (1e9 bytes). gloo comes from Debian's PyTorch (``apt-get install python3-torch``), with
another Python than EDL's, and is left out where it is not installed. Limits beside it: two bare TCP sockets that move
as many bytes in both directions without adding anything, and a copy of the buffer within one process.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from figures import BenchFigure, ScriptResult
from peer import PeerScript, ask_all
from script import main, print_progress

MEASURES = {"25 MB": (25_000_000, 2, 12), "100 MB": (100_000_000, 1, 5), "4 kB": (4_096, 200, 1500)}
"""Bytes, reductions that are not counted, and those that are."""
PIECES = (1, 2, 4, 8)
"""Concurrent parts of a buffer that gloo may take."""
SYSTEM_PYTHON = "/usr/bin/python3"
Times = dict[str, dict[str, float]]
"""Seconds by contestant and measure."""


@dataclass(frozen=True)
class Contestant:
    """Ranks that reduce together.

    Attributes:
        measure_names: names of ``MEASURES``.
        wire_options: what goes with each question.
        pieces: by measure, into how many concurrent parts gloo cuts its buffer.
    """

    name: str
    rank_scripts: Sequence[PeerScript]
    measure_names: Sequence[str] = tuple(MEASURES)
    wire_options: dict[str, Any] | None = None
    pieces: dict[str, int] | None = None

    def reduction_seconds(self, measure: str, **options: Any) -> float:
        """Median time of a reduction, of the slowest rank."""
        nbytes, warm, count = MEASURES[measure]
        question = {"bytes": nbytes, "warm": warm, "count": count, **(self.wire_options or {}), **options}
        if self.pieces is not None:
            question.setdefault("pieces", self.pieces[measure])
        return max(float(answer["seconds"]) for answer in ask_all(self.rank_scripts, **question))


def make_edl(stack: ExitStack, folder: str, size: int, *, local: bool, native: bool = True) -> Contestant:
    kind = "native" if native else "numpy"
    addresses = [f"unix:{folder}/{kind}{size}-{rank}" if local else "127.0.0.1:0" for rank in range(size)]
    ranks = [
        stack.enter_context(PeerScript("allreduce_rank.py", "edl", str(rank), addresses[rank], kind))
        for rank in range(size)
    ]
    ask_all(ranks, members=[rank.ready_message["address"] for rank in ranks])
    where = "local" if local else "TCP"
    return Contestant(f"{'edl' if native else 'NumPy'} {where} {size}", ranks)


def make_gloo(stack: ExitStack, folder: str, size: int) -> Contestant:
    # A rank is ready when all are: they are started together.
    peers = [
        PeerScript("allreduce_gloo.py", str(rank), str(size), f"{folder}/gloo{size}", python=SYSTEM_PYTHON)
        for rank in range(size)
    ]
    for peer in peers:
        peer.start()
        stack.callback(peer.__exit__, None, None, None)
    for peer in peers:
        peer.ready_message = peer.receive_answer()
    return Contestant(f"gloo TCP {size}", peers, pieces=dict.fromkeys(MEASURES, 1))


def make_bare(stack: ExitStack) -> Contestant:
    ranks = [stack.enter_context(PeerScript("allreduce_rank.py", "bare", str(rank))) for rank in range(2)]
    ask_all(ranks, port=ranks[0].ready_message["port"])
    return Contestant("bare TCP 2", ranks)


def tune_pieces(contestant: Contestant) -> Contestant:
    """The same with the number of pieces with which it reduces each buffer fastest: a small one is slower in pieces."""

    def tried_seconds(measure: str, pieces: int) -> float:
        _, warm, count = MEASURES[measure]
        return contestant.reduction_seconds(measure, pieces=pieces, warm=min(warm, 50), count=min(count, 300))

    pieces = {measure: min(PIECES, key=partial(tried_seconds, measure)) for measure in MEASURES}
    fastest = ", ".join(f"{measure} {count}" for measure, count in pieces.items())
    print_progress(f"{contestant.name} is fastest with so many concurrent pieces: {fastest}")
    return replace(contestant, pieces=pieces)


def missing_gloo() -> str:
    """Why gloo cannot be measured; empty if it can."""
    try:
        done = subprocess.run(
            [SYSTEM_PYTHON, "-c", "import torch.distributed as d; assert d.is_gloo_available()"], capture_output=True
        )
    except OSError as error:
        return f"{SYSTEM_PYTHON}: {error}"
    return "" if done.returncode == 0 else "Debian's PyTorch is not installed (apt-get install python3-torch)"


def copy_seconds(nbytes: int) -> float:
    source, target = (np.zeros(nbytes, np.uint8) + number for number in (0, 1))
    took = []
    for _ in range(7):
        begun = time.perf_counter()
        np.copyto(target, source)
        took.append(time.perf_counter() - begun)
    return statistics.median(took)


def measure_contestants(arguments: argparse.Namespace) -> ScriptResult:
    rounds: list[Times] = []
    skipped = missing_gloo()
    if skipped:
        print_progress(f"gloo is SKIPPED: {skipped}")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        contestants = [
            make_edl(stack, folder, 2, local=False),
            make_edl(stack, folder, 2, local=True),
            make_edl(stack, folder, 4, local=False),
            make_edl(stack, folder, 4, local=True),
            make_bare(stack),
        ]
        # The same processes reduce the same buffers with half of the bytes.
        contestants += [
            Contestant(f"{each.name} as bfloat16", each.rank_scripts, wire_options={"wire_type": "bfloat16"})
            for each in contestants[:2]
        ]
        if not skipped:
            for size in (2, 4):
                gloo = make_gloo(stack, folder, size)
                contestants.append(tune_pieces(gloo) if arguments.tune else gloo)
        for number in range(arguments.rounds):
            times: Times = {
                each.name: {name: each.reduction_seconds(name) for name in each.measure_names} for each in contestants
            }
            times["copy"] = {name: copy_seconds(MEASURES[name][0]) for name in MEASURES}
            rounds.append(times)
            print_progress(f"round {number + 1} of {arguments.rounds}")
    return ScriptResult("allreduce", tuple(figures(rounds)), {"rounds": rounds, "skipped": skipped})


def figures(rounds: list[Times]) -> Iterator[BenchFigure]:
    """Ratios are medians of ratios within a round."""

    def time_ratio(first: str, second: str, measure: str) -> float:
        return statistics.median(times[first][measure] / times[second][measure] for times in rounds)

    if "gloo TCP 2" in rounds[0]:
        for ours, theirs, what, limit, aim in (
            ("edl TCP 2", "gloo TCP 2", "2 ranks over TCP", 1.25, 1.5),
            ("edl local 2", "gloo TCP 2", "2 ranks of one machine", 2.5, 4.0),
            ("edl TCP 4", "gloo TCP 4", "4 ranks over TCP", 1.1, 1.3),
        ):
            for measure in ("25 MB", "100 MB"):
                name = f"all-reduce of {measure}, {what}: GB/s, of gloo's"
                yield BenchFigure(name, time_ratio(theirs, ours, measure), "x", limit, at_least=True, aim=aim)
        for ours, what in (("edl TCP 2", "over TCP"), ("edl local 2", "of one machine")):
            name = f"all-reduce of 4 kB, 2 ranks {what}: time, of gloo's"
            yield BenchFigure(name, time_ratio(ours, "gloo TCP 2", "4 kB"), "x", 1.0, aim=0.5)
    for contestant in rounds[0]:
        for measure in ("25 MB", "100 MB"):
            if measure in rounds[0][contestant]:
                nbytes = MEASURES[measure][0]
                speed = statistics.median(nbytes / times[contestant][measure] / 1e9 for times in rounds)
                yield BenchFigure(f"{contestant}: {measure}", speed, "GB/s")
        if contestant != "copy":
            latency = statistics.median(times[contestant]["4 kB"] for times in rounds)
            yield BenchFigure(f"{contestant}: 4 kB", latency * 1e6, "us")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-tune", dest="tune", action="store_false", help="give gloo whole buffers only")


if __name__ == "__main__":
    main(__doc__, measure_contestants, rounds=5, options=options)
