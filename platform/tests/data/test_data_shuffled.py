"""Reading a shuffled epoch: the records that the order names, each block once a window, damage by its record."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.api.errors import BadInputError
from edl.core.permutation import permute_index
from edl.core.shuffle import BlockLayout, ShuffleOrder
from edl.data import shuffled_reader
from edl.data.csv_reader import CsvReader
from edl.data.reader import (
    BlockSizes,
    CorruptRange,
    CorruptRecordError,
    Metadata,
    OnCorrupt,
    PackedRecords,
    Source,
)
from edl.data.reader_factory import describe_order, open_reader, read_reader_blocks
from edl.data.recordio.reader import RecordIOReader
from edl.data.recordio.writer import Writer
from edl.data.shuffled_reader import ShuffledReader, fastest_permuted_range, permuted_in_python

sizes = st.lists(st.lists(st.integers(1, 30), max_size=8), min_size=1, max_size=4)


class BlockReader:
    """Records ``source:number``, in blocks; remembers what was read."""

    metadata = Metadata("memory")

    def __init__(self, blocks: Sequence[Sequence[int]], lacks: int = 0) -> None:
        self._sizes = {f"s{at}": list(block_sizes) for at, block_sizes in enumerate(blocks)}
        self._lacks = lacks
        self.reads: list[tuple[str, int, int]] = []

    def sources(self) -> list[Source]:
        return [Source(name, sum(block_sizes)) for name, block_sizes in self._sizes.items()]

    def blocks(self, source: str) -> BlockSizes:
        return BlockSizes(self._sizes[source], 100)

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> list[bytes]:
        self.reads.append((source, start, end))
        return [f"{source}:{number}".encode() for number in range(start, end - self._lacks)]


class PackedReader(BlockReader):
    """The same, and of each ``every``-th block the records are where they are in memory."""

    def __init__(self, blocks: Sequence[Sequence[int]], every: int) -> None:
        super().__init__(blocks)
        self._every = every

    def packed_records(self, source: str, start: int, end: int) -> PackedRecords | None:
        if not self._every or start % self._every:
            return None
        records = super().read(source, start, end)
        bounds = accumulate((3 + len(record) for record in records), initial=0)
        return PackedRecords(b"".join(b"---" + record for record in records), array("Q", bounds), 3)


def shuffled(reader: BlockReader, window: int, seed: int = 0) -> ShuffledReader:
    return ShuffledReader(reader, describe_order(reader, window, seed))


@given(st.integers(1, 3000), st.data(), st.integers(0, 2**64 - 1))
def test_many_positions_are_permuted_as_one_is(count: int, data: st.DataObject, key: int) -> None:
    first = data.draw(st.integers(0, count))
    last = data.draw(st.integers(first, min(count, first + 50)))
    expected = [permute_index(index, count, key) for index in range(first, last)]
    assert permuted_in_python(first, last, count, key).tolist() == expected
    assert fastest_permuted_range()(first, last, count, key).tolist() == expected


@given(sizes, st.integers(1, 200), st.integers(1, 40), st.integers(0, 2**40), st.integers(0, 2), st.integers(0, 2))
def test_what_is_read_is_what_the_order_names(
    blocks: list[list[int]], window: int, step: int, seed: int, epoch: int, every: int
) -> None:
    read = shuffled(PackedReader(blocks, every), window, seed)
    order, total = read.order.epoch_order(epoch), read.order.records
    records = [record for at in range(0, total, step) for record in read.read(epoch, at, min(at + step, total))]
    places = [order.locate_record(position) for position in range(total)]
    assert records == [f"{place.source}:{place.record}".encode() for place in places]


@given(sizes, st.integers(1, 200))
def test_any_worker_reads_the_same_for_a_lease_whatever_it_read_before(blocks: list[list[int]], window: int) -> None:
    first, second = shuffled(BlockReader(blocks), window), shuffled(PackedReader(blocks, 1), window)
    total = first.order.records
    leases = [(epoch, at, min(at + 25, total)) for epoch in (0, 1) for at in range(0, total, 25)]
    in_turn = {lease: first.read(*lease) for lease in leases}
    assert {lease: second.read(*lease) for lease in reversed(leases)} == in_turn


def test_a_block_is_read_once_for_a_window_and_no_more_than_a_window_is_held() -> None:
    reader = BlockReader([[10] * 30, [10] * 10])
    read = shuffled(reader, 95)
    block_counts = []
    for at in range(0, 400, 8):
        read.read(0, at, at + 8)
        block_counts.append(len(read._cached_blocks))
    assert max(block_counts) <= -(-95 // 10) + 1
    # The block at each border of two windows is kept for the second one.
    assert Counter(reader.reads) == Counter(
        {(s, at, at + 10): 1 for s, n in (("s0", 300), ("s1", 100)) for at in range(0, n, 10)}
    )


def test_a_data_set_of_one_window_is_read_once_for_all_epochs() -> None:
    reader = BlockReader([[10] * 30, [7]])
    read = shuffled(reader, 400)
    epochs = [
        [record for at in range(0, 307, 16) for record in read.read(epoch, at, min(at + 16, 307))] for epoch in range(3)
    ]
    assert len(reader.reads) == 31
    assert epochs[0] != epochs[1] != epochs[2]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])


def test_a_reader_that_does_not_give_what_it_was_asked_for_is_refused() -> None:
    with pytest.raises(BadInputError, match="9 of the 10 records"):
        shuffled(BlockReader([[10]], lacks=1), 5).read(0, 0, 3)


def test_blocks_that_do_not_add_up_are_refused_by_the_name_of_the_source() -> None:
    reader = BlockReader([[10]])
    reader.blocks = lambda source: BlockSizes([4, 4], 1)  # type: ignore[method-assign]
    with pytest.raises(
        BadInputError, match=r"s0: blocks\(\) of the data reader returns 8 records, sources\(\) returns 10"
    ):
        read_reader_blocks(reader)


# ------------------------------------------------------------------------------------------------ the built-in readers


def recordio(path: Path, chunks: int, records: int = 5) -> Path:
    with Writer(path, chunk_limit=records * 8) as writer:
        for number in range(chunks * records):
            writer.write(b"%s%06d" % (path.name[:2].encode(), number))
    return path


def test_the_blocks_of_recordio_are_its_chunks(tmp_path: Path) -> None:
    reader = open_reader([recordio(tmp_path / "a.recordio", 3), recordio(tmp_path / "b.recordio", 2)])
    blocks = read_reader_blocks(reader)
    assert blocks is not None
    assert blocks.runs == (((5, 3),), ((5, 2),))
    assert 8 <= blocks.record_bytes <= 100
    order = describe_order(reader, 12, 3)
    read = ShuffledReader(reader, order).read(0, 0, 25)
    assert len(set(read)) == 25


def test_the_blocks_of_csv_are_pieces_of_256_rows(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("number\n" + "".join(f"{number}\n" for number in range(600)))
    reader = CsvReader([file])
    blocks = read_reader_blocks(reader)
    assert blocks is not None
    assert blocks.runs == (((256, 2), (88, 1)),)
    read = ShuffledReader(reader, describe_order(reader, 600, 3)).read(1, 0, 600)
    assert sorted(int(row[0]) for row in read) == list(range(600))
    assert [int(row[0]) for row in read] != list(range(600))


def test_a_reader_keeps_the_chunk_of_one_file_in_memory(tmp_path: Path) -> None:
    files = [recordio(tmp_path / f"{name}.recordio", 3) for name in "abcdef"]
    reader = RecordIOReader(files)
    ShuffledReader(reader, describe_order(reader, 90, 0)).read(0, 0, 90)
    assert sum(file._cached_chunk[0] >= 0 for file in reader._files.values()) == 1


def test_a_reader_without_blocks_has_no_order() -> None:
    class PlainReader:
        metadata = Metadata("plain")

        def sources(self) -> list[Source]:
            return [Source("s", 3)]

        def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> list[bytes]:
            return [b""] * (end - start)

    assert read_reader_blocks(PlainReader()) is None
    with pytest.raises(BadInputError, match="no random access"):
        describe_order(PlainReader(), 3, 0)


# ------------------------------------------------------------------------------------------------ damage


def damaged(path: Path, chunk: int) -> RecordIOReader:
    data = bytearray(path.read_bytes())
    data[data.index(b"%s%06d" % (path.name[:2].encode(), chunk * 5))] ^= 0xFF
    path.write_bytes(data)
    return RecordIOReader([path])


@given(st.integers(1, 25), st.integers(1, 9), st.integers(0, 4))
def test_each_damaged_record_is_reported_once_and_by_its_own_number(
    tmp_path_factory: pytest.TempPathFactory, window: int, step: int, epoch: int
) -> None:
    path = recordio(tmp_path_factory.mktemp("damaged") / "a.recordio", 5)
    reader = damaged(path, 2)
    read, reported = ShuffledReader(reader, describe_order(reader, window, 1)), list[CorruptRange]()
    records = [r for at in range(0, 25, step) for r in read.read(epoch, at, min(at + step, 25), reported.append)]
    assert sorted(int(record[2:]) for record in records) == [*range(10), *range(15, 25)]
    assert sorted(corrupt.start for corrupt in reported) == [10, 11, 12, 13, 14]
    assert {(c.source, c.chunk, c.whole, c.records) for c in reported} == {(str(path), 2, (10, 15), 1)}


def test_a_damaged_record_is_an_error_where_none_is_allowed(tmp_path: Path) -> None:
    reader = damaged(recordio(tmp_path / "a.recordio", 5), 2)
    with pytest.raises(CorruptRecordError, match="records 10 to 14 cannot be read"):
        ShuffledReader(reader, describe_order(reader, 25, 1)).read(0, 0, 25)


def test_an_order_is_of_the_files_that_it_was_made_of(tmp_path: Path) -> None:
    before = describe_order(open_reader(recordio(tmp_path / "a.recordio", 3)), 5, 0)
    after = describe_order(open_reader(recordio(tmp_path / "a.recordio", 5, records=3)), 5, 0)
    assert before.records == after.records
    assert isinstance(before, ShuffleOrder)
    assert before.fingerprint != after.fingerprint
    assert BlockLayout.from_sizes([[5, 5, 5]], 1).runs == before.runs


def test_packed_records_are_a_sequence() -> None:
    packed = PackedRecords(b"-a-bc-", array("Q", [0, 2, 5, 6]), 1)
    assert [*packed] == [b"a", b"bc", b""]
    assert (len(packed), packed[-2], packed[1:]) == (3, b"bc", [b"bc", b""])
    with pytest.raises(IndexError):
        packed[3]


@pytest.mark.parametrize("joined_bytes", [0, shuffled_reader._JOINED_BYTES])
def test_records_in_arrays_are_the_same_whether_a_window_is_joined_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, joined_bytes: int
) -> None:
    monkeypatch.setattr(shuffled_reader, "_JOINED_BYTES", joined_bytes)
    for part in range(2):
        numbers = np.arange(part, 3000, 2)
        np.savez(tmp_path / f"{part}.npz", number=numbers, wide=np.repeat(numbers[:, None], 1000, 1))
    reader = open_reader((str(tmp_path),))
    read = ShuffledReader(reader, describe_order(reader, 1000, 3))
    for epoch in range(2):
        parts = [read.read(epoch, start, min(start + 64, 3000)) for start in range(0, 3000, 64)]
        order = read.order.epoch_order(epoch)
        places = [order.locate_record(position) for position in range(3000)]
        records = [record for part in parts for record in part]
        assert [int(record["number"]) for record in records] == [
            2 * place.record + int(Path(place.source).stem) for place in places
        ]
        assert all((record["wide"] == record["number"]).all() for record in records)
    assert (read._joined is not None) == (joined_bytes > 0)
