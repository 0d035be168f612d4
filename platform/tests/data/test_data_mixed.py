"""Several sources with weights and repeats, and a split by the hash of a key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.api.errors import BadInputError
from edl.api.job_spec import DataSpec, SchemaSpec, SplitSpec
from edl.data import serialize_example
from edl.data.job_data import open_job_data
from edl.data.parquet_reader import ParquetReader
from edl.data.reader import CorruptRange, Reader, Source
from edl.data.reader_factory import describe_order, read_reader_blocks
from edl.data.recordio.writer import Writer
from edl.data.shuffled_reader import WeightedReader, read_by_position
from edl.data.split_reader import SplitReader, is_validation


def write_csv(path: Path, rows: range, header: str = "number,user") -> str:
    path.write_text(header + "\n" + "".join(f"{row},u{row % 50}\n" for row in rows))
    return str(path)


def numbers_of(reader: Reader, *, size: int, window: int = 64, epoch: int = 0) -> list[int]:
    order = describe_order(reader, window, seed=3)
    records = read_by_position(reader, order)
    numbers: list[int] = []
    for start in range(0, order.records, size):
        numbers += [int(row[0]) for row in records.read(epoch, start, min(order.records, start + size))]
    return numbers


@pytest.fixture
def two(tmp_path: Path) -> tuple[str, str]:
    return write_csv(tmp_path / "a.csv", range(600)), write_csv(tmp_path / "b.csv", range(600, 1000))


def test_weights_set_the_order_and_every_record_is_read_once(two: tuple[str, str]) -> None:
    reader = open_job_data(DataSpec(training=two, weights=(1, 4)), "training")
    numbers = numbers_of(reader, size=37)
    assert Counter(numbers) == Counter(range(1000))
    assert sum(number >= 600 for number in numbers[:500]) == 400


def test_what_a_minibatch_has_depends_on_the_lease_only(two: tuple[str, str]) -> None:
    data = DataSpec(training=two, weights=(3, 2))
    numbers = numbers_of(open_job_data(data, "training"), size=1000)
    assert numbers_of(open_job_data(data, "training"), size=13) == numbers
    other = open_job_data(data, "training")
    alone = read_by_position(other, describe_order(other, 64, seed=3))
    assert isinstance(alone, WeightedReader)
    assert [int(row[0]) for row in alone.read(0, 700, 713)] == numbers[700:713]
    assert numbers_of(other, size=50, epoch=1) != numbers


def test_a_repeated_source_has_each_record_so_often(two: tuple[str, str]) -> None:
    reader = open_job_data(DataSpec(training=two, repeat=(1, 3)), "training")
    assert [source.records for source in reader.sources()] == [600, 400, 400, 400]
    assert Counter(numbers_of(reader, size=100)) == Counter(range(600)) + Counter(list(range(600, 1000)) * 3)
    weighted = open_job_data(DataSpec(training=two, repeat=(1, 2), weights=(1, 5)), "training")
    layout = read_reader_blocks(weighted)
    assert layout is not None
    assert layout.weights == ((1, 1), (5, 2))


def test_records_of_bytes_are_mixed_in_packed_form(tmp_path: Path) -> None:
    for name, start in (("a", 0), ("b", 100)):
        with Writer(tmp_path / f"{name}.recordio") as writer:
            for number in range(start, start + 100):
                writer.write(b"%d" % number)
    paths = tuple(str(tmp_path / f"{name}.recordio") for name in "ab")
    reader = open_job_data(DataSpec(training=paths, weights=(1, 1)), "training")
    records = read_by_position(reader, describe_order(reader, 50, seed=0))
    assert sorted(int(record) for record in records.read(0, 0, 200)) == list(range(200))


@pytest.mark.parametrize("change", [{"weights": (1, 2)}, {"repeat": (1, 2)}, {"split": SplitSpec("user", 0.3)}])
def test_row_groups_of_several_sources_are_decoded_ahead_and_none_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    paths = []
    for name, first in (("a", 0), ("b", 600)):
        table = pa.table({"number": range(first, first + 600), "user": [f"u{row % 50}" for row in range(600)]})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=50)
        paths.append(str(tmp_path / f"{name}.parquet"))
    reader = open_job_data(DataSpec(training=tuple(paths), **change), "training")
    order = describe_order(reader, 100, seed=3)  # also makes the pass of a split
    decoded: list[tuple[str, int]] = []
    expected: set[tuple[str, int]] = set()
    decode_group, fetch_ahead = ParquetReader._decode_group, ParquetReader.fetch_ahead

    def count_group(self: Any, source: str, number: int) -> Any:
        decoded.append((source, number))
        return decode_group(self, source, number)

    def note_blocks(self: Any, blocks: Sequence[tuple[str, int]]) -> None:
        expected.update((source, row // 50) for source, row in blocks)
        fetch_ahead(self, blocks)

    monkeypatch.setattr(ParquetReader, "_decode_group", count_group)
    monkeypatch.setattr(ParquetReader, "fetch_ahead", note_blocks)
    records = read_by_position(reader, order)
    for start in range(0, order.records, 30):
        records.read(0, start, min(order.records, start + 30))
    repeats = {paths[1]: 2} if "repeat" in change else {}
    groups = {(path, group): repeats.get(path, 1) for path in paths for group in range(12)}
    assert Counter(decoded) == Counter(groups)
    assert expected == set(groups)


def test_sources_with_other_columns_are_named(tmp_path: Path, two: tuple[str, str]) -> None:
    other = write_csv(tmp_path / "c.csv", range(3), "number,size")
    with pytest.raises(BadInputError, match=r"column_names is number, size, and number, user in .*a\.csv") as error:
        open_job_data(DataSpec(training=(two[0], other), weights=(1, 1)), "training").sources()
    assert error.value.where == other


def test_a_file_in_two_sources_is_refused(two: tuple[str, str]) -> None:
    with pytest.raises(BadInputError, match="is in two paths"):
        open_job_data(DataSpec(training=(two[0], two[0]), repeat=(1, 2)), "training").sources()


# --------------------------------------------------------------------------------------------------
# The split.


def both(data: DataSpec) -> tuple[Reader, Reader]:
    return open_job_data(data, "training"), open_job_data(data, "validation")


def users_of(reader: Reader) -> dict[str, list[int]]:
    users: dict[str, list[int]] = {}
    for source in reader.sources():
        for row in reader.read(source.name, 0, source.records):
            users.setdefault(row[1], []).append(int(row[0]))
    return users


def test_a_split_puts_all_records_of_a_key_into_one_set(two: tuple[str, str]) -> None:
    data = DataSpec(training=two, validation=two, split=SplitSpec("user", 0.3))
    training, validation = (users_of(reader) for reader in both(data))
    assert not set(training) & set(validation)
    assert sorted(number for users in (training, validation) for numbers in users.values() for number in numbers) == [
        *range(1000)
    ]
    assert 5 <= len(validation) <= 25


def test_the_pass_of_a_split_is_made_once_in_a_run(
    tmp_path: Path, two: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DataSpec(training=two, validation=two, split=SplitSpec("user", 0.3))
    folder = tmp_path / "run"
    folder.mkdir()
    passes, choose = [], SplitReader._choose_all

    def count_pass(self: SplitReader, source: Source) -> Any:
        passes.append(source.name)
        return choose(self, source)

    def records_of(data_set: str) -> list[Any]:
        reader = open_job_data(data, data_set, folder)
        return [record for source in reader.sources() for record in reader.read(source.name, 0, source.records)]

    expected = [list(users_of(reader).items()) for reader in both(data)]
    monkeypatch.setattr(SplitReader, "_choose_all", count_pass)
    for _ in range(2):  # the master and a worker
        training, validation = records_of("training"), records_of("validation")
    assert passes == list(two)
    assert len(training) == sum(len(rows) for _, rows in expected[0])
    assert len(validation) == sum(len(rows) for _, rows in expected[1])
    (saved,) = folder.iterdir()

    for content in (b"", b"no archive", saved.read_bytes()[:-40]):
        saved.write_bytes(content)
        assert records_of("validation") == validation
    assert len(passes) == 4 * len(two), "a file that is damaged is made again"
    write_csv(Path(two[0]), range(1, 601))
    records_of("training")
    assert len(passes) == 5 * len(two), "of other data than these it says nothing"


def test_a_folder_that_cannot_be_written_costs_only_the_pass(tmp_path: Path, two: tuple[str, str]) -> None:
    data = DataSpec(training=two, split=SplitSpec("user", 0.3))
    records = [open_job_data(data, "training", folder).sources() for folder in (None, tmp_path / "missing")]
    assert records[0] == records[1]


@given(st.binary(), st.floats(0.01, 0.9))
def test_a_larger_share_has_the_values_of_a_smaller_one(value: bytes, share: float) -> None:
    assert is_validation(value, share + 0.05) or not is_validation(value, share)


def test_shares_are_met() -> None:
    assert 900 < sum(is_validation(b"%d" % value, 0.1) for value in range(10_000)) < 1100


def test_a_split_set_is_shuffled_with_weights_and_repeats(two: tuple[str, str]) -> None:
    data = DataSpec(training=two, validation=two, split=SplitSpec("user", 0.3), repeat=(2, 1), weights=(1, 2))
    training, _ = both(data)
    once = users_of(open_job_data(DataSpec(training=two, validation=two, split=data.split), "training"))
    expected = Counter(number for numbers in once.values() for number in numbers for _ in range(1 + (number < 600)))
    assert Counter(numbers_of(training, size=31)) == expected


def test_the_same_value_is_in_the_same_set_in_every_format(tmp_path: Path) -> None:
    csv = write_csv(tmp_path / "a.csv", range(300))
    pq.write_table(pa.table({"number": range(300), "size": range(300)}), tmp_path / "a.parquet", row_group_size=70)
    (tmp_path / "a.jsonl").write_text("".join(f'{{"number": {number}}}\n' for number in range(300)))
    split = SplitSpec("number", 0.4)
    counts = []
    for path in (csv, str(tmp_path / "a.parquet"), str(tmp_path / "a.jsonl")):
        data = DataSpec(training=(path,), validation=(path,), split=split)
        counts.append([sum(source.records for source in reader.sources()) for reader in both(data)])
    assert counts[0] == counts[1] == counts[2]
    assert sum(counts[0]) == 300


def test_the_key_is_read_beside_the_columns_of_the_schema(tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"number": range(300), "size": range(300), "user": [b"x"] * 300}), path)
    schema = SchemaSpec(label="size", features={"number": "int64"})
    data = DataSpec(training=(path,), validation=(path,), split=SplitSpec("user", 0.4), schema=schema)
    assert open_job_data(data, "training").metadata.column_names == ("number", "size", "user")


def test_damaged_rows_are_in_the_training_set_with_their_place_in_the_file(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", range(20))
    lines = Path(path).read_text().splitlines()
    lines[8] = "7"  # a cell too few
    Path(path).write_text("\n".join(lines) + "\n")
    data = DataSpec(training=(path,), validation=(path,), split=SplitSpec("user", 0.4))
    training, validation = both(data)
    corrupt: list[CorruptRange] = []
    rows: list[Any] = []
    for reader in (training, validation):
        (source,) = reader.sources()
        rows += reader.read(source.name, 0, source.records, corrupt.append)
    assert sorted(int(row[0]) for row in rows) == [number for number in range(20) if number != 7]
    assert [(each.records, "record 7 of the file" in each.reason) for each in corrupt] == [(1, True)]


@pytest.mark.parametrize("kind", ["column", "bytes", "list"])
def test_a_key_that_cannot_divide_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    key = "size"
    if kind == "column":
        path = write_csv(tmp_path / "a.csv", range(5))
    elif kind == "bytes":
        path = str(tmp_path / "a.recordio")
        with Writer(Path(path)) as writer:
            writer.write(serialize_example({"size": 1}))
    else:
        path = str(tmp_path / "a.parquet")
        pq.write_table(pa.table({"size": [[1, 2], [3]], "n": np.arange(2)}), path)
    data = DataSpec(training=(path,), validation=(path,), split=SplitSpec(key, 0.4))
    with pytest.raises(BadInputError) as error:
        open_job_data(data, "training").sources()
    assert error.value.where == "data.split.key"


def test_lines_of_json_without_the_key_are_named_and_those_that_are_no_json_are_for_training(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    data = DataSpec(training=(str(path),), validation=(str(path),), split=SplitSpec("user", 0.5))
    path.write_text('{"user": 1}\n{broken}\n' * 40)
    sets = [open_job_data(data, name).sources()[0].records for name in ("training", "validation")]
    assert sets in ([40, 40], [80, 0])
    path.write_text('{"user": 1}\n[]\n{"name": 2}\n')
    with pytest.raises(BadInputError, match="record 2 has no value 'user'") as refused:
        open_job_data(data, "training").sources()
    assert refused.value.where == str(path)
