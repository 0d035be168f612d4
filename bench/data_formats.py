"""How fast EDL reads each format, beside what people would use otherwise, on the same files.

Every pair takes turns, so that what else the machine does meets both, and a figure is the median of the ratios of the
rounds. Files are in the page cache. Readers of EDL get ranges in random order, as leases are granted, where the peer
goes through the files from their beginning:

- TFRecord: records of 1 kB, ranges of 4096, beside ``tf.data.TFRecordDataset``;
- Parquet: 39 columns to minibatches of 4096, beside the batches of ``pyarrow.dataset``;
- CSV: 39 columns to tensors of 4096 rows, beside ``make_csv_dataset`` and ``pyarrow.csv``;
- images: JPEG to 224 x 224, beside ``keras.utils.image_dataset_from_directory`` and Pillow;
- RecordIO: records of 100 B in chunks of 32 MiB, as other writers make them, beside EDL's own chunks.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from figures import BenchFigure, ScriptResult
from script import main, print_progress

from edl.api.job_spec import DataSpec, SchemaSpec
from edl.core.ledger import Ledger
from edl.core.record_ranges import RecordSource, ShardPlan
from edl.data.job_data import open_job_data
from edl.data.reader_factory import open_reader
from edl.data.recordio.writer import Writer
from edl.keras.tensorflow_import import import_tensorflow

RANGE = 4096
COLUMNS = 39
OTHER_WRITERS_CHUNK = 32 << 20
LIMITS: Mapping[str, tuple[float, float]] = {
    "TFRecord in random ranges, of tf.data in order": (1.0, 1.3),
    "Parquet to minibatches, of pyarrow's scan": (0.8, 0.95),
    "CSV to tensors, of make_csv_dataset": (3.0, 6.0),
    "CSV to tensors, of pyarrow.csv": (0.5, 0.8),
    "JPEG to 224 x 224, of image_dataset_from_directory": (1.0, 1.3),
    "JPEG to 224 x 224, of Pillow in threads": (1.0, 1.3),
    "RecordIO in chunks of 32 MiB, of own chunks": (0.8, 1.0),
}
"""By figure: the least rate, of the peer's, and the aim."""


def random_ranges(reader: Any, size: int, minibatch: int) -> Iterator[Any]:
    """The leases of an epoch, in the order in which the ledger grants them to one worker."""
    sources = tuple(RecordSource(source.name, source.records) for source in reader.sources())
    ledger = Ledger(ShardPlan(sources, size, 0), 1, minibatch)
    number = 0
    while (work := ledger.next_range(worker="worker-0")) is not None:
        number += 1
        ledger.grant_range(number, work, "worker-0")
        ledger.finish_lease(number)
        yield work


# --------------------------------------------------------------------------------------------------
# The two sides of each pair; each returns the number of records.


def read_ranges(path: Path) -> int:
    """Records of ranges as the reader returns them."""
    reader, count = open_reader((str(path),)), 0
    for work in random_ranges(reader, RANGE, RANGE):
        packed = getattr(reader, "packed_records", lambda *_: None)(work.source, work.start, work.end)
        records = reader.read(work.source, work.start, work.end) if packed is None else packed
        count += len(records)
    return count


def read_tf_records(path: Path) -> int:
    import tensorflow as tf

    files = sorted(str(file) for file in path.iterdir() if not file.name.startswith("."))
    dataset = tf.data.TFRecordDataset(files).batch(RANGE).prefetch(2)
    return sum(int(batch.shape[0]) for batch in dataset)


def read_parquet_ranges(path: Path) -> int:
    """Minibatches of all columns; row groups come in random order, because a range is as long as one.

    The next range is known, because a worker holds one lease ahead.
    """
    reader: Any = open_reader((str(path),))
    count = 0
    works = list(random_ranges(reader, GROUP_ROWS, RANGE))
    for number, work in enumerate(works):
        reader.fetch_ahead([(each.source, each.start) for each in works[number : number + 2]])
        for start in range(work.start, work.end, RANGE):
            records = reader.read(work.source, start, min(work.end, start + RANGE))
            count += len(records)
    return count


def scan_parquet(path: Path) -> int:
    import pyarrow.dataset as ds

    batches = ds.dataset(str(path), format="parquet").to_batches(batch_size=RANGE)
    return sum(sum(len(column) for column in map(_to_numpy, batch.columns)) // COLUMNS for batch in batches)


def _to_numpy(column: Any) -> Any:
    return column.to_numpy(zero_copy_only=False)


def stream_minibatches(path: Path, schema: SchemaSpec, *, minibatch: int, lease: int) -> int:
    """Minibatches of tensors, as a worker gets them."""
    from edl.keras.default_feed import DefaultFeed
    from edl.worker.feed_pipeline import FeedFunction, feed_in_background
    from edl.worker.lease_client import LeasedTask
    from edl.worker.record_stream import CorruptRecordSkipper, RecordStream

    reader = open_job_data(DataSpec(training=(str(path),), schema=schema), "training")
    feeder = FeedFunction(DefaultFeed(schema, None, measure), "training", reader.metadata)
    stream = RecordStream(
        lambda: reader,
        CorruptRecordSkipper(0),
        lambda windows: feed_in_background(feeder, windows),
        lambda number: True,
    )
    tasks = [
        LeasedTask(number, "training", work.source, work.start, work.end, minibatch, 0)
        for number, work in enumerate(random_ranges(reader, lease, minibatch))
    ]
    for task in tasks:
        stream.add_task(task)
    count = sum(loaded.record_count for task in tasks for loaded in stream.load_steps(task))
    stream.close()
    return count


def make_csv_batches(path: Path) -> int:
    import tensorflow as tf

    dataset = tf.data.experimental.make_csv_dataset(
        sorted(map(str, path.iterdir())), RANGE, label_name="label", num_epochs=1, shuffle=False, num_parallel_reads=2
    )
    return sum(int(label.shape[0]) for _, label in dataset)


def read_arrow_csv(path: Path) -> int:
    from pyarrow import csv

    count = 0
    for file in sorted(path.iterdir()):
        for batch in csv.open_csv(file):
            count += len(_to_numpy(batch.columns[0]))
            for column in batch.columns[1:]:
                _to_numpy(column)
    return count


def load_image_directory(path: Path) -> int:
    import keras

    dataset = keras.utils.image_dataset_from_directory(path, image_size=(224, 224), batch_size=32, verbose=False)
    return sum(int(labels.shape[0]) for _, labels in dataset)


def load_images_with_pillow(path: Path) -> int:
    """What a loader of torchvision's kind does, in two threads: decode, scale, copy to an array."""
    from concurrent.futures import ThreadPoolExecutor

    from PIL import Image

    def load(file: Path) -> Any:
        with Image.open(file) as image:
            return np.asarray(image.convert("RGB").resize((224, 224), Image.Resampling.BILINEAR), np.float32)

    files, count = sorted(path.glob("*/*.jpg")), 0
    with ThreadPoolExecutor(2) as pool:
        for start in range(0, len(files), 32):
            count += len(np.stack(list(pool.map(load, files[start : start + 32]))))
    return count


# --------------------------------------------------------------------------------------------------
# The files.

GROUP_ROWS = 4 * RANGE


def write_tf_records(folder: Path, megabytes: int) -> None:
    import tensorflow as tf

    rng = np.random.default_rng(1)
    folder.mkdir()
    for part in range(4):
        with tf.io.TFRecordWriter(str(folder / f"part-{part}.tfrecord")) as writer:
            for _ in range(megabytes * 1000 // 4):
                writer.write(rng.bytes(1000))


def click_columns(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    numbers = {f"n{number}": rng.random(rows, np.float32).round(4) for number in range(13)}
    ids = {f"c{number}": rng.integers(0, 100_000, rows, np.int32) for number in range(25)}
    return {"label": rng.integers(0, 2, rows, np.int32), **numbers, **ids}


def write_tables(folder: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import csv

    table = pa.table(click_columns(rows))
    assert table.num_columns == COLUMNS
    for name in ("parquet", "csv"):
        (folder / name).mkdir()
    for part in range(4):
        piece = table.slice(part * rows // 4, rows // 4)
        pq.write_table(piece, folder / "parquet" / f"part-{part}.parquet", row_group_size=GROUP_ROWS)
        csv.write_csv(piece, folder / "csv" / f"part-{part}.csv")


def write_images(folder: Path, count: int) -> None:
    import tensorflow as tf

    rng = np.random.default_rng(3)
    for number in range(count):
        label = folder / f"class-{number % 10}"
        label.mkdir(parents=True, exist_ok=True)
        # Noise would be larger than photographs are; a smooth picture is about as large.
        coarse = rng.integers(0, 255, (12, 16, 3)).astype(np.float32)
        pixels = tf.cast(tf.image.resize(coarse, (375, 500), method="bicubic"), tf.int32)
        pixels = tf.cast(tf.clip_by_value(pixels, 0, 255), tf.uint8)
        (label / f"{number}.jpg").write_bytes(tf.io.encode_jpeg(pixels, quality=90).numpy())


def write_record_io(folder: Path, records: int) -> None:
    rng = np.random.default_rng(4)
    data = [rng.bytes(100) for _ in range(1000)]
    for name, limit in (("own", None), ("other", OTHER_WRITERS_CHUNK)):
        (folder / name).mkdir(parents=True)
        for part in range(2):
            with Writer(folder / name / f"part-{part}.recordio", chunk_limit=limit) as writer:
                for number in range(records // 2):
                    writer.write(data[number % 1000])


# --------------------------------------------------------------------------------------------------


def measure(given: argparse.Namespace) -> ScriptResult:
    import_tensorflow()
    features = {name: "int64" if name.startswith("c") else "float32" for name in click_columns(1) if name != "label"}
    table_schema = SchemaSpec(label="label", features=features)
    image_schema = SchemaSpec(image_size=(224, 224), label_mode="int")
    with TemporaryDirectory(prefix="edl-bench-") as name:
        folder = Path(name)
        write_tf_records(folder / "tfrecord", given.megabytes)
        write_tables(folder, given.rows)
        write_images(folder / "images", given.images)
        write_record_io(folder / "recordio", given.records)
        print_progress("the files are written")
        csv_side = lambda: stream_minibatches(folder / "csv", table_schema, minibatch=RANGE, lease=4 * RANGE)  # noqa: E731
        images = lambda: stream_minibatches(folder / "images", image_schema, minibatch=32, lease=256)  # noqa: E731
        own = lambda: read_ranges(folder / "recordio" / "own")  # noqa: E731
        pairs: Sequence[tuple[Callable[[], int], Callable[[], int]]] = (
            (lambda: read_ranges(folder / "tfrecord"), lambda: read_tf_records(folder / "tfrecord")),
            (lambda: read_parquet_ranges(folder / "parquet"), lambda: scan_parquet(folder / "parquet")),
            (csv_side, lambda: make_csv_batches(folder / "csv")),
            (csv_side, lambda: read_arrow_csv(folder / "csv")),
            (images, lambda: load_image_directory(folder / "images")),
            (images, lambda: load_images_with_pillow(folder / "images")),
            (lambda: read_ranges(folder / "recordio" / "other"), own),
        )
        details: dict[str, list[PairRates]] = {}
        for label, sides in zip(LIMITS, pairs, strict=True):
            if given.only and given.only not in label:
                continue
            details[label] = [measure_pair(sides, number) for number in range(-1, given.rounds)][1:]
            print_progress(f"{label}: {', '.join(f'{each.ratio:.2f}' for each in details[label])}")
    figures = []
    for label, rates in details.items():
        least, aim = LIMITS[label]
        ratio = median(each.ratio for each in rates)
        note = f"{median(each.own for each in rates):,.0f} of {median(each.peer for each in rates):,.0f} records/s"
        note += f"; by processor time {median(each.processor_ratio for each in rates):.2f}"
        figures.append(BenchFigure(label, ratio, "x", limit=least, at_least=True, aim=aim, note=note))
    return ScriptResult("data_formats", figures, details)


class PairRates(NamedTuple):
    """Records a second of both sides, and ``processor_ratio``: the peer's processor time, of EDL's."""

    own: float
    peer: float
    processor_ratio: float

    @property
    def ratio(self) -> float:
        return self.own / self.peer


def measure_pair(sides: tuple[Callable[[], int], Callable[[], int]], number: int) -> PairRates:
    """Both sides, which take turns in being the first."""
    rates, used, counts = [0.0, 0.0], [0.0, 0.0], [0, 0]
    for side in (0, 1) if number % 2 else (1, 0):
        began, used_before = time.perf_counter(), time.process_time()
        counts[side] = sides[side]()
        rates[side] = counts[side] / (time.perf_counter() - began)
        used[side] = time.process_time() - used_before
    assert counts[0] == counts[1], counts
    return PairRates(rates[0], rates[1], used[1] / used[0])


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=400, help="of TFRecord, default 400")
    parser.add_argument("--rows", type=int, default=65_536, help="of the table, default 65536")
    parser.add_argument("--images", type=int, default=1000, help="default 1000")
    parser.add_argument("--records", type=int, default=2_000_000, help="of RecordIO, default 2000000")
    parser.add_argument("--only", default="", help="only figures whose name has this text")


if __name__ == "__main__":
    main(__doc__, measure, rounds=3, options=options)
