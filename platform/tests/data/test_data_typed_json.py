"""JSON lines whose names have types: the values of the text, and lines that have none are reported alone."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.reader_contract import FEW_RECORDS, RECORDS, ReaderCase, ReaderContract

from edl.api.job_spec import DataSpec, SchemaSpec, SplitSpec
from edl.data.job_data import open_job_data
from edl.data.reader import CorruptRange, CorruptRecordError
from edl.data.reader_factory import open_reader

TYPES = {"n": "int64", "x": "float32", "word": "string", "yes": "bool"}


class TestTypedJson(ReaderContract):
    @pytest.fixture(params=["", "\n \n"])
    def local_case(self, tmp_path: Path, request: pytest.FixtureRequest) -> ReaderCase:
        def write(name: str, numbers: range) -> Path:
            lines = [
                json.dumps({"x": 1, "other": [1], "n": number, "word": "ä" * 300, "yes": True}) for number in numbers
            ]
            (tmp_path / name).write_text("\n".join(lines[:2]) + "\n" + request.param + "\n".join(lines[2:]))
            return tmp_path / name

        paths = [write("a.jsonl", range(RECORDS)), write("b.jsonl", range(RECORDS, RECORDS + FEW_RECORDS))]
        rewrite = lambda: write("a.jsonl", range(RECORDS + 1)) and None  # noqa: E731
        return ReaderCase(paths, {}, lambda row: int(row["n"]), rewrite, TYPES)


def read_typed(path: Path, lines: list[str], types: dict[str, str] = TYPES) -> tuple[Any, list[Any]]:
    """All records, and what was reported."""
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    reader = open_reader(path, text_types=types)
    reported: list[CorruptRange] = []
    (source,) = reader.sources()
    records = reader.read(source.name, 0, source.records, reported.append)
    return records, [(corrupt.start, corrupt.end, corrupt.reason) for corrupt in reported]


GOOD = {"n": 1, "x": 0.5, "word": "a", "yes": False}


NESTED = (
    "data.schema takes single values of JSON lines. Lists of numbers or text are read from Parquet "
    "(edl data convert --to parquet), all else by a feed in the model module"
)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (json.dumps({**GOOD, "x": None}), "no value of x"),
        (json.dumps({"n": 1, "x": 0.5, "word": "a"}), "no value of yes"),
        (json.dumps({**GOOD, "n": 1.5}), "n is 1.5, which is no int64"),
        (json.dumps({**GOOD, "n": [1, 2]}), f"n is [1, 2], which is no int64: {NESTED}"),
        (json.dumps({**GOOD, "n": {"a": 1}}), f'n is {{"a": 1}}, which is no int64: {NESTED}'),
        (json.dumps({**GOOD, "n": 2**63}), "n is 9223372036854775808, which is no int64"),
        (json.dumps({**GOOD, "n": True}), "n is true, which is no int64"),
        (json.dumps({**GOOD, "x": "old"}), 'x is "old", which is no float32'),
        (json.dumps({**GOOD, "yes": 1}), "yes is 1, which is no bool"),
        (json.dumps({**GOOD, "word": ["a"]}), f'word is ["a"], which is no string: {NESTED}'),
        ('{"n": 1, "x": }', "not a JSON object"),
        ("3", "not a JSON object"),
        (2 * json.dumps(GOOD), "not a JSON object"),
        ('{"word": "\udcff"}', "not UTF-8"),
        (json.dumps({**GOOD, "word": "\ud800"}), 'word is "\\ud800", which is no string'),
        ('{"n": ' + 100_000 * "[" + "}", "not a JSON object"),
    ],
)
def test_a_line_without_a_value_of_a_type_is_reported_alone(tmp_path: Path, line: str, reason: str) -> None:
    lines = [json.dumps({**GOOD, "n": number}) for number in range(20)]
    lines[7] = line
    records, reported = read_typed(tmp_path / "a.jsonl", lines)
    assert reported == [(7, 8, reason)]
    assert records.columns["n"].tolist() == [number for number in range(20) if number != 7]
    assert {name: column.dtype.name for name, column in records.columns.items()} == {**TYPES, "word": "object"}
    with pytest.raises(CorruptRecordError, match="record 7 cannot be read"):
        open_reader(tmp_path / "a.jsonl", text_types=TYPES).read(str(tmp_path / "a.jsonl"), 5, 9)


def test_a_whole_number_beyond_all_fractions_is_infinite_whichever_way_it_is_read(tmp_path: Path) -> None:
    lines = [json.dumps({**GOOD, "x": number}) for number in (10**400, -(10**400))]
    for others in ([], ["{}"]):  # with a line that has no values, each is parsed alone
        records, _ = read_typed(tmp_path / "a.jsonl", lines + others)
        assert records.columns["x"].tolist() == [np.inf, -np.inf]


def test_numbers_may_stand_where_text_is_wanted(tmp_path: Path) -> None:
    lines = [json.dumps({"label": label}) for label in (1, True, "no")]
    records, reported = read_typed(tmp_path / "a.jsonl", lines, {"label": "string"})
    assert (records.columns["label"].tolist(), reported) == ([b"1", b"true", b"no"], [])


ROWS = st.tuples(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.text(),
    st.booleans(),
)


@given(st.lists(ROWS, min_size=1), st.data())
def test_any_values_come_back_in_any_range(written: list[tuple[Any, ...]], data: st.DataObject) -> None:
    lines = [json.dumps(dict(zip(TYPES, row, strict=True))) for row in written if max(row[2], default="a") < "\ud800"]
    written = [row for row in written if max(row[2], default="a") < "\ud800"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        records, reported = read_typed(path, lines)
        assert not reported
        start = data.draw(st.integers(0, len(written)))
        end = data.draw(st.integers(start, len(written)))
        part: Any = open_reader(path, text_types=TYPES).read(str(path), start, end)
    for place, name in enumerate(TYPES):
        values = [row[place].encode() if name == "word" else row[place] for row in written]
        kind = object if name == "word" else TYPES[name]
        np.testing.assert_array_equal(records.columns[name], np.array(values, kind))
        assert part.columns[name].dtype == kind
        np.testing.assert_array_equal(part.columns[name], np.array(values[start:end], kind))


def test_a_split_is_that_of_the_value(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"user": number, "x": 1.0}) for number in range(200)))
    paths, split = (str(path),), SplitSpec("user", 0.3)
    schema = SchemaSpec(label="x", features={"user": "int64"})
    untyped = open_job_data(DataSpec(training=paths, validation=paths, split=split), "validation")
    typed = open_job_data(DataSpec(training=paths, validation=paths, split=split, schema=schema), "validation")
    (source,) = typed.sources()
    assert 0 < source.records < 200
    wanted = [json.loads(line)["user"] for line in untyped.read(source.name, 0, source.records)]  # type: ignore[arg-type]
    assert [int(row["user"]) for row in typed.read(source.name, 0, source.records)] == wanted  # type: ignore[call-overload]
