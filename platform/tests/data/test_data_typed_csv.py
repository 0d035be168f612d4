"""CSV whose columns have types: the values of the text, and rows that have none are reported alone."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.reader_contract import FEW_RECORDS, RECORDS, ReaderCase, ReaderContract

from edl.api.errors import BadInputError
from edl.api.job_spec import DataSpec, SchemaSpec, SplitSpec
from edl.data.job_data import open_job_data
from edl.data.reader import CorruptRange, CorruptRecordError
from edl.data.reader_factory import open_reader

TYPES = {"n": "int64", "x": "float32", "word": "string"}


class TestTypedCsv(ReaderContract):
    @pytest.fixture(params=["plain", '"quo""ted\n"'])
    def local_case(self, tmp_path: Path, request: pytest.FixtureRequest) -> ReaderCase:
        def write(name: str, numbers: range) -> Path:
            rows = "".join(f"{number},{request.param},0.5\n" for number in numbers)
            (tmp_path / name).write_text(f"n,word,x\n{rows}")
            return tmp_path / name

        paths = [write("a.csv", range(RECORDS)), write("b.csv", range(RECORDS, RECORDS + FEW_RECORDS))]
        rewrite = lambda: write("a.csv", range(RECORDS + 1)) and None  # noqa: E731
        return ReaderCase(paths, {}, lambda row: int(row["n"]), rewrite, TYPES)


def read_typed(path: Path, text: str, types: dict[str, str] = TYPES, **options: object) -> tuple[Any, list[Any]]:
    """All records, and what was reported."""
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    reader = open_reader(path, options, text_types=types)
    reported: list[CorruptRange] = []
    (source,) = reader.sources()
    records = reader.read(source.name, 0, source.records, reported.append)
    return records, [(corrupt.start, corrupt.end, corrupt.reason) for corrupt in reported]


def test_columns_have_their_types(tmp_path: Path) -> None:
    types = {"x": "float32", "d": "float64", "n": "int64", "i": "int32", "b": "bool", "word": "string"}
    text = "n,x,word,b,unused,i,d\n-3,0.1,Ulm,1,?,7, 1e3\n9007199254740993,nan,,false,?,-7,0.1\n"
    records, reported = read_typed(tmp_path / "a.csv", text, types)
    assert not reported
    assert {name: column.dtype.name for name, column in records.columns.items()} == {**types, "word": "object"}
    assert list(records.columns) == list(types)
    np.testing.assert_array_equal(records.columns["x"], np.array([0.1, np.nan], np.float32))
    assert records.columns["d"].tolist() == [1000.0, 0.1]
    assert records.columns["n"].tolist() == [-3, 9007199254740993]
    assert records.columns["b"].tolist() == [True, False]
    assert records.columns["word"].tolist() == [b"Ulm", b""]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("4,,c", "column x has no value"),
        ("old,1,c", "column n has 'old', which is no int64"),
        ("1.5,1,c", "column n has '1.5', which is no int64"),
        ("9223372036854775808,1,c", "column n has '9223372036854775808', which is no int64"),
        ("4,1", "2 of 3 cells"),
        ('4,1,"c"d', "',' expected after '\"'"),
        ("4,1,\udcff", "not UTF-8"),
        ("4,1,a\rb", "a carriage return without a line feed, outside of quotes"),
    ],
)
def test_a_row_without_a_value_of_a_type_is_reported_alone(tmp_path: Path, row: str, reason: str) -> None:
    rows = [f"{number},{number}.25,w" for number in range(600)]
    rows[300] = row
    records, reported = read_typed(tmp_path / "a.csv", "\n".join(["n,x,word", *rows]))
    assert reported == [(300, 301, reason)]
    assert records.columns["n"].tolist() == [number for number in range(600) if number != 300]
    assert records.columns["x"].dtype == np.float32
    reader = open_reader(tmp_path / "a.csv", text_types=TYPES)
    with pytest.raises(CorruptRecordError, match="record 300 cannot be read") as error:
        reader.read(str(tmp_path / "a.csv"), 290, 310)
    offset = len("\n".join(["n,x,word", *rows[:300], ""]))
    assert f"byte {offset}: record 300 cannot be read: {reason}" in str(error.value)


CELLS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=6)


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.floats(width=32), CELLS), min_size=1), st.data())
def test_any_values_come_back_in_any_range(written: list[tuple[int, float, str]], data: st.DataObject) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([("n", "x", "word"), *written])
    with tempfile.TemporaryDirectory() as folder:
        records, reported = read_typed(Path(folder, "a.csv"), text.getvalue())
        assert not reported
        start = data.draw(st.integers(0, len(written)))
        end = data.draw(st.integers(start, len(written)))
        part = open_reader(Path(folder, "a.csv"), text_types=TYPES).read(str(Path(folder, "a.csv")), start, end)
    assert records.columns["n"].tolist() == [row[0] for row in written]
    np.testing.assert_array_equal(records.columns["x"], np.array([row[1] for row in written], np.float32))
    assert records.columns["word"].tolist() == [row[2].encode() for row in written]
    assert part.columns["n"].tolist() == [row[0] for row in written[start:end]]  # type: ignore[attr-defined]


PIECES = st.sampled_from(["a", ",", '"', '""', "\n", '",\n"', "\r\n", "\r", " ", "é"])


@given(st.lists(PIECES).map("".join))
def test_any_text_has_the_rows_that_the_reader_of_text_finds(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.csv")
        records, reported = read_typed(path, f"n,x\n{text}", {"n": "string", "x": "string"})
        as_text: list[CorruptRange] = []
        reader = open_reader(path)
        rows = reader.read(str(path), 0, reader.sources()[0].records, as_text.append)
    assert [[row["n"].decode(), row["x"].decode()] for row in records] == list(rows)
    assert reported == [(corrupt.start, corrupt.end, corrupt.reason) for corrupt in as_text]


def test_files_without_a_header_and_with_other_separators(tmp_path: Path) -> None:
    records, _ = read_typed(tmp_path / "a.csv", "1;2\n3;4\n", {"1": "int32"}, header=False, sep=";")
    assert records.columns["1"].tolist() == [2, 4]
    records, _ = read_typed(tmp_path / "a.csv", "aéb\n1é2\n", {"b": "int32"}, sep="é")
    assert records.columns["b"].tolist() == [2]
    named = {"header": False, "columns": ["a", "b"]}
    records, _ = read_typed(tmp_path / "a.csv", "1,2\n3,4\n", {"b": "int32"}, **named)
    assert records.columns["b"].tolist() == [2, 4]
    with pytest.raises(BadInputError, match="found c, no column") as error:
        read_typed(tmp_path / "a.csv", "1,2\n", {"c": "int32"}, **named)
    assert "a, b" in str(error.value)


def test_a_split_by_a_typed_column_is_that_of_its_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,x\n" + "".join(f"{number:03},{number}\n" for number in range(200)))
    paths, split = (str(tmp_path / "a.csv"),), SplitSpec("user", 0.3)
    schema = SchemaSpec(label="x", features={"user": "int64"})
    untyped = open_job_data(DataSpec(training=paths, validation=paths, split=split), "validation")
    typed = open_job_data(DataSpec(training=paths, validation=paths, split=split, schema=schema), "validation")
    (source,) = typed.sources()
    assert typed.sources() == untyped.sources()
    wanted = [int(row[0]) for row in untyped.read(source.name, 0, source.records)]  # type: ignore[index]
    assert [int(row["user"]) for row in typed.read(source.name, 0, source.records)] == wanted  # type: ignore[call-overload]
