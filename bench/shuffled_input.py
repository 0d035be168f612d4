"""What shuffling costs a worker's input: records a second through reader and ``feed``, with windows and without.

Two data sets of the same click log, as DeepFM trains on it: RecordIO as ``edl data`` writes it, with chunks of 1 MiB,
and with the chunks of 32 MiB that other writers make. Each is gone through as one of two workers would, with the leases
that the ledger gives it, once in the order of ``train.shuffle.window: 0`` (ranges of records in random order, as it was
before there were windows) and once in windows of the default size. Both take turns after every lease, so that what else
the machine does meets both. A figure is the median of the ratios of two leases that were read one after the other.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from click_job import click_log_folder
from figures import BenchFigure, ScriptResult
from mnist_job import ZOO
from script import main, print_progress

from edl.api.job_spec import ModelSpec
from edl.core.ledger import Ledger, shuffled_ledger
from edl.core.record_ranges import RecordRange, RecordSource, ShardPlan
from edl.core.shuffle import choose_window
from edl.data.reader import Reader
from edl.data.reader_factory import describe_order, open_reader, read_reader_blocks
from edl.data.recordio.writer import Writer
from edl.keras.tensorflow_import import import_tensorflow
from edl.worker.worker_process import set_thread_counts

WORKERS = 2
MOST_SLOWER = 1.05
OTHER_WRITERS_CHUNK = 32 << 20
CASES = {"DeepFM's input": 1, "RecordIO with chunks of 32 MiB": 32}


class LeaseCost(NamedTuple):
    """What a million records of one lease take: seconds, and seconds of processors."""

    seconds: float
    busy_seconds: float


class LeasePair(NamedTuple):
    """One lease in each order, read one after the other."""

    plain_cost: LeaseCost
    shuffled_cost: LeaseCost


class InputPass:
    """The leases of one worker in one order, and the stream that reads them."""

    def __init__(self, stream: Any, tasks: list[Any]) -> None:
        self._stream, self.tasks = stream, tasks

    def read_task(self, task: Any) -> LeaseCost:
        """Read and feed all records of a lease; nothing is read ahead of it."""
        began, used = time.perf_counter(), time.process_time()
        self._stream.add_task(task)
        records = sum(loaded.record_count for loaded in self._stream.load_steps(task))
        return LeaseCost(1e6 * (time.perf_counter() - began) / records, 1e6 * (time.process_time() - used) / records)


class InputCase:
    """One data set, as one of the workers reads it.

    Args:
        folder: of the records.
        portion: records of a lease.
        batch: records of a minibatch.
    """

    def __init__(self, folder: Path, feeder: Any, *, portion: int, batch: int) -> None:
        reader: Reader = open_reader((str(folder),))
        self._folder = folder
        self._feeder, self._portion, self._batch = feeder, portion, batch
        sources = tuple(RecordSource(source.name, source.records) for source in reader.sources())
        self._plan = ShardPlan(sources, portion, 0)
        self.window = choose_window(None, self._plan.records, portion, read_reader_blocks(reader))

    def measure(self) -> list[LeasePair]:
        """Go through the data once in both orders, which take turns after each lease."""
        pairs = []
        with self._open_pass(0) as plain, self._open_pass(self.window) as shuffled:
            for number, (one, other) in enumerate(zip(plain.tasks, shuffled.tasks, strict=False)):
                if number % 2:
                    plain_cost, shuffled_cost = plain.read_task(one), shuffled.read_task(other)
                else:
                    shuffled_cost, plain_cost = shuffled.read_task(other), plain.read_task(one)
                pairs.append(LeasePair(plain_cost, shuffled_cost))
        return pairs

    @contextmanager
    def _open_pass(self, window: int) -> Iterator[InputPass]:
        from edl.worker.feed_pipeline import feed_in_background
        from edl.worker.record_stream import CorruptRecordSkipper, RecordStream

        # A reader keeps the chunk that it read last, so each order has a reader of its own.
        reader = open_reader((str(self._folder),))
        order = describe_order(reader, window, 0) if window else None
        ledger = Ledger(self._plan, 1, self._batch)
        if order is not None:
            ledger = shuffled_ledger(order, 1, self._batch, self._portion)
        stream = RecordStream(
            lambda: reader,
            CorruptRecordSkipper(0),
            lambda windows: feed_in_background(self._feeder, windows),
            lambda lease: True,
        )
        tasks = [self._make_task(number, work, order) for number, work in enumerate(_of_one_worker(ledger))]
        try:
            yield InputPass(stream, tasks)
        finally:
            stream.close()

    def _make_task(self, number: int, work: RecordRange, order: Any) -> Any:
        from edl.worker.lease_client import LeasedTask

        shuffle = {} if order is None else {"shuffle_window": order.window, "order_fingerprint": order.fingerprint}
        return LeasedTask(number, "training", work.source, work.start, work.end, self._batch, work.epoch, **shuffle)


def _of_one_worker(ledger: Ledger) -> Iterator[RecordRange]:
    """The leases of the first of some workers that are equally fast; each holds two, as a worker does."""
    leases: list[list[int]] = [[] for _ in range(WORKERS)]
    number = 0
    while not ledger.is_finished:
        for worker in range(WORKERS):
            if leases[worker] and (len(leases[worker]) == 2 or not ledger.has_work):
                ledger.finish_lease(leases[worker].pop(0))
            work = ledger.next_range(worker=f"worker-{worker}")
            if work is None:
                continue
            number += 1
            ledger.grant_range(number, work, f"worker-{worker}")
            leases[worker].append(number)
            if worker == 0:
                yield work


def measure(given: argparse.Namespace) -> ScriptResult:
    import_tensorflow()
    set_thread_counts(workers=WORKERS)
    from edl.keras import model_contract
    from edl.worker.feed_pipeline import FeedFunction

    params = {"vocabulary": given.vocabulary}
    module = model_contract.load_model_module(
        ModelSpec(zoo=str(ZOO), definition="deepfm.deepfm.custom_model", params=params)
    )
    feeder = FeedFunction(module.feed, "training", None)
    pairs: dict[str, list[LeasePair]] = {name: [] for name in CASES}
    with click_log_folder(given.records, given.vocabulary) as clicks, TemporaryDirectory(prefix="edl-bench-") as folder:
        _with_chunks(clicks.training_folder, Path(folder))
        paths = dict(zip(CASES, (clicks.training_folder, Path(folder)), strict=True))
        sides = {name: InputCase(path, feeder, portion=given.task, batch=given.batch) for name, path in paths.items()}
        for side in sides.values():
            side.measure()  # feed is traced, files are in the page cache
        for number in range(given.rounds):
            for name, side in sides.items():
                pairs[name] += side.measure()
            print_progress(
                f"round {number + 1}: " + ", ".join(f"{name} {_time_ratio(each):.3f}" for name, each in pairs.items())
            )
    figures = []
    for name, each in pairs.items():
        note = (
            f"window of {sides[name].window:,} records, leases of {given.task:,}, minibatches of {given.batch}; "
            f"{len(each)} pairs"
        )
        figures.append(
            BenchFigure(
                f"{name}: time in shuffled order, of that without windows",
                _time_ratio(each),
                "x",
                limit=MOST_SLOWER,
                note=note,
            )
        )
        busy = median(pair.shuffled_cost.busy_seconds / pair.plain_cost.busy_seconds for pair in each)
        figures.append(BenchFigure(f"{name}: processor time, of that without windows", busy, "x"))
        rate = median(1e6 / pair.shuffled_cost.seconds for pair in each)
        figures.append(BenchFigure(f"{name}: shuffled records of one worker", rate, "records/s"))
    return ScriptResult("shuffled_input", figures, {"pairs": pairs})


def _time_ratio(pairs: Sequence[LeasePair]) -> float:
    return median(pair.shuffled_cost.seconds / pair.plain_cost.seconds for pair in pairs)


def _with_chunks(training: Path, folder: Path) -> None:
    """The same records as another writer has them."""
    reader = open_reader((str(training),))
    for number, source in enumerate(reader.sources()):
        with Writer(folder / f"part-{number}.recordio", chunk_limit=OTHER_WRITERS_CHUNK) as writer:
            for record in reader.read(source.name, 0, source.records):
                assert isinstance(record, bytes)
                writer.write(record)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=600_000, help="default 600000")
    parser.add_argument("--vocabulary", type=int, default=1_000_000, help="default 1000000")
    parser.add_argument("--batch", type=int, default=512, help="records of a minibatch, default 512")
    parser.add_argument("--task", type=int, default=32_768, help="records of a lease, default 32768")


if __name__ == "__main__":
    main(__doc__, measure, rounds=40, options=options)
