"""What shuffling costs a worker's input: records a second through reader and ``feed``, with windows and without.

Two data sets of the same click log, as DeepFM trains on it: RecordIO as ``edl data`` writes it, with chunks of 1 MiB,
and with the chunks of 32 MiB that other writers make. Each is gone through as one of two workers would, with the leases
that the ledger gives it, once in the order of ``train.shuffle.window: 0`` (ranges of records in random order, as it was
before there were windows) and once in windows of the default size. Both take turns in every round; a figure is the
median of the ratios of one round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from click_job import click_log_folder
from figures import BenchFigure, ScriptResult
from mnist_job import ZOO
from script import main, say

from edl.core.ledger import Ledger, shuffled_ledger
from edl.core.shuffle import RecordRange, RecordSource, ShardPlan, choose_window
from edl.data.reader import Reader
from edl.data.reader_factory import open_reader, read_reader_blocks, shuffled_order
from edl.data.recordio.writer import Writer
from edl.keras.tensorflow_import import import_tensorflow
from edl.worker.worker_process import set_thread_counts

WORKERS = 2
MOST_SLOWER = 1.05
OTHER_WRITERS_CHUNK = 32 << 20
CASES = {"DeepFM's input": 1, "RecordIO with chunks of 32 MiB": 32}


class InputCase:
    """One data set, as one of the workers reads it.

    Args:
        folder: of the records.
        portion: records of a lease.
        batch: records of a minibatch.
    """

    def __init__(self, folder: Path, feeder: Any, *, portion: int, batch: int) -> None:
        self._reader: Reader = open_reader((str(folder),))
        self._feeder, self._portion, self._batch = feeder, portion, batch
        sources = tuple(RecordSource(source.name, source.records) for source in self._reader.sources())
        self._plan = ShardPlan(sources, portion, 0)
        self.window = choose_window(None, self._plan.records, portion, read_reader_blocks(self._reader))

    def measure(self, window: int) -> tuple[float, float]:
        """Seconds, and seconds of processors, for a million records."""
        from edl.worker.feed_pipeline import feed_in_background
        from edl.worker.record_stream import CorruptRecordSkipper, RecordStream

        order = shuffled_order(self._reader, window, 0) if window else None
        ledger = Ledger(self._plan, 1, self._batch)
        if order is not None:
            ledger = shuffled_ledger(order, 1, self._batch, self._portion)
        stream = RecordStream(
            lambda: self._reader,
            CorruptRecordSkipper(0),
            lambda windows: feed_in_background(self._feeder, windows),
            lambda lease: True,
        )
        tasks = [self._task(number, work, order) for number, work in enumerate(_of_one_worker(ledger))]
        began, used = time.perf_counter(), time.process_time()
        for task in tasks:
            stream.add_task(task)
        records = sum(loaded.record_count for task in tasks for loaded in stream.load_steps(task))
        took, busy = time.perf_counter() - began, time.process_time() - used
        stream.close()
        return 1e6 * took / records, 1e6 * busy / records

    def _task(self, number: int, work: RecordRange, order: Any) -> Any:
        from edl.worker.lease_client import LeasedTask

        shuffle = {} if order is None else {"shuffle_window": order.window, "order_fingerprint": order.fingerprint}
        return LeasedTask(number, "training", work.source, work.start, work.end, self._batch, work.epoch, **shuffle)


def _of_one_worker(ledger: Ledger) -> Iterator[RecordRange]:
    """The leases of the first of some workers that are equally fast; each holds two, as a worker does."""
    held: list[list[int]] = [[] for _ in range(WORKERS)]
    number = 0
    while not ledger.is_finished:
        for worker in range(WORKERS):
            if held[worker] and (len(held[worker]) == 2 or not ledger.has_work):
                ledger.finish_lease(held[worker].pop(0))
            work = ledger.next_range(worker=f"worker-{worker}")
            if work is None:
                continue
            number += 1
            ledger.grant_range(number, work, f"worker-{worker}")
            held[worker].append(number)
            if worker == 0:
                yield work


def measure(given: argparse.Namespace) -> ScriptResult:
    import_tensorflow()
    set_thread_counts(workers=WORKERS)
    from edl.keras import model_contract
    from edl.worker.feed_pipeline import FeedFunction

    params = {"vocabulary": given.vocabulary}
    module = model_contract.load_model_module(
        SimpleNamespace(zoo=ZOO, definition="deepfm.deepfm.custom_model", params=params)
    )
    feeder = FeedFunction(module.feed, "training", None)
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in CASES}
    with click_log_folder(given.records, given.vocabulary) as clicks, TemporaryDirectory(prefix="edl-bench-") as folder:
        _with_chunks(clicks.training, Path(folder))
        paths = dict(zip(CASES, (clicks.training, Path(folder)), strict=True))
        sides = {name: InputCase(path, feeder, portion=given.task, batch=given.batch) for name, path in paths.items()}
        for side in sides.values():
            side.measure(0)  # feed is traced, files are in the page cache
        for number in range(given.rounds):
            for name, side in sides.items():
                turns = [0, side.window] if number % 2 else [side.window, 0]
                found = {window: side.measure(window) for window in turns}
                rounds[name].append({"window": side.window, "before": found[0], "shuffled": found[side.window]})
            say(f"round {number + 1}: " + ", ".join(f"{name} {_ratio(told[-1]):.3f}" for name, told in rounds.items()))
    figures = []
    for name, told in rounds.items():
        note = f"window of {told[0]['window']:,} records, leases of {given.task:,}, minibatches of {given.batch}"
        figures.append(
            BenchFigure(
                f"{name}: time in shuffled order, of that without windows",
                median(map(_ratio, told)),
                "x",
                limit=MOST_SLOWER,
                note=note,
            )
        )
        busy = median(one["shuffled"][1] / one["before"][1] for one in told)
        figures.append(BenchFigure(f"{name}: processor time, of that without windows", busy, "x"))
        rate = median(1e6 / one["shuffled"][0] for one in told)
        figures.append(BenchFigure(f"{name}: shuffled records of one worker", rate, "records/s"))
    return ScriptResult("shuffled_input", figures, {"rounds": rounds})


def _ratio(one: dict[str, Any]) -> float:
    return float(one["shuffled"][0] / one["before"][0])


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
    main(__doc__, measure, rounds=7, options=options)
