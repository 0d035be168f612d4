"""Statistics of tables: partial results merge, and every result is within the error that it states."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.range_server import serve_folder
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.data import block_file, sketches, table_scan, text_ranges
from edl.data.data_files import PACKED_SUFFIXES
from edl.data.sketches import hash_bytes
from edl.data.statistics_files import (
    RangeStatistics,
    SourceRange,
    WorkerStatistics,
    decode_worker,
    encode_worker,
    find_wider_types,
)
from edl.data.table_scan import TableRanges, scan_table
from edl.data.table_statistics import TableStatistics

Json = dict[str, Any]


@pytest.fixture
def small_sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketches, "LEVEL_VALUES", 16)
    monkeypatch.setattr(sketches, "HASHES", 64)
    monkeypatch.setattr(sketches, "COUNTERS", 8)


def columns_of(statistics: TableStatistics, top: int = 10) -> dict[str, Json]:
    return {column["name"]: column for column in statistics.to_json(top)["columns"]}


def check_number(column: Json, values: np.ndarray[Any, Any]) -> None:
    """Every figure of a column is within its stated error."""
    assert column["count"] == len(values)
    assert (column["min"], column["max"]) == (values.min(), values.max())
    assert column["mean"] == pytest.approx(values.mean(), rel=1e-9, abs=1e-9)
    assert column["std"] == pytest.approx(values.std(), rel=1e-6, abs=1e-6)
    ordered, allowed = np.sort(values), column["quantile_error"] * len(values)
    assert len(column["quantiles"]) == 1001
    for share, value in zip(np.linspace(0, 1, 1001), column["quantiles"], strict=True):
        assert np.searchsorted(ordered, value, "left") - allowed <= share * len(values) + 1e-6
        assert np.searchsorted(ordered, value, "right") + allowed >= share * len(values) - 1e-6
    histogram = column["histogram"]
    assert sum(histogram["counts"]) == len(values)
    check_top(column, values.tolist())


def check_top(column: Json, values: list[Any]) -> None:
    counts = {value: values.count(value) for value in set(values)}
    for value, count in column["top"]:
        assert count <= counts[value] <= count + column["top_error"]
    listed = {value for value, _ in column["top"]}
    if column["top"] and len(column["top"]) < 10:
        assert all(count <= column["top_error"] for value, count in counts.items() if value not in listed)


@pytest.mark.usefixtures("small_sketches")
@settings(max_examples=examples(40), deadline=None)
@given(
    values=st.lists(st.integers(-40, 40) | st.integers(-(10**9), 10**9), min_size=1, max_size=700),
    cuts=st.lists(st.integers(0, 700), max_size=5),
)
def test_merged_parts_and_the_whole_are_within_the_stated_error(values: list[int], cuts: list[int]) -> None:
    table = pa.table({"n": pa.array(values, pa.int64()), "t": [str(value) for value in values]})
    whole, merged = TableStatistics(), TableStatistics()
    whole.add(table)
    bounds = sorted({0, len(values), *(min(cut, len(values)) for cut in cuts)})
    for begin, end in pairwise(bounds):
        part = TableStatistics()
        part.add(table.slice(begin, end - begin))
        merged.merge(part)
    for statistics in (whole, merged):
        assert statistics.records == len(values)
        check_number(columns_of(statistics)["n"], np.array(values))
        text = columns_of(statistics)["t"]
        check_top(text, [str(value) for value in values])
        assert (text["min"], text["max"]) == (min(map(str, values)), max(map(str, values)))
    # The smallest hashes of all are those of the parts.
    assert columns_of(merged)["n"]["distinct"] == columns_of(whole)["n"]["distinct"]
    assert columns_of(merged)["t"]["distinct"] == columns_of(whole)["t"]["distinct"]


def test_memory_does_not_grow_with_the_number_of_records() -> None:
    statistics, random = TableStatistics(), np.random.default_rng(1)
    for _ in range(40):
        statistics.add(pa.table({"x": random.normal(size=50_000), "i": random.integers(0, 10**9, 50_000)}))
    for column in statistics.columns.values():
        assert sum(map(len, column.quantiles.levels)) < 12 * 2 * sketches.LEVEL_VALUES
        assert len(column.distinct.hashes) <= sketches.HASHES
        assert len(column.frequent.counts) <= sketches.COUNTERS
    x = columns_of(statistics)["x"]
    assert x["quantile_error"] < 0.002
    assert x["distinct"] == pytest.approx(2_000_000, rel=x["distinct_error"])


def test_few_values_are_exact_and_sorted_by_count() -> None:
    statistics = TableStatistics()
    statistics.add(pa.table({"t": ["b", "a", "c", "a", "c", None]}))
    column = columns_of(statistics)["t"]
    assert column["top"] == [["c", 2], ["a", 2], ["b", 1]]
    assert (column["missing"], column["distinct"], column["distinct_error"], column["top_error"]) == (1, 3, 0.0, 0)


@pytest.mark.usefixtures("small_sketches")
def test_texts_that_appear_once_each_have_no_most_frequent_one() -> None:
    statistics = TableStatistics()
    for part in range(3):
        statistics.add(pa.table({"t": [f"{part} {row}" for row in range(9)]}))
    column = columns_of(statistics)["t"]
    assert (column["top"], column["top_error"]) == ([], 3)


def test_hashes_of_text_depend_on_the_text_alone() -> None:
    texts = ["", "a", "b", "ab", "ba", "a\0", "\0a", "\0", "aa" * 500]
    array = pa.array(texts, pa.large_binary())
    hashes = hash_bytes(array)
    assert len(np.unique(hashes)) == len(texts)
    assert hash_bytes(array.slice(3)).tolist() == hashes[3:].tolist()
    assert hash_bytes(array.take(pa.array([8, 0]))).tolist() == [hashes[8], hashes[0]]


def test_a_text_has_the_same_hash_beside_others_of_any_lengths() -> None:
    # More lengths than are hashed by length, and a longer text.
    texts = pa.array([bytes([at % 251]) * (at % 90) for at in range(300)] + [b"long" * 2000], pa.large_binary())
    together = hash_bytes(texts)
    for length in (0, 1, 7, 89, 30):
        alone = [at for at in range(301) if at % 90 == length]
        assert hash_bytes(texts.take(pa.array(alone))).tolist() == together[alone].tolist()


def test_missing_and_infinite_numbers_are_counted_apart() -> None:
    statistics = TableStatistics()
    statistics.add(pa.table({"x": [1.0, None, float("nan"), float("inf"), 3.0]}))
    column = columns_of(statistics)["x"]
    assert (column["count"], column["missing"], column["infinite"], column["mean"]) == (2, 2, 1, 2.0)


def test_a_column_without_values_has_no_figures() -> None:
    statistics = TableStatistics()
    statistics.add(pa.table({"x": pa.array([None, None], pa.float64()), "t": pa.array([None, None], pa.string())}))
    columns = columns_of(statistics)
    assert (columns["x"]["missing"], columns["x"]["min"], columns["x"]["quantiles"]) == (2, None, [])
    json.dumps(columns, allow_nan=False)


ROWS = {"n": [1, 2, 3, 4], "x": [0.5, 1.5, None, 2.5], "t": ["a", "b", "b", None]}


def write_table(folder: Path, name: str) -> Path:
    path = folder / f"table.{name}"
    if name == "parquet":
        pq.write_table(pa.table(ROWS), path, row_group_size=2)
    elif name == "arrow":
        with pa.ipc.new_stream(str(path), pa.table(ROWS).schema) as stream:
            stream.write_table(pa.table(ROWS), max_chunksize=2)
    elif name == "csv":
        path.write_text("n,x,t\n1,.5,a\n2,1.5,b\n3,,b\n4,2.5,\n")
    elif name == "jsonl":
        rows = [dict(zip(ROWS, row, strict=True)) for row in zip(*ROWS.values(), strict=True)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        np.savez(path, n=np.array(ROWS["n"]), x=np.array([0.5, 1.5, np.nan, 2.5]), t=np.array(["a", "b", "b", "c"]))
    return path


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", ["parquet", "arrow", "csv", "jsonl", "npz"])
def test_each_format_of_tables(tmp_path: Path, name: str, threads: int) -> None:
    columns = columns_of(scan_table(write_table(tmp_path, name), {}, threads))
    assert [columns["n"][key] for key in ("count", "min", "max", "mean")] == [4, 1, 4, 2.5]
    assert [columns["x"][key] for key in ("count", "missing", "mean")] == [3, 1, 1.5]
    assert columns["t"]["top"][0] == ["b", 2]


@pytest.mark.parametrize("name", ["parquet", "arrow", "csv", "jsonl", "npz"])
def test_tables_of_servers_are_summarized_as_those_of_this_machine(tmp_path: Path, name: str) -> None:
    pytest.importorskip("aiohttp")
    path = write_table(tmp_path, name)
    with serve_folder(tmp_path) as (address, _):
        remote = scan_table(f"{address}/{path.name}", {}, 2)
    assert remote.to_json(10) == scan_table(path, {}, 2).to_json(10)


def zstandard(content: bytes) -> bytes:
    return pa.compress(content, "zstd", asbytes=True)  # type: ignore[no-any-return]


COMPRESS: dict[str, Any] = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard}


@pytest.mark.parametrize("suffix", PACKED_SUFFIXES)
@pytest.mark.parametrize("name", ["csv", "jsonl"])
def test_compressed_text_is_unpacked(tmp_path: Path, name: str, suffix: str) -> None:
    """With each suffix that a job unpacks."""
    plain = write_table(tmp_path, name)
    packed = tmp_path / f"{plain.name}{suffix}"
    packed.write_bytes(COMPRESS[suffix](plain.read_bytes()))
    expected = scan_table(plain, {}, 1).to_json(10)
    assert scan_table(packed, {}, 1).to_json(10) == expected
    packed.write_bytes(packed.read_bytes()[:-12])
    with pytest.raises(BadInputError, match=packed.name):
        scan_table(packed, {"format": name}, 1)


def test_remote_files_may_be_cached(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    path = write_table(tmp_path, "parquet")
    with serve_folder(tmp_path) as (address, _):
        statistics = scan_table(f"{address}/{path.name}", {"cache": str(tmp_path / "cache")}, 1)
    assert statistics.records == 4
    assert list((tmp_path / "cache").rglob("*.block"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of aiohttp
def test_a_missing_remote_file_is_named(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    with serve_folder(tmp_path) as (address, _), pytest.raises(BadInputError, match="no such object"):
        scan_table(f"{address}/none.parquet", {}, 1)


@pytest.mark.parametrize("name", ["parquet", "arrow", "npz"])
def test_ranges_of_a_table_merge_to_the_whole(tmp_path: Path, name: str) -> None:
    path = write_table(tmp_path, name)
    table, merged = TableRanges(path, {}), TableStatistics()
    assert table.sources == {str(path): 4}
    for start, end in ((0, 1), (1, 3), (3, 4)):
        merged.merge(table.scan(str(path), start, end))
    assert merged.to_json(10) == scan_table(path, {}, 1).to_json(10)


def test_a_damaged_row_group_is_counted_once_by_ranges(tmp_path: Path) -> None:
    path, merged = write_damaged_group(tmp_path), TableStatistics()
    table = TableRanges(path, {})
    for start in range(0, 3000, 500):
        merged.merge(table.scan(str(path), start, start + 500))
    assert (merged.records, merged.corrupt_records) == (2000, 1000)


def test_ranges_of_csv_have_the_rows_of_their_numbers_and_count_those_with_wrong_cells(tmp_path: Path) -> None:
    rows = [f'{number},"t\n{number % 7}",{number / 4 if number % 3 else ""}' for number in range(1000)]
    rows[300:301], rows[700] = ["", "300,one cell too few"], '700,"a "" b",1.5'
    (tmp_path / "a.csv").write_text("n,t,x\n" + "\n".join(rows))
    (tmp_path / "b.csv").write_text("n,t,x\n7,u,1\n")
    table, merged = TableRanges(tmp_path, {}), TableStatistics()
    assert (list(table.sources.values()), table.group_records) == ([1000, 1], 256)
    first, second = table.sources
    for start, end in ((0, 256), (256, 299), (299, 301), (301, 301), (301, 1000)):
        merged.merge(table.scan(first, start, end))
    merged.merge(table.scan(second, 0, 1))
    assert merged.corrupt_records == 1
    assert merged.to_json(10) == scan_table(tmp_path, {}, 1).to_json(10)


def test_ranges_of_csv_without_a_header_have_chosen_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1;a\n2;b\n")
    options = {"header": False, "sep": ";", "columns": ["n", "t"]}
    table = TableRanges(tmp_path / "a.csv", options)
    statistics = table.scan(str(tmp_path / "a.csv"), 0, 2).to_json(10)
    assert statistics == scan_table(tmp_path / "a.csv", options, 1).to_json(10)
    (tmp_path / "b.csv").write_text("n,t\n1,a\n")
    table = TableRanges(tmp_path / "b.csv", {"columns": ["t"]})
    assert [*table.scan(str(tmp_path / "b.csv"), 0, 1).columns] == ["t"]


def test_a_csv_cell_that_is_seldom_gives_its_column_a_wider_type_in_all_ranges(tmp_path: Path) -> None:
    """The first and the last block of a file are sampled, and some between them: here none with the odd cells."""
    cells = ["1"] * (100 * 256)
    cells[256 + 5], cells[98 * 256 - 3] = "2.5", "none"
    path = tmp_path / "a.csv"
    path.write_text("v,w\n" + "".join(f"{cell},1\n" for cell in cells))
    source, half = str(path), 50 * 256
    places = [SourceRange(source, start, start + half // 2) for start in range(0, 2 * half, half // 2)]
    workers = [WorkerStatistics({source: 2 * half}) for _ in range(2)]
    for worker, share in zip(workers, (places[:2], places[2:]), strict=True):
        table = TableRanges(path, {})
        for place in share:
            worker.unconfirmed.append(RangeStatistics(place, table.scan(*place)))
            worker.confirm(worker.unconfirmed[0])
    wider = find_wider_types([decode_worker(encode_worker(worker), "") for worker in workers])
    assert wider == {"v": "string"}
    table = TableRanges(path, {}, wider)
    merged = TableStatistics()
    for place in places:
        merged.merge(table.scan(*place))
    assert columns_of(merged)["v"] == columns_of(scan_table(path, {}, 1))["v"]
    assert columns_of(merged)["v"]["top"][0] == ["1", 2 * half - 2]
    assert (merged.records, columns_of(merged)["w"]["count"]) == (2 * half, 2 * half)


def test_a_wider_type_in_the_first_range_of_all_workers_is_no_reason_to_start_again(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("v\n" + "1\n" * 10)
    table = TableRanges(tmp_path / "a.csv", {}, {"v": "string"})
    place = SourceRange(str(tmp_path / "a.csv"), 0, 10)
    worker = WorkerStatistics(dict(table.sources), unconfirmed=[RangeStatistics(place, table.scan(*place))])
    assert (find_wider_types([worker]), find_wider_types([])) == ({}, {})


def test_ranges_of_json_lines_are_lines_of_their_numbers(tmp_path: Path) -> None:
    lines = [
        json.dumps({"n": number, "t": f"t{number % 5}", "x": None if number % 3 else number / 2})
        for number in range(500)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines[:100], "", *lines[100:]]))
    table, merged = TableRanges(tmp_path / "a.jsonl", {}), TableStatistics()
    source = str(tmp_path / "a.jsonl")
    assert (table.sources, table.group_records) == ({source: 500}, 1)
    for start, end in ((0, 99), (99, 99), (99, 102), (102, 500)):
        merged.merge(table.scan(source, start, end))
    assert merged.to_json(10) == scan_table(source, {}, 1).to_json(10)
    chosen = TableRanges(source, {"columns": ["t"]}).scan(source, 0, 5)
    assert [*chosen.columns] == ["t"]
    with pytest.raises(BadInputError, match="no column y"):
        TableRanges(source, {"columns": ["y"]})


@pytest.fixture
def rows_behind_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes JSON lines in files of blocks of ten lines, of which the first and the last one of a file are sampled."""
    monkeypatch.setattr(block_file, "_BLOCK_BYTES", 10 * len('{"n": 10, "t": "a"}\n'))
    monkeypatch.setattr(text_ranges, "_SAMPLED_BLOCKS", 1)

    def write(odd: str, at: int = 55) -> tuple[Path, str]:
        (tmp_path / "a.jsonl").write_text('{"n": 10, "t": "a"}\n' * 20)
        lines = ['{"n": 10, "t": "a"}'] * 100
        lines[at] = odd
        (tmp_path / "b.jsonl").write_text("\n".join([lines[0], "", *lines[1:]]))
        return tmp_path, str(tmp_path / "b.jsonl")

    return write


@pytest.mark.parametrize(
    ("odd", "said", "hint"),
    [
        ('{"n": 1.5, "t": "a"}', ["'n'", "1.5", "int64", "double"], "leave out --workers"),
        ('{"n": "few", "t": "a"}', ["'n'", '"few"', "int64", "string"], "write it with one type"),
        ('{"n": {"x": 1}, "t": "a"}', ["'n'", '{"x": 1}', "int64", "struct"], "write it with one type"),
        ('{"n": 1, "more": 2}', ["'more'", "no sampled line"], "leave out --workers"),
        ('{"n": 1, "t": "a" "b"}', ["JSON"], "mend"),
    ],
)
def test_a_line_that_no_worker_has_sampled_and_that_does_not_fit_is_named(
    rows_behind_samples: Any, odd: str, said: list[str], hint: str
) -> None:
    folder, source = rows_behind_samples(odd)
    with pytest.raises(BadInputError) as error:
        TableRanges(folder, {}).scan(source, 30, 90)
    begin = Path(source).read_bytes().index(odd.encode())
    assert not missing_keys(error.value.message, "record 55", f"byte {begin}", *said)
    assert error.value.where == source
    assert not missing_keys(error.value.hint or "", hint)


@pytest.mark.parametrize("odd", ['{"n": 1.5, "t": "a"}', '{"n": "few", "t": "a"}', '{"t": "a", "more": 2}'])
@pytest.mark.parametrize("at", [2, 55])
def test_of_a_line_that_does_not_fit_other_columns_can_be_chosen(rows_behind_samples: Any, odd: str, at: int) -> None:
    folder, source = rows_behind_samples(odd, at)
    statistics = TableRanges(folder, {"columns": ["t"]}).scan(source, 0, 100)
    assert columns_of(statistics)["t"]["count"] == 100
    assert [*statistics.columns] == ["t"]


def test_sampled_lines_of_different_types_are_named_with_their_file(rows_behind_samples: Any) -> None:
    folder, source = rows_behind_samples('{"n": "few", "t": "a"}', 2)
    with pytest.raises(BadInputError) as error:
        TableRanges(folder, {})
    assert not missing_keys(error.value.message, "'n'", "record 2", "int64", "string", '"few"')
    assert error.value.where == source
    assert not missing_keys(error.value.hint or "", "one type", "--columns")


def test_compressed_text_needs_a_cache_to_have_ranges(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.csv.gz", "wt") as stream:
        stream.write("v\n1\n2\n")
    with pytest.raises(BadInputError, match="compressed") as raised:
        TableRanges(tmp_path / "a.csv.gz", {})
    assert "data.reader.cache" in (raised.value.hint or "")
    table = TableRanges(tmp_path / "a.csv.gz", {"cache": str(tmp_path / "cache")})
    (source,) = table.sources
    assert table.scan(source, 0, 2).records == 2


def test_lists_are_summarized_by_their_items(tmp_path: Path) -> None:
    pq.write_table(pa.table({"ids": [[1, 2], [], None, [2]]}), tmp_path / "a.parquet")
    column = columns_of(scan_table(tmp_path, {}, 1))["ids"]
    assert (column["count"], column["missing"], column["top"]) == (3, 1, [[2, 2], [1, 1]])


def test_arrays_of_records_are_summarized_by_their_items(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", image=np.arange(12).reshape(3, 2, 2))
    column = columns_of(scan_table(tmp_path, {}, 1))["image"]
    assert (column["count"], column["max"], column["mean"]) == (12, 11, 5.5)


def test_a_csv_column_that_turns_out_to_be_text_is_text_in_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edl.data.table_scan._BLOCK_BYTES", 64)
    (tmp_path / "a.csv").write_text("v,w\n" + "1,1\n" * 50 + "2.5,x\n")
    (tmp_path / "b.csv").write_text("v,w\n7,1\n")
    statistics = scan_table(tmp_path, {}, 1)
    columns = columns_of(statistics)
    assert statistics.records == 52
    assert (columns["v"]["kind"], columns["v"]["max"]) == ("number", 7.0)
    assert (columns["w"]["kind"], columns["w"]["top"][0]) == ("text", ["1", 51])


def test_rows_with_a_wrong_number_of_cells_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("v,w\n1,2\n1\n3,4\n")
    statistics = scan_table(tmp_path / "a.csv", {}, 1)
    assert (statistics.records, statistics.corrupt_records) == (2, 1)


def write_lines(path: Path, *rows: str) -> None:
    path.write_text("".join(f"{row}\n" for row in rows))


def test_a_name_that_a_file_of_json_lines_lacks_is_missing_in_all_its_lines(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", '{"v": 1, "w": 2}')
    write_lines(tmp_path / "b.jsonl", '{"v": 3}', '{"v": 4, "x": true}')
    columns = columns_of(scan_table(tmp_path, {}, 2))
    assert {name: (column["count"], column["missing"]) for name, column in columns.items()} == {
        "v": (3, 0),
        "w": (1, 2),
        "x": (1, 2),
    }


def test_files_of_json_lines_may_have_whole_numbers_fractions_and_nulls(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", '{"v": 1, "l": [], "n": null}')
    write_lines(tmp_path / "b.jsonl", '{"v": 1.5, "l": [1], "n": "x"}', '{"l": [0.5], "v": null, "n": null}')
    columns = columns_of(scan_table(tmp_path, {}, 1))
    assert (columns["v"]["type"], columns["v"]["max"], columns["v"]["missing"]) == ("double", 1.5, 1)
    assert (columns["l"]["max"], columns["l"]["count"]) == (1.0, 2)
    assert columns["n"]["top"] == [["x", 1]]


def test_only_chosen_names_of_json_lines_need_one_type(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", '{"v": 1, "w": 2, "o": {"p": 1}}')
    write_lines(tmp_path / "b.jsonl", '{"v": 3, "w": "x"}')
    assert columns_of(scan_table(tmp_path, {"columns": ["v"]}, 1))["v"]["max"] == 3
    with pytest.raises(BadInputError, match="column w is int64 in one part of the data and string in another"):
        scan_table(tmp_path, {"columns": ["w"]}, 1)


def test_lines_behind_the_first_block_may_have_a_wider_type_or_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_scan, "_BLOCK_BYTES", 256)
    rows = ['{"v": 1, "n": null}'] * 50
    write_lines(tmp_path / "a.jsonl", *rows, '{"v": 2.5, "n": 7, "late": "x"}', *rows)
    columns = columns_of(scan_table(tmp_path / "a.jsonl", {}, 1))
    assert (columns["v"]["max"], columns["v"]["count"]) == (2.5, 101)
    assert (columns["n"]["max"], columns["n"]["missing"]) == (7, 100)
    assert (columns["late"]["count"], columns["late"]["missing"]) == (1, 100)


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ('{"n": "few", "t": "a"}', ["/n", "number", "string"]),
        ('{"n": 1, "t": "a" "b"}', ["JSON parse error"]),
        ('{"n": 1, "n": 2}', ["/n", "twice"]),
    ],
)
@pytest.mark.parametrize("at", [2, 55])
def test_a_line_that_one_process_cannot_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str, said: list[str], at: int
) -> None:
    monkeypatch.setattr(table_scan, "_BLOCK_BYTES", 256)
    lines = ['{"n": 10, "t": "a"}'] * 100
    lines[at] = odd
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join([lines[0], "", *lines[1:]]))
    with pytest.raises(BadInputError) as error:
        scan_table(path, {}, 1)
    begin = path.read_bytes().index(odd.encode())
    assert not missing_keys(error.value.message, f"record {at} ", f"byte {begin}", *said)
    assert error.value.where == str(path)
    assert not missing_keys(error.value.hint or "", "mend the line", "--columns")


@pytest.mark.parametrize("odd", ['{"n": "few", "t": "a"}', '{"n": {"x": 1}, "t": "a"}', '{"n": 1, "n": 2, "t": "a"}'])
@pytest.mark.parametrize("at", [2, 55])
def test_of_a_line_that_one_process_cannot_read_other_columns_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str, at: int
) -> None:
    monkeypatch.setattr(table_scan, "_BLOCK_BYTES", 256)
    write_lines(tmp_path / "a.jsonl", *['{"n": 10, "t": "a"}'] * at, odd, *['{"n": 10, "t": "a"}'] * 44)
    columns = columns_of(scan_table(tmp_path / "a.jsonl", {"columns": ["t"]}, 1))
    assert (columns["t"]["count"], [*columns]) == (at + 45, ["t"])


@pytest.mark.parametrize("odd", ['{"n": 1, "t', "[1, 2]", "words"])
@pytest.mark.parametrize("at", [2, 55])
def test_lines_that_are_no_objects_are_counted_by_one_process_as_by_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str, at: int
) -> None:
    monkeypatch.setattr(table_scan, "_BLOCK_BYTES", 256)
    lines = [f'{{"n": {number}, "t": "a"}}' for number in range(100)]
    lines[at] = odd
    path = tmp_path / "a.jsonl"
    write_lines(path, *lines)
    by_one_process = scan_table(path, {}, 1)
    assert (by_one_process.records, by_one_process.corrupt_records) == (99, 1)
    by_workers = TableRanges(path, {}).scan(str(path), 0, 100)
    assert by_one_process.to_json(10)["damaged"] == by_workers.to_json(10)["damaged"]
    assert columns_of(by_one_process)["n"]["top"] == columns_of(by_workers)["n"]["top"]


def test_dates_of_json_lines_are_text_as_for_a_job(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_lines(path, '{"day": "2020-01-01", "at": ["2020-01-01T10:00:00Z"]}')
    columns = columns_of(scan_table(path, {}, 1))
    assert (columns["day"]["kind"], columns["day"]["top"]) == ("text", [["2020-01-01", 1]])
    assert columns["at"]["top"] == [["2020-01-01T10:00:00Z", 1]]
    shared = TableRanges(path, {}).scan(str(path), 0, 1)
    assert columns_of(shared) == columns


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"a.csv": "v\n1\n", "b.csv": "w\n1\n"}, "b.csv"),
        ({"a.txt": "no table\n"}, "no columns"),
        ({"a.parquet": "damaged"}, "a.parquet"),
        ({"a.jsonl": '{"v": 1}\n', "b.jsonl": '{"v": "x"}\n'}, "column v"),
    ],
)
def test_what_is_no_table_is_named(tmp_path: Path, files: dict[str, str], named: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(BadInputError, match=named):
        scan_table(tmp_path, {}, 2)


def test_a_name_that_is_no_text_is_an_error_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"x": 1}\n{"\xf8": 1}\n')
    with pytest.raises(BadInputError, match="cannot be read") as error:
        scan_table(tmp_path / "a.jsonl", {}, 1)
    assert error.value.where == str(tmp_path / "a.jsonl")


def test_columns_that_do_not_exist_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no column y"):
        scan_table(write_table(tmp_path, "parquet"), {"columns": ["y"]}, 1)


@pytest.mark.parametrize("kind", ["U3", "S3"])
def test_text_arrays_with_several_axes_are_summarized_by_their_items(tmp_path: Path, kind: str) -> None:
    np.savez(tmp_path / "a.npz", tags=np.array([["a", "bb"], ["a", "c"], ["a", "c"]], kind), n=np.arange(3))
    statistics = scan_table(tmp_path / "a.npz", {}, 1)
    tags = columns_of(statistics)["tags"]
    assert statistics.records == 3
    assert (tags["kind"], tags["count"], tags["top"]) == ("text", 6, [["a", 3], ["c", 2], ["bb", 1]])


def test_arrays_of_no_items_are_counted(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", empty=np.zeros((3, 0)), n=np.arange(3))
    statistics = scan_table(tmp_path / "a.npz", {}, 1)
    assert (statistics.records, columns_of(statistics)["empty"]["count"]) == (3, 0)


def write_damaged_group(tmp_path: Path) -> Path:
    """A file of three row groups of 1000 rows, of which the second is damaged."""
    path = tmp_path / "a.parquet"
    table = pa.table({"n": np.arange(3000), "x": np.random.default_rng(1).random(3000)})
    pq.write_table(table, path, row_group_size=1000, compression="none", use_dictionary=False, write_page_checksum=True)
    place = pq.ParquetFile(path).metadata.row_group(1).column(1).data_page_offset
    content = bytearray(path.read_bytes())
    content[place + 4000] ^= 255
    path.write_bytes(content)
    return path


def test_a_damaged_record_batch_is_counted_and_named(tmp_path: Path) -> None:
    table = pa.table({"t": ["ä" * 40] * 300})
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as stream:
        stream.write_table(table, max_chunksize=100)
    content = (tmp_path / "a.arrow").read_bytes()
    place = content.index("ä".encode(), len(content) // 2)
    (tmp_path / "a.arrow").write_bytes(content[:place] + b"\xff" + content[place + 1 :])
    statistics = scan_table(tmp_path, {}, 2)
    assert (statistics.records, statistics.corrupt_records) == (200, 100)
    assert "record batch 1" in statistics.to_json(3)["damaged"][0]


def test_a_damaged_row_group_is_counted_and_named(tmp_path: Path) -> None:
    path = write_damaged_group(tmp_path)
    statistics = scan_table(path, {}, 2)
    assert (statistics.records, statistics.corrupt_records) == (2000, 1000)
    assert columns_of(statistics)["n"]["count"] == 2000
    (damage,) = statistics.to_json(3)["damaged"]
    assert str(path) in damage
    assert "row group 1" in damage
