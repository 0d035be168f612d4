"""The native table beside what bounds it: a gather without a look-up, TensorFlow's sparse Adagrad, its own bytes.

Looking up: rows of 16 floats, ids all over the 64 bits, asked for in batches of 106,496 (26 features of 4096 records)
that are uniform over the stored ones. The gather copies as many rows of a plain array whose rows begin on cache lines,
by positions that it is given, with the same prefetching.

Adagrad: a million rows of 16 floats, batches of the same size without duplicates, and from a Zipf law. TensorFlow
applies ``ResourceSparseApplyAdagradV2`` to a variable, which sums no duplicates; the table does, in this time.

One thread each; sides take turns in every round.

Memory: 100 million ids into a table of width 8 under SGD, in a process of its own: what the kernel counts as resident
after the last one, less before the first, and the most on the way.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from figures import BenchFigure, ScriptResult
from script import main, print_progress

from edl.api.tables import TableSpec
from edl.numerics import _native
from edl.numerics.native_table import NativeTable
from edl.numerics.optimizer_spec import OptimizerSpec

BATCH, DIM = 26 * 4096, 16
VOCABULARY = 1_000_000
UNIFORM = {"name": "uniform", "minval": -0.05, "maxval": 0.05}
Rates = dict[str, float]
Work = Callable[[int], object]
"""Deals with the batch of that number."""


def scatter_ids(numbers: np.ndarray) -> np.ndarray:
    """Distinct ids all over the 64 bits: the product with an odd number is a permutation."""
    return (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).astype(np.int64)


def filled_table(rows: int, optimizer: str) -> NativeTable:
    table = NativeTable(TableSpec("emb", rows, DIM, UNIFORM, 1), OptimizerSpec(optimizer))
    for start in range(0, rows, BATCH):
        ids = scatter_ids(np.arange(start, min(start + BATCH, rows)))
        table.apply_gradients(ids, np.zeros((len(ids), DIM), np.float32), 0.1, 1)
    return table


def on_cache_lines(rows: int) -> np.ndarray:
    room = np.ones(rows * DIM + 16, np.float32)
    first = (-room.ctypes.data % 64) // 4
    return room[first : first + rows * DIM].reshape(rows, DIM)


def ids_per_second(work: Work, batches: int) -> float:
    """Ids a second."""
    begun = time.perf_counter()
    for number in range(batches):
        work(number)
    return batches * BATCH / (time.perf_counter() - begun)


def read_work(table: NativeTable, ids: Sequence[np.ndarray], out: np.ndarray) -> Work:
    return lambda i: table.read_into(ids[i], out)


def looking_up(rows: int, rounds: int, batches: int) -> list[Rates]:
    random = np.random.default_rng(1)
    tables = {name: filled_table(rows, name) for name in ("sgd", "adagrad")}
    plain, out = on_cache_lines(rows), on_cache_lines(BATCH)
    positions = [random.integers(0, rows, BATCH) for _ in range(batches)]
    ids = [scatter_ids(one) for one in positions]
    round_rates = []
    for number in range(rounds + 1):  # the first warms up
        rates = {"gather": ids_per_second(lambda i: _native.gather(plain, positions[i], out), batches)}
        for name, table in tables.items():
            rates[name] = ids_per_second(read_work(table, ids, out), batches)
        rates["numpy_take"] = ids_per_second(lambda i: np.take(plain, positions[i], 0, out, "clip"), batches)
        round_rates.append(rates)
        print_progress(f"look-up, round {number} of {rounds}: {rates_text(rates)}")
    return round_rates[1:]


def apply_work(table: NativeTable, ids: Sequence[np.ndarray], gradients: np.ndarray) -> Work:
    return lambda i: table.apply_gradients(ids[i], gradients, 0.01, 1)


def call_work(operation: Callable[[np.ndarray], object], batches: Sequence[np.ndarray]) -> Work:
    return lambda i: operation(batches[i])


def adagrad_rates(rounds: int, batches: int) -> list[Rates]:
    random = np.random.default_rng(2)
    shuffled = [random.permutation(VOCABULARY)[:BATCH] for _ in range(batches)]
    zipf = [(random.zipf(1.1, BATCH) - 1) % VOCABULARY for _ in range(batches)]
    gradients = (random.standard_normal((BATCH, DIM)) * 1e-3).astype(np.float32)
    table, sparse = filled_table(VOCABULARY, "adagrad"), tensorflow_op(gradients)
    round_rates = []
    for number in range(rounds + 1):
        rates = {}
        for law, positions in (("uniform", shuffled), ("zipf", zipf)):
            ids = [scatter_ids(one) for one in positions]
            rates[f"native_{law}"] = ids_per_second(apply_work(table, ids, gradients), batches)
            rates[f"tensorflow_{law}"] = ids_per_second(call_work(sparse, positions), batches)
        round_rates.append(rates)
        print_progress(f"Adagrad, round {number} of {rounds}: {rates_text(rates)}")
    return round_rates[1:]


def tensorflow_op(gradients: np.ndarray) -> Callable[[np.ndarray], object]:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    values = tf.Variable(np.zeros((VOCABULARY, DIM), np.float32))
    sums = tf.Variable(np.full((VOCABULARY, DIM), 0.1, np.float32))
    constant = [tf.constant(number, tf.float32) for number in (0.01, 1e-7)]
    gradient = tf.constant(gradients)

    def apply_rows(ids: np.ndarray) -> object:
        return tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=values.handle, accum=sums.handle, lr=constant[0], epsilon=constant[1], grad=gradient, indices=ids
        )

    return apply_rows


def process_bytes(field: str) -> int:
    """Bytes of this process, from the kernel."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measure_insertion(rows: int) -> dict[str, float]:
    """Fill a table of width 8; run in a process of its own."""
    dim, batch = 8, 1_000_000
    table = NativeTable(TableSpec("emb", 2**31 - 1, dim, UNIFORM, 1), OptimizerSpec("sgd"))
    gradients = np.zeros((batch, dim), np.float32)
    gradients[:] = 0.0  # resident from here on
    numbers = np.arange(batch)
    scatter_ids(numbers)
    before, begun = process_bytes("VmRSS"), time.perf_counter()
    for start in range(0, rows, batch):
        count = min(batch, rows - start)
        table.apply_gradients(scatter_ids(numbers[:count] + start), gradients[:count], 0.1, 1)
    seconds, after = time.perf_counter() - begun, process_bytes("VmRSS") - before
    return {
        "rows": len(table),
        "bytes_a_row_beyond_values": after / rows - 4 * dim,
        "peak_of_final": (process_bytes("VmHWM") - before) / after,
        "ids_per_second": rows / seconds,
        "reported": table.memory_usage.resident / after,
    }


def insertion_rounds(rows: int, rounds: int) -> Iterator[dict[str, float]]:
    for number in range(rounds):
        command = [sys.executable, __file__, "--only-insert", str(rows)]
        insertion = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        print_progress(f"insertion, round {number + 1} of {rounds}: {insertion}")
        yield insertion


def rates_text(rates: Rates) -> str:
    return ", ".join(f"{name} {value / 1e6:.1f} M/s" for name, value in rates.items())


def median_ratio(rounds: list[Rates], name: str, other: str | None = None) -> float:
    return statistics.median(rates[name] / (rates[other] if other else 1) for rates in rounds)


def measure_table(arguments: argparse.Namespace) -> ScriptResult:
    if arguments.only_insert:
        print(json.dumps(measure_insertion(arguments.only_insert)))
        raise SystemExit
    rounds = arguments.rounds
    lookups = looking_up(arguments.rows, rounds, arguments.batches)
    updates = adagrad_rates(rounds, arguments.batches)
    memory = list(insertion_rounds(arguments.inserted, rounds))
    details = {
        "lookups": lookups,
        "updates": updates,
        "insertions": memory,
        "isa": _instruction_set(),
        "rows": arguments.rows,
    }
    return ScriptResult("native_table", tuple(figures(lookups, updates, memory)), details)


def _instruction_set() -> str:
    return NativeTable(TableSpec("emb", 1, 1, UNIFORM, 1), OptimizerSpec("sgd")).instruction_set


def figures(lookups: list[Rates], updates: list[Rates], memory: list[dict[str, float]]) -> Iterator[BenchFigure]:
    share = median_ratio(lookups, "adagrad", "gather")
    yield BenchFigure("table: lookup+gather, of gather alone", share, "x", 0.5, at_least=True, aim=0.7)
    yield BenchFigure(
        "table: sparse Adagrad, of TensorFlow's op, one thread",
        median_ratio(updates, "native_uniform", "tensorflow_uniform"),
        "x",
        13.0,
        at_least=True,
        aim=25.0,
    )
    yield BenchFigure(
        "table: bytes a row beyond its values", median_ratio(memory, "bytes_a_row_beyond_values"), "B", 24.0, aim=16.0
    )
    yield BenchFigure(
        "table: most resident while it grows, of the end's", median_ratio(memory, "peak_of_final"), "x", 2.0, aim=1.5
    )
    yield BenchFigure("table: the same without slot variables", median_ratio(lookups, "sgd", "gather"), "x")
    yield BenchFigure("lookup+gather, rows with a slot variable", median_ratio(lookups, "adagrad") / 1e6, "M ids/s")
    yield BenchFigure("gather alone", median_ratio(lookups, "gather") / 1e6, "M ids/s")
    yield BenchFigure("`numpy.take`", median_ratio(lookups, "numpy_take") / 1e6, "M ids/s")
    for law in ("uniform", "zipf"):
        yield BenchFigure(f"sparse Adagrad, {law} ids", median_ratio(updates, f"native_{law}") / 1e6, "M ids/s")
        yield BenchFigure(f"TensorFlow's, {law} ids", median_ratio(updates, f"tensorflow_{law}") / 1e6, "M ids/s")
    yield BenchFigure("ids inserted", median_ratio(memory, "ids_per_second") / 1e6, "M/s")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=10_000_000, help="that are looked up; default 10 million")
    parser.add_argument("--inserted", type=int, default=100_000_000, help="ids; default 100 million")
    parser.add_argument("--batches", type=int, default=50, help="a round; default 50")
    parser.add_argument("--only-insert", type=int, default=0, help=argparse.SUPPRESS)


if __name__ == "__main__":
    main(__doc__, measure_table, rounds=5, options=options)
