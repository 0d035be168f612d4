"""Records of similar length in a minibatch: each record once, whatever part of a lease is read."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.api.errors import BadInputError
from edl.core.partition import splitmix64
from edl.data.bucketed_reader import bucket_order, record_lengths
from edl.data.csv_reader import CsvReader
from edl.data.reader import CorruptRange, Metadata
from edl.data.reader_factory import describe_order
from edl.data.record_columns import ColumnRecords, RaggedColumn
from edl.data.shuffled_reader import PositionReader, read_by_position

MINIBATCH, PORTION, RECORDS = 8, 40, 1000


def write_texts(folder: Path) -> Path:
    path = folder / "a.csv"
    rows = [f"{number},{'x' * (splitmix64(number) % 60)}\n" for number in range(RECORDS)]
    path.write_text("number,text\n" + "".join(rows))
    return path


def reader_of(path: Path, seed: int = 0) -> PositionReader:
    reader = CsvReader.from_options([path], {})
    order = describe_order(reader, 200, seed, PORTION)
    return read_by_position(reader, order, bucket_by="text", minibatch=MINIBATCH)


def read(reader: PositionReader, start: int, end: int) -> list[list[str]]:
    return [list(row) for row in reader.read(1, start, end)]


def test_minibatches_have_similar_lengths_and_each_record_is_read_once(tmp_path: Path) -> None:
    reader = reader_of(write_texts(tmp_path))
    minibatches = [read(reader, start, start + MINIBATCH) for start in range(0, RECORDS, MINIBATCH)]
    assert Counter(int(row[0]) for rows in minibatches for row in rows) == Counter(range(RECORDS))
    spread = [max(len(row[1]) for row in rows) - min(len(row[1]) for row in rows) for rows in minibatches]
    assert np.mean(spread) < 15  # of up to 59
    means = [np.mean([len(row[1]) for row in rows]) for rows in minibatches[: PORTION // MINIBATCH]]
    assert means != sorted(means)


@given(st.lists(st.integers(0, RECORDS), max_size=6))
def test_any_part_of_a_lease_has_what_the_whole_has(cuts: list[int]) -> None:
    edges = sorted({0, RECORDS, *cuts})
    lease_rows = read(SHARED[0], 0, RECORDS)
    # a reader of its own for each part: another worker gets the rest of a lease
    parts = [read(reader_of(SHARED_PATH[0]), start, end) for start, end in pairwise(edges)]
    assert [row for part in parts for row in part] == lease_rows


SHARED: list[PositionReader] = []
SHARED_PATH: list[Path] = []


@pytest.fixture(autouse=True, scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> None:
    SHARED_PATH.append(write_texts(tmp_path_factory.mktemp("texts")))
    SHARED.append(reader_of(SHARED_PATH[0]))


def test_damaged_records_come_last_in_their_portion_and_are_reported_once(tmp_path: Path) -> None:
    path = write_texts(tmp_path)
    lines = path.read_text().splitlines()
    for number in (3, 500, 501):
        lines[number + 1] = "1"
    path.write_text("\n".join(lines) + "\n")
    reader, corrupt, numbers = reader_of(path), list[CorruptRange](), list[int]()
    for start in range(0, RECORDS, MINIBATCH):
        before = len(corrupt)
        rows = reader.read(0, start, start + MINIBATCH, corrupt.append)
        assert len(rows) + len(corrupt) - before == MINIBATCH
        numbers += [int(row[0]) for row in rows]
    assert sorted(each.start for each in corrupt) == [3, 500, 501]
    assert Counter(numbers) == Counter(set(range(RECORDS)) - {3, 500, 501})


def test_positions_are_described_by_the_records_that_were_read(tmp_path: Path) -> None:
    reader = reader_of(write_texts(tmp_path))
    (row,) = read(reader, 50, 51)
    assert f"record {row[0]} of" in reader.describe_positions(1, 50, 51)
    assert reader.describe_positions(2, 50, 51).count(",") > 5  # not read: any of the portion


@given(st.lists(st.integers(0, 9)), st.integers(1, 5), st.integers(0, 99))
def test_an_order_of_buckets_is_a_permutation_with_the_rest_last(lengths: list[int], minibatch: int, key: int) -> None:
    order = bucket_order(np.array(lengths, np.int64), minibatch, key)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    rest = len(lengths) % minibatch
    longest = sorted(lengths)[len(lengths) - rest :]
    assert [lengths[number] for number in order[len(lengths) - rest :]] == longest


def test_lengths_are_items_of_a_list_or_bytes_of_a_text() -> None:
    columns = ColumnRecords(
        {"t": RaggedColumn(np.arange(3), np.array([0, 1, 3])), "s": np.array([b"abc", b""], object), "n": np.arange(2)}
    )
    table_metadata = Metadata("parquet", ("t", "s", "n"))
    assert record_lengths(columns, "t", table_metadata).tolist() == [1, 2]
    assert record_lengths(columns, "s", table_metadata).tolist() == [3, 0]
    assert record_lengths([b"abc", b"d"], "record", Metadata("text")).tolist() == [3, 1]
    for records, name, metadata in (
        (columns, "n", table_metadata),
        (columns, "x", table_metadata),
        ([b"a"], "t", Metadata("text")),
    ):
        with pytest.raises(BadInputError) as error:
            record_lengths(records, name, metadata)
        assert error.value.where == "train.batches.bucket_by"
