"""What a user's model with an ``Embedding`` of 100 million rows of 16 costs a worker: memory and time to build it.

As a worker builds it, without a word in the model about parameter servers; a dense table would take 6.4 GB. Each model
is built in a process of its own. Memory is the most that was ever resident, less what was after TensorFlow and Keras
had been imported; seconds begin there, too. The same model with a thousand rows stands beside it: what building any
model costs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

from figures import BenchFigure, ScriptResult
from native_table import process_bytes
from script import main, print_progress

from edl.api.job_spec import ModelSpec

ZOO = Path(__file__).with_name("zoo")
MODELS = ("functional", "sequential", "nested", "HugeTableModel")
LABELS = {"HugeTableModel": "subclassed"}
THRESHOLD = 2 << 20
Built = dict[str, float]


def build_model(model: str, rows: int) -> Built:
    """Build one, in this process."""
    from edl.keras.tensorflow_import import import_tensorflow

    tf = import_tensorflow()
    import keras  # noqa: F401  TensorFlow's part of the cost

    before, began = process_bytes("VmRSS"), time.perf_counter()
    from edl.keras import model_contract
    from edl.keras.network import KerasNetwork

    module = model_contract.load_model_module(
        ModelSpec(zoo=str(ZOO), definition=f"huge_table.{model}", params={"rows": rows})
    )
    sample = tf.zeros([2, 26], tf.int64)
    network = KerasNetwork.build(
        module, seed=0, embedding_threshold=THRESHOLD, ps_of_variable=lambda _: 0, ps_count=1, sample=sample
    )
    seconds, memory = time.perf_counter() - began, process_bytes("VmHWM") - before
    return {"seconds": seconds, "megabytes": memory / 1e6, "tables": len(network.tables)}


def build_in_process(model: str, rows: int) -> Built:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--only", model, "--rows", str(rows)]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    built: Built = json.loads(ran.stdout)
    return built


def measure(given: argparse.Namespace) -> ScriptResult:
    if given.only:
        print(json.dumps(build_model(given.only, given.rows)))
        raise SystemExit
    rounds: list[dict[str, Built]] = []
    for number in range(given.rounds):
        costs = {model: build_in_process(model, given.rows) for model in MODELS[: 1 if number else None]}
        if any(not one["tables"] for one in costs.values()):
            raise ValueError(f"a model's table is not served: {costs}")
        costs["small"] = build_in_process(MODELS[0], 1000)
        rounds.append(costs)
        print_progress(f"round {number + 1} of {given.rounds}: {_costs_text(costs)}")
    return ScriptResult("embedding_build", tuple(figures(rounds, given.rows)), {"rounds": rounds, "rows": given.rows})


def _costs_text(taken: Mapping[str, Built]) -> str:
    return ", ".join(f"{name} {one['megabytes']:.0f} MB {one['seconds']:.2f} s" for name, one in taken.items())


def figures(rounds: list[dict[str, Built]], rows: int) -> Iterator[BenchFigure]:
    """The functional model in every round; the others once."""

    def median_value(model: str, name: str) -> float:
        return median(costs[model][name] for costs in rounds if model in costs)

    table = f"`Embedding` of {rows / 1e6:.3g} M x 16"
    yield BenchFigure(f"{table} builds: memory above TensorFlow", median_value("functional", "megabytes"), "MB", 300.0)
    yield BenchFigure(f"{table} builds: time", median_value("functional", "seconds"), "s", 3.0)
    for model in MODELS[1:]:
        name = LABELS.get(model, model)
        yield BenchFigure(f"the same, {name} model: memory", median_value(model, "megabytes"), "MB")
        yield BenchFigure(f"the same, {name} model: time", median_value(model, "seconds"), "s")
    yield BenchFigure("the same model with 1000 rows: memory", median_value("small", "megabytes"), "MB")
    yield BenchFigure("the same model with 1000 rows: time", median_value("small", "seconds"), "s")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=100_000_000, help="default 100 million")
    parser.add_argument("--only", choices=MODELS, help=argparse.SUPPRESS)


if __name__ == "__main__":
    main(__doc__, measure, rounds=5, options=options)
