"""edl data convert: every pair of formats keeps the records, and nothing is overwritten or lost silently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli.cli_harness import run_edl

from edl.api.errors import BadInputError, StorageError
from edl.cli.data_conversion import TargetFormat
from edl.data import conversion, open_reader, serialize_example
from edl.data.conversion import ConvertedFile, convert, plan_conversion
from edl.data.recordio.writer import Writer
from edl.data.tf_example import parse_example
from edl.data.tfrecord_format import frame_record

ROWS = [{"number": n, "size": n / 4, "town": ("Ulm", "Köln")[n % 2]} for n in range(25)]


def run(paths: list[str], out: Path, target: str, **options: Any) -> list[ConvertedFile]:
    processes = options.pop("processes", 1)
    limits = {"records_per_file": options.pop("records_per_file", 10), "max_corrupt": options.pop("max_corrupt", 0)}
    return convert(plan_conversion(paths, out, target, options, **limits), processes, lambda _: None)


def write(folder: Path, origin: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rows.{origin}"
    if origin == "csv":
        path.write_text("number,size,town\n" + "".join(f"{r['number']},{r['size']},{r['town']}\n" for r in ROWS))
    elif origin == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif origin == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=7)
    elif origin == "npz":
        columns = {name: np.array([row[name] for row in ROWS]) for name in ("number", "size")}
        np.savez(path, **columns, town=np.array([str(row["town"]).encode() for row in ROWS]))
    elif origin == "tfrecord":
        path.write_bytes(b"".join(frame_record(serialize_example(row)) for row in ROWS))
    else:
        with Writer(path) as writer:
            for row in ROWS:
                writer.write(serialize_example(row))
    return str(path)


def rows_of(folder: Path, target: str) -> list[dict[str, Any]]:
    reader = open_reader(str(folder), {"format": target})
    records = [record for source in reader.sources() for record in reader.read(source.name, 0, source.records)]
    names = reader.metadata.column_names
    rows: list[dict[str, Any]] = []
    for record in records:
        row = (
            json.loads(record)
            if target == "jsonl"
            else parse_example(bytes(record))
            if target in ("recordio", "tfrecord")
            else dict(zip(names, record, strict=True))
            if target == "csv"
            else record
        )
        town = row["town"] if isinstance(row["town"], str) else bytes(row["town"]).decode()
        rows.append({"number": int(row["number"]), "size": float(row["size"]), "town": town})
    return rows


def test_the_command_offers_the_formats_that_can_be_written() -> None:
    assert get_args(TargetFormat) == tuple(conversion._WRITERS)


@pytest.mark.parametrize("origin", get_args(TargetFormat))
@pytest.mark.parametrize("target", get_args(TargetFormat))
def test_every_format_becomes_every_other_one(tmp_path: Path, origin: str, target: str) -> None:
    done = run([write(tmp_path / "in", origin)], tmp_path / "out", target)
    assert [(file.records_in, file.records_out) for file in done] == [(10, 10), (10, 10), (5, 5)]
    assert rows_of(tmp_path / "out", target) == ROWS


def test_processes_write_what_one_process_writes(tmp_path: Path) -> None:
    path = write(tmp_path / "in", "csv")
    for name, processes in (("one", 1), ("two", 2)):
        run([path], tmp_path / name, "tfrecord", processes=processes)
    files = [sorted((file.name, file.read_bytes()) for file in (tmp_path / name).iterdir()) for name in ("one", "two")]
    assert files[0] == files[1]
    assert len(files[0]) == 3


def test_lists_and_vectors_are_kept(tmp_path: Path) -> None:
    rows = [{"ids": list(range(n % 3 + 2)), "number": n} for n in range(12)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    run([str(tmp_path / "a.parquet")], tmp_path / "examples", "recordio", records_per_file=100)
    run([str(tmp_path / "examples")], tmp_path / "back", "parquet", records_per_file=100)
    assert pq.read_table(tmp_path / "back").to_pylist() == rows
    np.savez(tmp_path / "a.npz", x=np.arange(12.0).reshape(6, 2))
    run([str(tmp_path / "a.npz")], tmp_path / "vectors", "parquet")
    run([str(tmp_path / "vectors")], tmp_path / "arrays", "npz")
    with np.load(tmp_path / "arrays" / "data-00000.npz") as arrays:
        np.testing.assert_array_equal(arrays["x"], np.arange(12.0).reshape(6, 2))


def test_a_feature_with_one_item_in_some_examples_is_a_list_in_all(tmp_path: Path) -> None:
    tags = [[number] * (number % 3) for number in range(5000)]  # more than are looked at for the types
    table = pa.table({"tags": pa.array(tags, pa.list_(pa.int64())), "n": list(range(5000))})
    pq.write_table(table, tmp_path / "a.parquet")
    run([str(tmp_path / "a.parquet")], tmp_path / "examples", "tfrecord", records_per_file=5000)
    run([str(tmp_path / "examples")], tmp_path / "back", "parquet", records_per_file=5000)
    (file,) = (tmp_path / "back").glob("*.parquet")
    assert pq.read_table(file).select(["tags", "n"]).to_pydict() == table.to_pydict()


@pytest.mark.parametrize("target", ["recordio", "tfrecord"])
def test_booleans_become_whole_numbers_of_an_example(tmp_path: Path, target: str) -> None:
    pq.write_table(pa.table({"yes": [True, False], "all": [[True], [False, True]]}), tmp_path / "a.parquet")
    run([str(tmp_path / "a.parquet")], tmp_path / "out", target)
    reader = open_reader(str(tmp_path / "out"))
    (source,) = reader.sources()
    rows = [parse_example(bytes(record)) for record in reader.read(source.name, 0, 2)]
    assert rows == [{"all": 1, "yes": 1}, {"all": [0, 1], "yes": 0}]


def test_files_of_arrays_whose_texts_are_of_other_lengths_are_one_data_set(tmp_path: Path) -> None:
    words = ["a", "bb", "cccc"]
    pq.write_table(pa.table({"word": words}), tmp_path / "a.parquet")
    run([str(tmp_path / "a.parquet")], tmp_path / "out", "npz", records_per_file=1)
    reader = open_reader(tmp_path / "out")
    converted_words = [
        bytes(row["word"]).decode() for source in reader.sources() for row in reader.read(source.name, 0, 1)
    ]
    assert converted_words == words


def test_bytes_that_numpy_would_cut_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"code": [b"a\0", b"b"]}), tmp_path / "a.parquet")
    with pytest.raises(BadInputError, match="column 'code' has bytes that end with zero"):
        run([str(tmp_path / "a.parquet")], tmp_path / "out", "npz")
    assert not (tmp_path / "out").exists()


def test_an_empty_cell_stays_missing_and_is_refused_where_none_can_be(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,t\n1,a\n,b\n")
    run([str(tmp_path / "a.csv")], tmp_path / "out", "parquet")
    assert pq.read_table(tmp_path / "out").to_pylist() == [{"n": 1, "t": "a"}, {"n": None, "t": "b"}]
    for target in ("tfrecord", "npz"):
        with pytest.raises(BadInputError, match="a value is missing in column 'n'"):
            run([str(tmp_path / "a.csv")], tmp_path / target, target)
        assert not (tmp_path / target).exists()


def refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def test_json_lines_have_null_for_numbers_that_are_none(tmp_path: Path) -> None:
    lists = pa.array([[0.5, np.nan], [1.0, 2.0]], pa.list_(pa.float64(), 2))
    pq.write_table(pa.table({"x": [np.nan, 1.5], "pair": lists}), tmp_path / "a.parquet")
    run([str(tmp_path / "a.parquet")], tmp_path / "out", "jsonl")
    lines = (tmp_path / "out" / "data-00000.jsonl").read_text().splitlines()
    records = [json.loads(line, parse_constant=refuse_constant) for line in lines]
    assert records == [{"x": None, "pair": [0.5, None]}, {"x": 1.5, "pair": [1.0, 2.0]}]


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_an_infinite_number_is_refused_where_json_has_none(tmp_path: Path, value: float) -> None:
    lists = pa.array([[0.5, value]], pa.list_(pa.float64()))
    for name, column in (("x", [value]), ("items", lists)):
        pq.write_table(pa.table({"n": [1], name: column}), tmp_path / "a.parquet")
        with pytest.raises(BadInputError, match=f"an infinite number in column '{name}'") as refused:
            run([str(tmp_path / "a.parquet")], tmp_path / "out", "jsonl")
        assert "--columns" in (refused.value.hint or "")
        assert not (tmp_path / "out").exists()
    run([str(tmp_path / "a.parquet")], tmp_path / "out", "jsonl", columns=["n"])


@pytest.mark.parametrize("target", ["csv", "jsonl"])
def test_bytes_that_are_no_text_are_refused_with_their_column(tmp_path: Path, target: str) -> None:
    pq.write_table(pa.table({"n": [1], "raw": [b"\xff"]}), tmp_path / "a.parquet")
    with pytest.raises(BadInputError, match="bytes of column 'raw' are no text"):
        run([str(tmp_path / "a.parquet")], tmp_path / "out", target)


def test_nothing_is_overwritten_and_nothing_is_left_after_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "in", "jsonl")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(BadInputError, match="is not an empty directory"):
        run([path], tmp_path / "out", "csv")
    with (tmp_path / "in" / "rows.jsonl").open("a") as stream:
        stream.write((json.dumps(ROWS[0]) + "\n") * 4096)
        stream.write('{"number": 1, "size": 1, "town": "Ulm", "more": 2}\n')
    with pytest.raises(BadInputError, match=r"it has more, too"):
        run([path], tmp_path / "new", "csv", records_per_file=5000)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["in", "out"]


def test_corrupt_records_end_it_or_are_counted(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "in", "csv"))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], "9", *lines[4:]]) + "\n")
    with pytest.raises(BadInputError) as refused:
        run([str(path)], tmp_path / "out", "parquet")
    assert "--max-corrupt" in (refused.value.hint or "")
    done = run([str(path)], tmp_path / "out", "parquet", max_corrupt=1)
    assert [sum(getattr(file, name) for file in done) for name in ("records_in", "records_out", "corrupt")] == [
        26, 25, 1,
    ]  # fmt: skip
    assert rows_of(tmp_path / "out", "parquet") == ROWS


def test_a_file_that_lost_records_is_found_when_it_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_one(path: Path, batches: Any, schema: Any) -> None:
        path.write_bytes(b"".join(b"{}\n" for batch in batches for _ in range(batch.num_rows - 1)))

    monkeypatch.setattr(conversion, "_WRITERS", {"jsonl": lose_one})
    with pytest.raises(StorageError, match="has 9 readable records, and 10 were written"):
        run([write(tmp_path / "in", "csv")], tmp_path / "out", "jsonl")


@pytest.mark.parametrize(("target", "said"), [("csv", "a cell of CSV is one value"), ("npz", "lists of one length")])
def test_a_column_that_a_format_cannot_have_is_named(tmp_path: Path, target: str, said: str) -> None:
    pq.write_table(pa.table({"ids": [[1], [2, 3]], "n": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(BadInputError, match=said) as error:
        run([str(tmp_path / "a.parquet")], tmp_path / "out", target)
    assert "'ids'" in error.value.message
    run([str(tmp_path / "a.parquet")], tmp_path / "out", target, columns=["n"])


def test_the_command_prints_its_plan_and_the_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "in", "csv")
    command = ("data", "convert", path, "--to", "parquet", "--out", str(tmp_path / "out"), "--processes", "1")
    assert run_edl(*command, "--plan") == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "25 records of csv become 1 file of parquet" in shown
    assert "number: int64" in shown
    assert not (tmp_path / "out").exists()
    assert run_edl(*command, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["records_in"], result["records_out"], result["corrupt_records"]) == (25, 25, 0)
    assert run_edl(*command) == 2


def test_columns_of_a_file_without_a_header_have_their_places_as_names(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('0.5,x,1\n0.25,"a,\nb",2\n')
    paths, out = [str(tmp_path / "rows.csv")], tmp_path / "out"
    convert(plan_conversion(paths, out, "jsonl", {"header": False}, records_per_file=9), 1, lambda file: None)
    rows = [json.loads(line) for line in (tmp_path / "out/data-00000.jsonl").read_text().splitlines()]
    assert rows == [{"0": 0.5, "1": "x", "2": 1}, {"0": 0.25, "1": "a,\nb", "2": 2}]
