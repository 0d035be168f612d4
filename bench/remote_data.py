"""How long DeepFM waits for data that come over a slow line: Parquet over HTTP, beside the same files on this disk.

The server is a process with a limit of bandwidth and latency. Records are read as a worker reads them, in the shuffled
order of the default window, and trained in minibatches of 4096. ``--megabytes`` scales the data, which the side over
HTTP goes through once, with an empty cache; the side of the disk has the first files, of ``--local-megabytes``. A side
ends after ``--seconds`` in any case, on a busy machine before all data are read: the note says how much was.

The wait counts from the first minibatch on: until then, a worker waits for its first window, which is a figure of its
own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from figures import BenchFigure, ScriptResult
from mnist_job import ZOO
from script import main, print_progress

from edl.api.job_spec import ModelSpec
from edl.core.ledger import Ledger, shuffled_ledger
from edl.core.record_ranges import RecordSource, ShardPlan
from edl.core.shuffle import choose_window
from edl.data.reader_factory import describe_order, open_reader, read_reader_blocks
from edl.keras.tensorflow_import import import_tensorflow
from edl.worker.worker_process import set_thread_counts

MOST_WAIT = 0.05
_STEPS_PER_LINE = 200
_NUMBERS, _IDS = 13, 26
_FILE_MEGABYTES = 64
_ROW_BYTES = 4 * (_NUMBERS + _IDS + 1)
_SERVER = Path(__file__).resolve().parents[1] / "platform" / "tests" / "support" / "range_server.py"


class EpochTimes(NamedTuple):
    """Seconds of one epoch: until the first minibatch, waiting for the others, and all from the first one on."""

    first: float
    waited: float
    total: float
    steps: int
    is_whole: bool


def write_clicks(folder: Path, megabytes: int, vocabulary: int, group_rows: int) -> int:
    """Write files of random clicks; the number of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(7)
    rows = megabytes * 1_000_000 // _ROW_BYTES
    files = max(1, megabytes // _FILE_MEGABYTES)
    for number in range(files):
        count = rows // files
        numbers, ids = rng.random(count * _NUMBERS, np.float32), rng.integers(0, vocabulary, count * _IDS, np.int32)
        table = pa.table(
            {
                "numbers": pa.FixedSizeListArray.from_arrays(pa.array(numbers), _NUMBERS),
                "ids": pa.FixedSizeListArray.from_arrays(pa.array(ids), _IDS),
                "label": pa.array(rng.integers(0, 2, count, np.int32)),
            }
        )
        path = folder / f"part-{number:03}.parquet"
        pq.write_table(table, path, row_group_size=group_rows, use_dictionary=False, compression="none")
    return rows // files * files


@contextmanager
def slow_server(folder: Path, megabytes: float, latency: float) -> Iterator[str]:
    """The address of a server as a process."""
    arguments = [sys.executable, str(_SERVER), str(folder), str(megabytes), str(latency)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def feed(dataset: Any, mode: str, metadata: Any) -> Any:
    """Rows as DeepFM takes them."""
    import tensorflow as tf

    def convert(rows: Any) -> Any:
        features = {"numbers": rows["numbers"], "ids": tf.cast(rows["ids"], tf.int64)}
        return features, tf.cast(rows["label"], tf.float32)

    return dataset.batch(4096).map(convert).unbatch()


def train_epoch(paths: list[str], options: Mapping[str, object], model: Any, given: argparse.Namespace) -> EpochTimes:
    """One epoch as one worker trains it."""
    from edl.worker.feed_pipeline import FeedFunction, feed_in_background
    from edl.worker.lease_client import LeasedTask
    from edl.worker.record_stream import CorruptRecordSkipper, RecordStream

    began = time.perf_counter()
    reader = open_reader(paths, options)
    sources = tuple(RecordSource(source.name, source.records) for source in reader.sources())
    plan = ShardPlan(sources, given.task, 0)
    window = choose_window(None, plan.records, given.task, read_reader_blocks(reader))
    order = describe_order(reader, window, 0)
    ledger: Ledger = shuffled_ledger(order, 1, given.batch, given.task)
    feeder = FeedFunction(feed, "training", reader.metadata)
    stream = RecordStream(
        lambda: reader,
        CorruptRecordSkipper(0),
        lambda windows: feed_in_background(feeder, windows),
        lambda lease: True,
    )
    tasks: list[LeasedTask] = []
    while (work := ledger.next_range(worker="worker-0")) is not None:
        ledger.grant_range(len(tasks) + 1, work, "worker-0")
        ledger.finish_lease(len(tasks) + 1)
        shuffle: dict[str, Any] = {"shuffle_window": order.window, "order_fingerprint": order.fingerprint}
        task = LeasedTask(len(tasks), "training", work.source, work.start, work.end, given.batch, work.epoch, **shuffle)
        tasks.append(task)
        stream.add_task(task)
    first = waited = 0.0
    started, steps = began, 0
    asked_at = began
    for task in tasks:
        for loaded in stream.load_steps(task):
            arrived = time.perf_counter()
            if arrived - began > given.seconds:
                stream.close()
                return EpochTimes(first, waited, asked_at - started, steps, is_whole=False)
            if steps:
                waited += arrived - asked_at
            else:
                first, started = arrived - began, arrived
            assert loaded.minibatch is not None
            model.train_on_batch(loaded.minibatch.features, loaded.minibatch.labels)
            steps += 1
            asked_at = time.perf_counter()
            if steps % _STEPS_PER_LINE == 0:
                print_progress(f"  step {steps} after {asked_at - began:.0f} s, of which {waited:.1f} s waited")
    stream.close()
    return EpochTimes(first, waited, asked_at - started, steps, is_whole=True)


def measure(given: argparse.Namespace) -> ScriptResult:
    import_tensorflow()
    set_thread_counts(workers=1)
    from edl.keras import model_contract

    spec = ModelSpec(zoo=str(ZOO), definition="deepfm.deepfm.custom_model", params={"vocabulary": given.vocabulary})
    module = model_contract.load_model_module(spec)
    model = module.make_model()
    model.compile(module.optimizer(), module.loss)
    details: dict[str, list[EpochTimes]] = {"http": [], "local": []}
    with TemporaryDirectory(prefix="edl-bench-") as name:
        folder, small = Path(name) / "data", Path(name) / "small"
        folder.mkdir()
        small.mkdir()
        rows = write_clicks(folder, given.megabytes, given.vocabulary, given.group)
        write_clicks(small, 8, given.vocabulary, given.group)
        train_epoch([str(small)], {}, model, given)  # feed and the step are traced
        files = sorted(path.name for path in folder.iterdir())
        local = [str(folder / each) for each in files[: max(1, given.local_megabytes // _FILE_MEGABYTES)]]
        for number in range(given.rounds):
            with slow_server(folder, given.bandwidth, given.latency / 1000) as address:
                cache = {"cache": str(Path(name) / f"cache-{number}")}
                details["http"].append(train_epoch([f"{address}/{each}" for each in files], cache, model, given))
            details["local"].append(train_epoch(local, {}, model, given))
            print_progress(f"round {number + 1}: {details['http'][-1]}, {details['local'][-1]}")
    shares = {
        side: sum(each.waited for each in times) / sum(each.total for each in times) for side, times in details.items()
    }
    step = 1000 * sum(each.total for each in details["local"]) / sum(each.steps for each in details["local"])
    done = min(rows, min(each.steps for each in details["http"]) * given.batch)
    scale = (
        f"{done * _ROW_BYTES // 1_000_000} of {given.megabytes} MB, {rows:,} rows, {given.bandwidth} MB/s, "
        f"{given.latency} ms; minibatches of {given.batch}"
    )
    figures = [
        BenchFigure("Parquet over HTTP: wait for data, of step time", shares["http"], "", limit=MOST_WAIT, note=scale),
        BenchFigure("the same files on this disk: wait for data, of step time", shares["local"], ""),
        BenchFigure("Parquet over HTTP: until the first minibatch", details["http"][-1].first, "s"),
        BenchFigure("the same files on this disk: until the first minibatch", details["local"][-1].first, "s"),
        BenchFigure("step with local files", step, "ms"),
    ]
    return ScriptResult("remote_data", figures, details)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=1000, help="of Parquet, default 1000")
    parser.add_argument("--local-megabytes", type=int, default=128, help="of these, on the disk, default 128")
    parser.add_argument("--seconds", type=float, default=420, help="at most for one side, default 420")
    parser.add_argument("--vocabulary", type=int, default=10_000, help="of each field, default 10000")
    parser.add_argument("--batch", type=int, default=4096, help="records of a minibatch, default 4096")
    parser.add_argument("--task", type=int, default=65_536, help="records of a lease, default 65536")
    parser.add_argument("--group", type=int, default=20_000, help="rows of a row group, default 20000")
    parser.add_argument("--bandwidth", type=float, default=50, help="MB/s of the server, default 50")
    parser.add_argument("--latency", type=float, default=20, help="ms before each answer, default 20")


if __name__ == "__main__":
    main(__doc__, measure, rounds=1, options=options)
