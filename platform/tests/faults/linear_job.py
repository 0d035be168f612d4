"""A job whose parameters follow from the ledger alone, to the last bit.

The loss is linear in the parameters, so a minibatch's gradient depends on its records only: not on when it was
computed, nor on what others pushed before. With plain SGD and a constant learning rate the parameters are the sum over
the steps that count, in any order. All numbers are small integers and the learning rate is a power of two, so that
every sum is exact in float32: one push too many, one too few or one applied twice changes the result and is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from faults.kill_points import KILL_POINTS
from numpy.typing import NDArray
from safetensors import safe_open
from support.job_folder import EXAMPLE_FEED, JobFolder, write_example_arrays, write_module
from support.job_process import STARTED, JobProcess
from support.run_recount import recount

from edl.simulation.counted_steps import CountedStep
from edl.simulation.ledger_recount import LedgerRecount, find_ledger_problems

WIDTH = 6
ROWS, DIM, IDS = 64, 4, 3
LEARNING_RATE = 0.5
SOURCES = 2
HURRY = "hurry"

ZOO = '''
"""A linear model under a linear loss: the test that wrote it says why."""

import os
import time

import keras
import tensorflow as tf


def custom_model(embedding=False):
    x = keras.Input((WIDTH,), name="x")
    ids = keras.Input((IDS,), dtype="int32", name="ids")
    parts = [keras.layers.Dense(1, kernel_initializer="zeros", name=name)(x) for name in ("a", "b", "c", "d")]
    if embedding:
        rows = keras.layers.Embedding(ROWS, DIM, embeddings_initializer="zeros", name="items")(ids)
        parts.append(keras.layers.Reshape((1,))(keras.ops.sum(rows, axis=(1, 2))))
    return keras.Model([x, ids], keras.layers.Add()(parts))


def loss(labels, predictions):
    return -tf.reduce_sum(labels * predictions)


def optimizer():
    return keras.optimizers.SGD(LEARNING_RATE)


def eval_metrics_fn():
    return {"error": keras.metrics.MeanAbsoluteError()}
'''


PACED_FEED = """

example_feed = feed


def pause():
    if not os.path.exists(HURRY):
        time.sleep(SECONDS)
    return 0.0


def feed(dataset, mode, metadata):
    def paced(features, label):
        with tf.control_dependencies([tf.numpy_function(pause, [], tf.float64)]):
            return features, tf.identity(label)

    return example_feed(dataset, mode, metadata).map(paced)
"""
"""The input takes its time until the file HURRY is there: a job that waits for its test leaves the processor to others.

It lasts as long on a busy machine as on an idle one, with few records.
"""


@dataclass(frozen=True)
class SourceRecords:
    """One source: features, ids and labels by record."""

    x: NDArray[np.float32]
    ids: NDArray[np.int64]
    y: NDArray[np.float32]


@dataclass(frozen=True)
class LinearJob:
    """The job, and the records it trains on by source."""

    job_folder: JobFolder
    records: dict[str, SourceRecords]

    @classmethod
    def make(
        cls,
        folder: Path,
        *,
        records: int = 16000,
        ps: int = 1,
        workers: int = 2,
        epochs: int = 1,
        every_steps: int = 400,
        embedding: bool = False,
        record_seconds: float = 0.0,
        kill_points: bool = False,
        **fields: Any,
    ) -> LinearJob:
        """Write model, data and job file to ``folder``.

        Args:
            folder: of everything.
            records: of an epoch.
            record_seconds: how long the input of a record takes until ``hurry``.
            kill_points: workers die where ``order_kills`` says.
            fields: further ones of the job file.
        """
        constants: dict[str, Any] = {
            "WIDTH": WIDTH,
            "ROWS": ROWS,
            "DIM": DIM,
            "IDS": IDS,
            "LEARNING_RATE": LEARNING_RATE,
        }
        text = ZOO + EXAMPLE_FEED
        if record_seconds:
            constants |= {"SECONDS": record_seconds, "HURRY": str(folder / HURRY)}
            text += PACED_FEED
        if kill_points:
            constants |= {"ORDERS": str(folder)}
            text += KILL_POINTS
        zoo = write_module(folder, "linear", text, constants)
        random = np.random.default_rng(7)
        written = {}
        for number in range(SOURCES):
            file = folder / "data" / f"part-{number}.recordio"
            written[str(file)] = _write(file, records // SOURCES, random)
        sections: dict[str, Any] = {
            "data": {"training": [str(folder / "data")]},
            "train": {"epochs": epochs, "minibatch_size": 8, "minibatches_per_task": 32},
            "checkpoint": {"every_steps": every_steps, "keep": 1000},
            "ps": {"count": ps, "embedding_threshold": 64 if embedding else "2Mi"},
            "workers": {"max": workers},
            **fields,
        }
        params = {"embedding": embedding}
        job_folder = JobFolder.make(folder, "linear", "linear.custom_model", zoo=zoo, params=params, **sections)
        return cls(job_folder, written)

    @property
    def file(self) -> Path:
        return self.job_folder.file

    @property
    def spec(self) -> dict[str, Any]:
        return self.job_folder.spec

    @property
    def total(self) -> int:
        """Records of all epochs."""
        return self.epochs * sum(len(records.y) for records in self.records.values())

    @property
    def epochs(self) -> int:
        return int(self.spec["train"]["epochs"])

    @property
    def minibatch(self) -> int:
        return int(self.spec["train"]["minibatch_size"])

    @property
    def interval(self) -> int:
        """Steps from one checkpoint to the next."""
        return int(self.spec["checkpoint"]["every_steps"])

    @property
    def workers(self) -> int:
        return int(self.spec["workers"]["max"])

    def start(self, *options: str, started: bool = STARTED) -> JobProcess:
        return self.job_folder.run(*options, started=started)

    def hurry(self) -> None:
        """The test has what it waited for: train the rest as fast as it goes."""
        (self.job_folder.folder / HURRY).touch()

    # ------------------------------------------------------------------ what must be

    def expected(self, steps: Iterable[CountedStep]) -> dict[str, NDArray[np.float32]]:
        """The parameters after exactly these steps; the values of ``items`` by row id."""
        kernel, bias, rows = np.zeros((WIDTH, 1)), np.zeros(1), np.zeros((ROWS, DIM))
        for step in steps:
            for source, part in _by_source(step):
                records = self.records[source]
                kernel += records.x[part].T @ records.y[part]
                bias += records.y[part].sum(axis=0)
                np.add.at(rows, records.ids[part].ravel(), np.repeat(records.y[part], IDS)[:, None])
        dense = {f"{name}/{part}": value for name in "abcd" for part, value in (("kernel", kernel), ("bias", bias))}
        return {name: (LEARNING_RATE * value).astype(np.float32) for name, value in {**dense, "items": rows}.items()}

    def check(self, run_dir: Path) -> LedgerRecount:
        """The ledger as the journal gives it: every record exactly once an epoch."""
        counted = recount(run_dir)
        assert find_ledger_problems(counted, self.epochs) == []
        return counted

    def check_checkpoints(self, run_dir: Path, found: LedgerRecount) -> None:
        """Every checkpoint on the disk is what its cut of the ledger gives; the last one is the end of training."""
        folders = [path.parent for path in sorted((run_dir / "checkpoints").glob("cut-*/manifest.json"))]
        for folder in folders:
            self.check_cut(folder, found.cuts[cut_of(folder)], found.partial_steps)
        assert found.cuts[cut_of(folders[-1])] == found.counted_steps

    def check_cut(self, folder: Path, steps: Iterable[CountedStep], halves: Sequence[CountedStep] = ()) -> None:
        """A checkpoint holds the sum over ``steps``, bit by bit.

        A worker may be killed between two of its sends. ``halves`` are the steps that the journal enters as partly
        applied: the PS that got one holds it once more, for every value that it owns, and no other PS does.
        """
        expected, present = self.expected(steps), parameters(folder)
        assert {name for name in expected if name != "items"} <= present.keys(), sorted(present)
        more = [self.expected([half]) for half in halves]
        for name, value in present.items():
            sums = [expected[name]]
            for half in more:
                sums += [total + half[name] for total in sums]
            allowed = np.any([value == total for total in sums], axis=0)
            assert allowed.all(), f"{name} in {folder.name}: {value[~allowed]} is not {expected[name][~allowed]}"


def _by_source(step: CountedStep) -> Iterable[tuple[str, list[int]]]:
    """The records of a step, for each source that has some of them."""
    records_by_source: dict[str, list[int]] = {}
    for source, record in step.source_records():
        records_by_source.setdefault(source, []).append(record)
    return records_by_source.items()


def cut_of(folder: Path) -> int:
    """The number of a checkpoint's cut."""
    return int(folder.name.removeprefix("cut-"))


def parameters(folder: Path, shard: int | None = None) -> dict[str, NDArray[np.float32]]:
    """Every variable of a checkpoint by name, or those of one PS's shard; rows put into whole tables."""
    variables: dict[str, NDArray[np.float32]] = {}
    for file in sorted(folder.glob("ps-*.safetensors" if shard is None else f"ps-{shard}.safetensors")):
        with safe_open(file, framework="np") as arrays:
            for name in arrays.keys():  # noqa: SIM118  not a mapping
                kind, _, rest = name.partition("/")
                if kind == "dense":
                    variables[rest] = arrays.get_tensor(name)
                elif kind == "rows" and name.endswith("/values"):
                    ids = arrays.get_tensor(name.removesuffix("values") + "ids")
                    table = variables.setdefault("items", np.zeros((ROWS, DIM), np.float32))
                    table[ids] = arrays.get_tensor(name)
    return variables


def rows_of(folder: Path, shard: int) -> NDArray[np.int64]:
    """Ids of the rows that one PS's shard of a checkpoint holds; none where no table is served."""
    with safe_open(folder / f"ps-{shard}.safetensors", framework="np") as arrays:
        ids = [arrays.get_tensor(name) for name in arrays.keys() if name.endswith("/ids")]  # noqa: SIM118
    return np.concatenate([np.empty(0, np.int64), *ids])


def _write(file: Path, count: int, random: np.random.Generator) -> SourceRecords:
    x = random.integers(-4, 5, (count, WIDTH)).astype(np.float32)
    ids = random.integers(0, ROWS, (count, IDS))
    y = random.choice(np.array([-2, -1, 1, 2], np.float32), (count, 1))
    write_example_arrays(file, x, ids, y, chunk_limit=1 << 14)
    return SourceRecords(x, ids, y)
