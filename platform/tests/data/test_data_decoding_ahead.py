"""Blocks that threads decode before they are read."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edl.api.errors import BadInputError
from edl.data.decoding_ahead import DecodingAhead
from edl.data.parquet_reader import ParquetReader
from edl.data.reader import BlockSizes
from edl.data.record_columns import ColumnRecords

WAIT_SECONDS = 30
GROUP = 100


class Decoder:
    """Notes what it decodes; a block can be made to wait or to fail."""

    def __init__(self, size: int = 1) -> None:
        self.decoded: list[int] = []
        self.threads: dict[int, str] = {}
        self.begun: dict[int, threading.Event] = {}
        self.failing: set[int] = set()
        self.may_end = threading.Event()
        self.may_end.set()
        self.ahead: DecodingAhead[int, str] = DecodingAhead(self.decode, lambda block: size)

    def decode(self, block: int) -> str:
        self.decoded.append(block)
        self.threads[block] = threading.current_thread().name
        self.begun.setdefault(block, threading.Event()).set()
        assert self.may_end.wait(WAIT_SECONDS)
        if block in self.failing:
            raise BadInputError(f"block {block}, attempt {self.decoded.count(block)}")
        return f"block {block}"

    def wait_for(self, block: int) -> None:
        assert self.begun.setdefault(block, threading.Event()).wait(WAIT_SECONDS)


def test_expected_blocks_are_decoded_two_ahead_and_others_when_they_are_taken() -> None:
    decoder = Decoder()
    decoder.ahead.expect(range(5))
    decoder.wait_for(1)
    assert set(decoder.decoded) == {0, 1}
    assert [decoder.ahead.take(block) for block in (0, 9)] == ["block 0", "block 9"]
    decoder.wait_for(2)
    assert decoder.threads[9] == threading.current_thread().name
    assert {decoder.threads[block] for block in (0, 1, 2)}.isdisjoint({decoder.threads[9]})
    assert [decoder.ahead.take(block) for block in range(1, 5)] == [f"block {block}" for block in range(1, 5)]
    assert sorted(decoder.decoded) == [0, 1, 2, 3, 4, 9]


def test_large_blocks_are_not_decoded_ahead() -> None:
    decoder = Decoder(size=1 << 30)
    decoder.ahead.expect(range(3))
    assert decoder.ahead.take(0) == "block 0"
    assert decoder.threads == {0: threading.current_thread().name}


def test_blocks_that_are_no_longer_expected_give_their_places_to_others() -> None:
    decoder = Decoder()
    decoder.ahead.expect([0, 1, 2])
    decoder.wait_for(1)
    decoder.ahead.expect([7, 8])
    decoder.wait_for(8)
    assert decoder.ahead.take(7) == "block 7"
    assert 2 not in decoder.decoded


def test_what_fails_ahead_is_tried_again_where_it_is_read() -> None:
    decoder = Decoder()
    decoder.failing = {0}
    decoder.ahead.expect([0])
    decoder.wait_for(0)
    with pytest.raises(BadInputError, match="attempt 2"):
        decoder.ahead.take(0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # of Python 3.12, at the fork
def test_a_forked_process_decodes_itself() -> None:
    decoder = Decoder()
    decoder.may_end.clear()
    decoder.ahead.expect([0])
    decoder.wait_for(0)
    process = os.fork()
    if not process:
        code = 2
        try:
            decoder.may_end.set()
            code = int(decoder.ahead.take(0) != "block 0")
        finally:
            os._exit(code)
    _, status = os.waitpid(process, 0)
    decoder.may_end.set()
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize(
    ("start", "end", "starts"),
    [(0, 7, [0, 3, 4]), (1, 2, [1]), (2, 4, [2, 3]), (3, 3, []), (4, 6, [4]), (6, 7, [6])],
)
def test_a_range_has_the_first_record_of_each_of_its_blocks(start: int, end: int, starts: list[int]) -> None:
    assert BlockSizes([3, 1, 0, 3], 1).starts_in(start, end) == starts


# --------------------------------------------------------------------------------------------------
# Parquet.


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rng = np.random.default_rng(5)
    table = {
        "f": rng.random(6 * GROUP),
        "i": rng.integers(0, 99, 6 * GROUP, np.int32),
        "b": rng.random(6 * GROUP) < 0.5,
        "t": [f"text {number}" for number in range(6 * GROUP)],
        "fixed": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(12 * GROUP)), 2),
        "lists": [[number] * (number % 3) for number in range(6 * GROUP)],
        "coded": pa.array(["a", "b", "c"] * (2 * GROUP)).dictionary_encode(),
    }
    pq.write_table(pa.table(table), tmp_path / "a.parquet", row_group_size=GROUP, write_page_checksum=True)
    return tmp_path / "a.parquet"


def rows(records: object) -> list[dict[str, object]]:
    assert isinstance(records, ColumnRecords)
    return [{name: np.asarray(cell).tolist() for name, cell in record.items()} for record in records]


def test_row_groups_that_were_decoded_ahead_have_the_same_rows(path: Path) -> None:
    ahead, plain = (ParquetReader([path]) for _ in range(2))
    order = [3, 0, 5, 1, 4, 2]
    ahead.fetch_ahead([(str(path), group * GROUP + 7) for group in order])
    for group in order:
        for start in range(group * GROUP, (group + 1) * GROUP, 30):
            end = min(start + 30, (group + 1) * GROUP)
            assert rows(ahead.read(str(path), start, end)) == rows(plain.read(str(path), start, end))


def test_rows_of_a_range_that_is_read_while_another_group_is_expected(path: Path) -> None:
    reader = ParquetReader([path])
    expected = rows(ParquetReader([path]).read(str(path), 50, 250))
    reader.fetch_ahead([(str(path), 500)])
    assert rows(reader.read(str(path), 50, 250)) == expected


def test_a_group_that_is_damaged_is_reported_once_it_is_read(path: Path) -> None:
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    content = bytearray(path.read_bytes())
    content[(column.dictionary_page_offset or column.data_page_offset) + 100] ^= 1
    path.write_bytes(content)
    reader, corrupt = ParquetReader([path], ["f"]), list[tuple[int, int]]()
    reader.fetch_ahead([(str(path), 0), (str(path), GROUP)])
    records = reader.read(str(path), 0, 2 * GROUP, lambda each: corrupt.append((each.start, each.end)))
    assert len(records) == GROUP
    assert corrupt == [(GROUP, 2 * GROUP)]


def test_a_file_that_changes_is_refused_also_when_its_group_was_expected(path: Path) -> None:
    reader = ParquetReader([path], ["f"])
    reader.sources()
    pq.write_table(pa.table({"f": np.zeros(6 * GROUP)}), path, row_group_size=GROUP)
    reader.fetch_ahead([(str(path), 0)])
    with pytest.raises(BadInputError, match="changed while it was in use"):
        reader.read(str(path), 0, 10)


def test_a_file_that_is_gone_is_named(path: Path) -> None:
    reader = ParquetReader([path], ["f"])
    reader.sources()
    path.unlink()
    with pytest.raises(BadInputError, match=r"a\.parquet"):
        reader.read(str(path), 0, 10)


@pytest.mark.parametrize(
    "read", [lambda reader, path: reader.read(path, 10, 20), lambda reader, path: reader.read(path, 95, 105)]
)
def test_columns_of_numbers_can_be_written_and_share_no_memory(
    path: Path, read: Callable[[ParquetReader, str], ColumnRecords]
) -> None:
    reader = ParquetReader([path], ["f", "i", "b", "fixed"])
    columns = read(reader, str(path)).columns.values()
    for column in columns:
        assert isinstance(column, np.ndarray)
        assert column.flags.writeable
    assert not any(np.shares_memory(one, other) for one in columns for other in columns if one is not other)
