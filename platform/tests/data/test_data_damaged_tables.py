"""Records, lines, rows and arrays that are damaged or cannot be read are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.format_files import (
    read_damaged,
    refuse,
    save_arrow,
    write_bytes,
    write_tar,
)
from support.tfrecords import write_tfrecord

from edl.api.errors import BadInputError
from edl.data.data_files import decode_index, encode_index
from edl.data.parquet_reader import ParquetReader
from edl.data.reader import CorruptRange
from edl.data.reader_factory import describe_order, open_reader
from edl.data.recordio.writer import Writer
from edl.data.shuffled_reader import ShuffledReader
from edl.data.tfrecord_format import frame_record


def test_a_tfrecord_with_another_checksum_is_reported_alone(tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "a.tfrecord", [b"%04d" % number for number in range(9)])
    content = bytearray(path.read_bytes())
    content[20 * 4 + 13] ^= 1
    path.write_bytes(content)
    records, corrupt = read_damaged(path)
    assert [int(record) for record in records] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert [(each.start, each.end, each.reason) for each in corrupt] == [(4, 5, "wrong checksum")]
    assert "record 4 cannot be read" in str(refuse(path))


@pytest.mark.parametrize("cut", [1, 5, 19])
def test_a_truncated_tfrecord_file_names_the_byte(tmp_path: Path, cut: int) -> None:
    path = write_tfrecord(tmp_path / "a.tfrecord", [b"%04d" % number for number in range(9)])
    path.write_bytes(path.read_bytes()[:-cut])
    error = refuse(path)
    assert "no record at byte 160: the file ends within a record" in str(error)
    assert error.where == str(path)


def test_a_tfrecord_length_that_was_overwritten_allocates_nothing(tmp_path: Path) -> None:
    path = write_tfrecord(tmp_path / "a.tfrecord", [b"%04d" % number for number in range(3)])
    content = bytearray(path.read_bytes())
    content[20:28] = b"\xff" * 8
    path.write_bytes(content)
    assert "no record at byte 20: its length has a wrong checksum" in str(refuse(path))


def test_large_tfrecords_span_what_is_read_at_once(tmp_path: Path) -> None:
    sizes = [3, 5_000_000, 7, 9_000_000, 0, 11]
    path = write_tfrecord(tmp_path / "a.tfrecord", [bytes([number]) * size for number, size in enumerate(sizes)])
    records, _ = read_damaged(path)
    assert [(len(record), record[:1]) for record in records] == [
        (s, bytes([n])[: min(s, 1)]) for n, s in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    "changed",
    [{"offsets": [0, 99]}, {"first_records": [0, 5, 2]}, {"offsets": "x"}, {"first_records": [-1]}, {"offsets": None}],
)
def test_a_saved_index_that_cannot_be_true_is_made_anew(tmp_path: Path, changed: dict[str, Any]) -> None:
    path = write_tfrecord(tmp_path / "a.tfrecord", [b"%04d" % number for number in range(9)])
    expected, _ = read_damaged(path, index="file")
    saved = tmp_path / "a.tfrecord.idx"
    saved.write_bytes(encode_index({**decode_index(saved.read_bytes()), **changed}))
    assert read_damaged(path, index="file") == (expected, [])


@pytest.mark.parametrize("suffix", [".txt", ".tfrecord", ".recordio", ".tar"])
def test_a_saved_index_with_another_digit_is_made_anew(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    if suffix == ".tar":
        write_tar(path, [(f"{number}.cls", b"%d" % number) for number in range(300)])
    elif suffix == ".recordio":
        with Writer(path, chunk_limit=100) as writer:
            for number in range(300):
                writer.write(b"%d" % number)
    else:
        lines = [b"%d" % number for number in range(300)]
        path.write_bytes(b"".join(map(frame_record, lines)) if suffix == ".tfrecord" else b"\n".join(lines))
    expected = read_damaged(path, index="file")
    saved = tmp_path / f"a{suffix}.idx"
    content = saved.read_bytes()
    for digit in [at for at in range(len(content)) if content[at : at + 1].isdigit()][-90::7]:
        changed = b"8" if content[digit : digit + 1] == b"1" else b"1"
        saved.write_bytes(content[:digit] + changed + content[digit + 1 :])
        assert read_damaged(path, index="file") == expected
        assert saved.read_bytes() == content


def test_a_byte_order_mark_is_no_part_of_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfa\nb\n")
    assert read_damaged(tmp_path / "a.txt") == ([b"a", b"b"], [])


@given(st.lists(st.text(st.characters(blacklist_characters="\r\n\ufeff", blacklist_categories=["Cs"]))), st.booleans())
def test_text_is_what_was_written(lines: list[str], has_end: bool) -> None:
    written = "\n".join(lines) + ("\n" if has_end and lines else "")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.txt"
        path.write_bytes(written.encode())
        records, corrupt = read_damaged(path)
    expected = written.split("\n")
    assert [record.decode() for record in records] == (expected if expected[-1] else expected[:-1])
    assert corrupt == []


def test_lines_that_are_not_utf8_or_no_json_are_reported_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\n\xff\nb\n")
    records, corrupt = read_damaged(tmp_path / "a.txt")
    assert (records, [each.start for each in corrupt]) == ([b"a", b"b"], [1])
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n{"a": \n[1]\n\n{"b": {}}\n')
    records, corrupt = read_damaged(tmp_path / "a.jsonl")
    assert [json.loads(record) for record in records] == [{"a": 1}, {"b": {}}]
    assert [(each.start, each.reason) for each in corrupt] == [(1, "not a JSON object"), (2, "not a JSON object")]


def test_rows_of_parquet_without_a_value_are_reported_alone(tmp_path: Path) -> None:
    table = pa.table({"x": [1.0, None, 3.0, 4.0], "tags": [["a"], ["b"], [None, "c"], None]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    records, corrupt = read_damaged(tmp_path / "a.parquet")
    assert [record["x"] for record in records] == [1.0]
    assert [(each.start, each.reason) for each in corrupt] == [
        (1, "no value in column x"),
        (2, "no value in column tags"),
        (3, "no value in column tags"),
    ]
    records, corrupt = read_damaged(tmp_path / "a.parquet", columns=["tags"])
    assert [record["tags"].tolist() for record in records] == [[b"a"], [b"b"]]


NESTED = [[[1, 2], [3]], [], [[]], None, [[4, None]], [[5], [6, 7, 8]], [[9]], [[10, 11]]]


def nested_values(records: Any) -> list[Any]:
    return [[inner.tolist() for inner in record["deep"]] for record in records]


def test_lists_of_lists_are_read_in_any_order(tmp_path: Path) -> None:
    pq.write_table(pa.table({"deep": NESTED}), tmp_path / "a.parquet", row_group_size=3)
    usable = [value for value in NESTED if value is not None and value != [[4, None]]]
    records, corrupt = read_damaged(tmp_path / "a.parquet")
    assert (nested_values(records), [each.start for each in corrupt]) == (usable, [3, 4])
    reader = open_reader(tmp_path / "a.parquet")
    assert reader.metadata.column_dtypes == {"deep": "int64"}
    shuffled, corrupt = ShuffledReader(reader, describe_order(reader, 8, seed=1)), []
    rows = [row for start in (0, 4) for row in shuffled.read(0, start, start + 4, corrupt.append)]
    assert (sorted(nested_values(rows)), len(corrupt)) == (sorted(usable), 2)


def test_lists_of_vectors_and_of_matrices_keep_their_shape(tmp_path: Path) -> None:
    vector = pa.list_(pa.float32(), 2)
    table = pa.table(
        {
            "boxes": pa.array([[[1, 2], [3, 4]], [], [[5, 6]]], pa.list_(vector)),
            "matrix": pa.array([[[1, 2]] * 3, [[3, 4]] * 3, [[5, 6]] * 3], pa.list_(vector, 3)),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    records, _ = read_damaged(tmp_path / "a.parquet")
    assert [record["boxes"].shape for record in records] == [(2, 2), (0, 2), (1, 2)]
    assert [record["matrix"].tolist() for record in records] == table["matrix"].to_pylist()


def test_a_missing_vector_leaves_the_others_of_all_row_groups_as_they_are(tmp_path: Path) -> None:
    table = pa.table({"v": pa.array([[1, 2], [3, 4], None, [5, 6]], pa.list_(pa.int64(), 2))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    records, corrupt = read_damaged(tmp_path / "a.parquet")
    assert [record["v"].tolist() for record in records] == [[1, 2], [3, 4], [5, 6]]
    assert [each.start for each in corrupt] == [2]


def test_shuffled_rows_beside_damaged_ones_come_once(tmp_path: Path) -> None:
    values = [None if number % 7 == 3 else number for number in range(60)]
    pq.write_table(pa.table({"x": values}), tmp_path / "a.parquet", row_group_size=8)
    reader = open_reader(tmp_path / "a.parquet")
    shuffled, corrupt = ShuffledReader(reader, describe_order(reader, 20, seed=1)), []
    numbers = [
        row["x"] for start in range(0, 60, 9) for row in shuffled.read(0, start, min(60, start + 9), corrupt.append)
    ]
    assert sorted(numbers) == [value for value in values if value is not None]
    assert sorted(each.start for each in corrupt) == [number for number in range(60) if number % 7 == 3]


def test_a_damaged_row_group_is_reported_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"x": np.random.default_rng(1).random(900)}), path, row_group_size=300, write_page_checksum=True
    )
    offset = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[offset + 400] ^= 1
    path.write_bytes(content)
    records, corrupt = read_damaged(path)
    assert len(records) == 600
    ((start, end, chunk),) = [(each.start, each.end, each.chunk) for each in corrupt]
    assert (start, end, chunk) == (300, 600, 1)


@pytest.mark.parametrize("changed", [b"\xda\x04", b"\xd7\x04"])
def test_numbers_of_rows_that_contradict_each_other_lose_no_record_silently(tmp_path: Path, changed: bytes) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.arange(900)}), path, row_group_size=300, use_dictionary=False)
    content = path.read_bytes()
    # 300 and 900 as Thrift writes them.
    places = [at for at in range(content.rfind(b"\xd8\x04")) if content[at : at + 2] in (b"\xd8\x04", b"\x88\x0e")]
    refused = 0
    for at in places[-6:]:
        damaged = open_reader(write_bytes(tmp_path / "b.parquet", content[:at] + changed + content[at + 2 :]))
        corrupt: list[CorruptRange] = []
        try:
            (source,) = damaged.sources()
            records = damaged.read(source.name, 0, source.records, corrupt.append)
        except BadInputError:
            refused += 1
        else:
            assert len(records) + sum(each.records for each in corrupt) == source.records == 900
    assert refused > 0


def test_a_row_group_with_fewer_rows_than_the_footer_says_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.arange(900)}), path, row_group_size=300, use_dictionary=False)
    reader = open_reader(path)
    assert isinstance(reader, ParquetReader)
    footer = reader._footer(str(path))
    reader._footers[str(path)] = replace(footer, group_records=(300, 310, 300))
    corrupt: list[CorruptRange] = []
    records = reader.read(str(path), 0, 910, corrupt.append)
    assert [(each.start, each.end) for each in corrupt] == [(300, 610)]
    assert "it has 300 rows, not 310" in corrupt[0].reason
    assert len(records) == 600


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([{"a": 1}]), "features are numbers"),
        (pa.array([[{"a": 1}]]), "lists contain numbers, text, or lists of these"),
    ],
)
def test_columns_that_are_no_features_are_refused_by_name(tmp_path: Path, column: Any, said: str) -> None:
    pq.write_table(pa.table({"x": [1], "odd": column}), tmp_path / "a.parquet")
    error = refuse(tmp_path / "a.parquet")
    assert "column odd" in str(error)
    assert said in str(error)
    assert read_damaged(tmp_path / "a.parquet", columns=["x"])[0] == [{"x": 1}]


def test_files_of_a_data_set_need_the_same_columns(tmp_path: Path) -> None:
    for name, table in (("a", {"x": [1.0]}), ("b", {"x": [1]})):
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    assert "column x is int64" in str(refuse(tmp_path))
    np.savez(tmp_path / "c.npz", x=np.zeros((2, 3)))
    np.savez(tmp_path / "d.npz", x=np.zeros((2, 4)))
    with pytest.raises(BadInputError, match=r"x: float64 \(4,\)"):
        open_reader([tmp_path / "c.npz", tmp_path / "d.npz"]).sources()


def test_arrays_of_objects_and_files_cut_short_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{}], object), allow_pickle=True)
    assert "Python objects" in str(refuse(tmp_path / "a.npy"))
    np.savez_compressed(tmp_path / "b.npz", x=np.array([{}], object))
    assert "allow_pickle" in str(refuse(tmp_path / "b.npz"))
    np.save(tmp_path / "c.npy", np.zeros((100, 10)))
    (tmp_path / "c.npy").write_bytes((tmp_path / "c.npy").read_bytes()[:-8])
    assert "truncated" in str(refuse(tmp_path / "c.npy"))
    for name in ("d.npz", "e.parquet"):
        (tmp_path / name).write_bytes(b"PK\x03\x04" if name == "d.npz" else b"PAR1 half")
        assert "cannot be read" in str(refuse(tmp_path / name))
    np.savez(tmp_path / "f.npz", x=np.zeros((3, 2)), scale=np.float32(1))
    assert "scale: no axis" in str(refuse(tmp_path / "f.npz"))
    assert len(read_damaged(tmp_path / "f.npz", columns=["x"])[0]) == 3


def test_a_column_that_only_some_files_of_parquet_have_is_refused_unless_columns_are_chosen(tmp_path: Path) -> None:
    for name, table in (("a", {"x": [1]}), ("b", {"y": [2], "x": [3]})):
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    refused = refuse(tmp_path)
    assert ("column y" in str(refused), refused.where) == (True, str(tmp_path / "b.parquet"))
    assert [source.records for source in open_reader(tmp_path, {"columns": ["x"]}).sources()] == [1, 1]


def test_csv_that_is_empty_or_in_utf16_is_told_apart(tmp_path: Path) -> None:
    for content, hint in ((b"", "remove the file"), ("x,y\n1,2\n".encode("utf-16"), "iconv -f utf-16")):
        assert hint in (refuse(write_bytes(tmp_path / "a.csv", content)).hint or "")


def test_times_of_numpy_are_whole_numbers_in_the_unit_of_the_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", day=np.array(["1970-01-03"], "M8[D]"))
    assert open_reader(tmp_path / "a.npz").metadata.column_dtypes == {"day": "int64"}
    (record,) = read_damaged(tmp_path / "a.npz")[0]
    assert (record["day"], record["day"].dtype) == (2, np.int64)


def test_damaged_npz_files_are_errors_of_the_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(3), y=np.zeros(3))
    content = (tmp_path / "a.npz").read_bytes()
    place = content.index(b"'descr'")
    for changed in (
        content[: place - 1] + b"((((((((" + content[place + 7 :],
        content[:place] + bytes(9) + content[place + 9 :],
    ):
        assert "cannot be read" in str(refuse(write_bytes(tmp_path / "b.npz", changed)))
    assert "truncated" in str(refuse(write_bytes(tmp_path / "c.npz", content[:-60])))
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(999))
    packed = bytearray((tmp_path / "a.npz").read_bytes())
    packed[200:230] = bytes(30)
    assert "cannot be read" in str(refuse(write_bytes(tmp_path / "d.npz", bytes(packed))))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_file_that_lost_bytes_is_damaged_and_not_read_again(tmp_path: Path, save: Callable[..., None]) -> None:
    save(tmp_path / "a.npz", x=np.arange(9999), y=np.arange(9999))
    content = (tmp_path / "a.npz").read_bytes()
    # zipfile looks for the directory before the beginning of the file.
    lost = write_bytes(tmp_path / "b.npz", content[:200] + content[-400:])
    assert "write it again" in str(refuse(lost))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]), "several fields"),
        (np.zeros(3, "V2"), "raw bytes"),
        (np.zeros(3, np.longdouble), "float64"),
    ],
)
def test_arrays_of_types_that_a_model_cannot_take_are_refused_by_name(
    tmp_path: Path, values: npt.NDArray[Any], said: str
) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(len(values)), odd=values)
    assert "odd" in (error := str(refuse(tmp_path / "a.npz")))
    assert said in error
    assert len(read_damaged(tmp_path / "a.npz", columns=["x"])[0]) == len(values)
    np.save(tmp_path / "b.npy", values)
    assert said in str(refuse(tmp_path / "b.npy"))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_names_of_columns_that_are_twice_or_no_text_are_refused(tmp_path: Path, suffix: str) -> None:
    def write(name: str, table: pa.Table) -> Path:
        path = tmp_path / f"{name}{suffix}"
        if suffix == ".parquet":
            pq.write_table(table, path)
            return path
        return save_arrow(path, table)

    twice = write("twice", pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["x", "x", "y"]))
    assert "two columns x" in str(refuse(twice))
    assert read_damaged(twice, columns=["y"])[0] == [{"y": 3}]
    content = write("name", pa.table({"distance": [1, 2]})).read_bytes()
    damaged = write_bytes(tmp_path / f"damaged{suffix}", content.replace(b"distance", b"dist\xff\xfece"))
    assert "cannot be read" in str(refuse(damaged))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_table_without_columns_is_refused(tmp_path: Path, suffix: str) -> None:
    path, table = tmp_path / f"a{suffix}", pa.table({})
    if suffix == ".parquet":
        pq.write_table(table, path)
    else:
        save_arrow(path, table)
    assert "no columns" in str(refuse(path))


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".tfrecord"])
def test_a_corrupt_record_is_named_with_its_place_in_the_file(tmp_path: Path, suffix: str) -> None:
    lines = [b'{"n": %d}' % number for number in range(90)]
    path, bad = tmp_path / f"a{suffix}", b"\xff\xff"
    if suffix == ".tfrecord":
        write_tfrecord(path, [*lines[:70], bad, *lines[70:]])
        path.write_bytes(path.read_bytes().replace(bad, b"xx"))
        place = path.read_bytes().index(b"xx") - 12
    else:
        path.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join([*lines[:70], bad, *lines[70:]]))
        place = path.read_bytes().index(bad)
    records, corrupt = read_damaged(path)
    assert (len(records), [(each.start, each.offset) for each in corrupt]) == (90, [(70, place)])
    if suffix == ".jsonl":
        typed = open_reader(path, text_types={"n": "int64"})
        typed.read(str(path), 60, 80, corrupt.append)
        assert corrupt[1].offset == place
