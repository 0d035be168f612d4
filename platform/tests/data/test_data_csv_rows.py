"""CSV: rows by number, whatever the cells hold; faults are named with their place."""

import csv
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.api.errors import BadInputError
from edl.data import csv_reader
from edl.data.reader import CorruptRange, CorruptRecordError, Metadata
from edl.data.reader_factory import open_reader

cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)


def table(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


def rows(path: Path, **options: object) -> list[list[str]]:
    reader = open_reader(path, {"format": "csv", **options})
    return [list(row) for source in reader.sources() for row in reader.read(source.name, 0, source.records)]


@given(st.integers(2, 3).flatmap(lambda n: st.lists(st.lists(cells, min_size=n, max_size=n), min_size=1)), st.data())
def test_any_cells_come_back_in_any_range(written: list[list[str]], data: st.DataObject) -> None:
    text = io.StringIO()
    csv.writer(text).writerows(written)
    with tempfile.TemporaryDirectory() as folder:
        path = table(Path(folder, "a.csv"), text.getvalue())
        reader = open_reader(path, {"header": False})
        assert reader.sources()[0].records == len(written)
        for _ in range(3):
            start = data.draw(st.integers(0, len(written)))
            end = data.draw(st.integers(start, len(written)))
            assert reader.read(str(path), start, end) == written[start:end]


PIECES = st.sampled_from(["a", "1", ",", '"', "\n", "\n\n", "\r\n", "\r", "\ufeff", "é"])


@given(st.lists(PIECES).map("".join), st.sampled_from([3, 16, 1 << 20]), st.booleans())
def test_the_index_has_the_rows_that_are_parsed(text: str, scanned: int, has_header: bool) -> None:
    text = f"a,b\n{text}" if has_header else text
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = table(Path(folder, "a.csv"), text)
        patch.setattr(csv_reader, "_SCANNED_BYTES", scanned)
        patch.setattr(csv_reader, "ROWS_PER_BLOCK", 2)
        index = csv_reader.CsvFile(path, csv_reader.CsvDialect(has_header=has_header)).index
        with path.open("rb") as stream:
            parsed = csv_reader.CsvRowStream(stream, 0, ",")
            offsets = [row.offset for row in parsed][1 if has_header else 0 :]
    assert (index.row_count, list(index.offsets)) == (len(offsets), offsets[::2])


def test_random_and_sequential_reads_of_many_rows(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", "n,text\n" + "".join(f'{n},"line\nbreak {n}"\n' for n in range(2000)))
    reader = open_reader(path)
    expected = [[str(n), f"line\nbreak {n}"] for n in range(2000)]
    in_order = [row for start in range(0, 2000, 64) for row in reader.read(str(path), start, min(start + 64, 2000))]
    assert in_order == expected
    for start, end in ((1999, 2000), (0, 1), (255, 257), (256, 256), (1000, 1600), (600, 601), (601, 700)):
        assert reader.read(str(path), start, end) == expected[start:end]


def test_the_header_names_the_columns(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", "\ufeffa,b,c\r\n1,2,3\r\n\r\n4,5,6")
    reader = open_reader(path)
    assert reader.metadata == Metadata("csv", ("a", "b", "c"), {"a": "string", "b": "string", "c": "string"})
    assert rows(path) == [["1", "2", "3"], ["4", "5", "6"]]


def test_columns_picks_and_orders(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", "a,b,c\n1,2,3\n")
    assert rows(path, columns=["c", "a"]) == [["3", "1"]]
    assert open_reader(path, {"columns": ["c", "a"]}).metadata.column_names == ("c", "a")
    with pytest.raises(BadInputError, match=r"no column d[\s\S]*a, b, c"):
        rows(path, columns=["d"])


def test_a_label_is_a_name_and_changes_no_row(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", "a,b\n1,2\n")
    assert open_reader(path, {"label": "b"}).metadata.column_names == ("a", "b")
    with pytest.raises(BadInputError, match="a name"):
        open_reader(path, {"label": 3})


def test_without_a_header_columns_names(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", "1,2\n3,4\n")
    assert rows(path, header=False) == [["1", "2"], ["3", "4"]]
    assert open_reader(path, {"header": False}).metadata.column_names == ("0", "1")
    assert open_reader(path, {"header": False, "columns": ["x", "y"]}).metadata.column_names == ("x", "y")
    with pytest.raises(BadInputError, match="1 names for 2 columns"):
        rows(path, header=False, columns=["x"])


def test_tabs_and_other_separators(tmp_path: Path) -> None:
    assert rows(table(tmp_path / "a.tsv", "a\tb\n1\t2\n")) == [["1", "2"]]
    assert rows(table(tmp_path / "a.csv", "a;b\n1;2\n"), sep=";") == [["1", "2"]]


def test_files_must_agree_on_their_columns(tmp_path: Path) -> None:
    table(tmp_path / "a.csv", "a,b\n1,2\n")
    table(tmp_path / "b.csv", "a,c\n1,2\n")
    with pytest.raises(BadInputError, match="columns a, c differ from a, b"):
        open_reader(tmp_path).sources()


@pytest.mark.parametrize(("text", "what"), [("", "the file is empty"), ("a,a\n", "appears twice")])
def test_a_header_that_names_nothing_is_refused(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(BadInputError, match=what):
        rows(table(tmp_path / "a.csv", text))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"1\n", "1 of 2 cells"),
        (b"1,2,3\n", "3 of 2 cells"),
        (b"1,\xff\n", "not UTF-8"),
        (b'1,"x"y\n', "expected after"),
        (b"1,2\r5,6\n", "carriage return without a line feed"),
    ],
)
def test_a_faulty_row_is_an_error_or_a_counted_skip(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\n1,2\n" + line + b"3,4\n")
    reader = open_reader(path)
    assert reader.sources()[0].records == 3
    with pytest.raises(CorruptRecordError, match=reason) as caught:
        reader.read(str(path), 0, 3)
    assert f"{path}, byte 8: record 1 cannot be read" in str(caught.value)
    reported: list[CorruptRange] = []
    assert reader.read(str(path), 0, 3, reported.append) == [["1", "2"], ["3", "4"]]
    assert [(corrupt.start, corrupt.end, corrupt.offset) for corrupt in reported] == [(1, 2, 8)]


def test_a_file_whose_lines_end_in_carriage_returns_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="carriage return without a line feed") as caught:
        rows(table(tmp_path / "a.csv", "a,b\r1,2\r"))
    assert "end lines with LF or CRLF" in str(caught.value)


def test_an_unclosed_quote_is_a_faulty_row(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", 'a,b\n1,2\n3,"4\n5,6\n')
    reported: list[CorruptRange] = []
    reader = open_reader(path)
    assert reader.read(str(path), 0, reader.sources()[0].records, reported.append) == [["1", "2"]]
    assert [(corrupt.start, corrupt.reason) for corrupt in reported] == [(1, "unexpected end of data")]


def test_a_file_that_changes_under_the_reader_is_an_error(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", "a\n1\n2\n")
    reader = open_reader(path)
    assert reader.sources()[0].records == 2
    table(path, "a\n1\n2\n3\n")
    with pytest.raises(BadInputError, match="changed while it was in use"):
        reader.read(str(path), 0, 2)
