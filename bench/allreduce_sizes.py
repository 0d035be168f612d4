"""Which algorithm sums small buffers faster: every whole buffer round the ring (GATHER), or reduce-scatter (RING).

``edl.collective`` chooses by the bytes of all buffers together (``GATHER_BYTES``). Ranks are processes of one machine,
over TCP and through shared memory; both algorithms take turns in every round, and a figure is the median of the ratios
of each round.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack

from allreduce import Contestant, make_edl
from figures import BenchFigure, ScriptResult
from peer import ask_all
from script import main, print_progress

from edl.collective.reduction_plan import GATHER_BYTES, Algorithm

TOTAL_BYTES = (16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20)
"""Of the buffers of all ranks together; ``GATHER_BYTES`` is one of them."""
SIZES = (2, 4, 8)
Times = dict[str, dict[str, dict[str, float]]]
"""Seconds by contestant, total size and algorithm."""


def reduction_seconds(ranks: Contestant, nbytes: int, algorithm: Algorithm, count: int) -> float:
    """Median time of a reduction, of the slowest rank."""
    question = {"bytes": nbytes, "warm": count // 10, "count": count, "algorithm": algorithm.name}
    return max(float(answer["seconds"]) for answer in ask_all(ranks.rank_scripts, **question))


def measure_algorithms(arguments: argparse.Namespace) -> ScriptResult:
    rounds: list[Times] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        contestants = {
            (size, local): make_edl(stack, folder, size, local=local) for size in SIZES for local in (False, True)
        }
        for number in range(arguments.rounds):
            rounds.append(
                {
                    ranks.name: {
                        str(total): {
                            algorithm.name: reduction_seconds(ranks, total // size, algorithm, arguments.count)
                            for algorithm in Algorithm
                        }
                        for total in TOTAL_BYTES
                    }
                    for (size, _), ranks in contestants.items()
                }
            )
            print_progress(f"round {number + 1} of {arguments.rounds}")
    return ScriptResult("allreduce_sizes", tuple(figures(rounds)), {"rounds": rounds})


def figures(rounds: list[Times]) -> Iterator[BenchFigure]:
    """For each kind of ranks: up to which size GATHER is faster, and both algorithms' times at the border of EDL."""
    for ranks in rounds[0]:
        ratios = {
            int(total): statistics.median(
                times[ranks][total]["GATHER"] / times[ranks][total]["RING"] for times in rounds
            )
            for total in rounds[0][ranks]
        }
        faster = 0
        for total in sorted(ratios):
            if ratios[total] > 1:
                break
            faster = total
        yield BenchFigure(f"{ranks}: GATHER is faster than RING up to, in all", faster >> 10, "KiB")
        yield BenchFigure(
            f"{ranks}: time of GATHER, of RING's, {GATHER_BYTES >> 10} KiB in all", ratios[GATHER_BYTES], "x"
        )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=200, help="reductions of each size and round, default 200")


if __name__ == "__main__":
    main(__doc__, measure_algorithms, rounds=5, options=options)
