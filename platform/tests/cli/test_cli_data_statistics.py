"""``edl data stats`` and ``edl data schema``."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest
from cli.cli_harness import run_edl
from pyarrow import parquet
from ruamel.yaml import YAML

from edl.data.table_scan import TABLE_FORMATS

CSV = "age,city,rooms\n31,Ulm,2\n47,<b>Bonn</b>,3\n,Ulm,3\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    path.write_text(CSV)
    return path


def test_the_json_result_has_all_columns(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl("data", "stats", str(table), "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["version"], result["records"], result["corrupt_records"]) == (1, 3, 0)
    age, city, rooms = result["columns"]
    assert (age["count"], age["missing"], age["mean"], age["std"]) == (2, 1, 39.0, 8.0)
    assert city["top"] == [["Ulm", 2], ["<b>Bonn</b>", 1]]
    assert (rooms["quantiles"][0], rooms["quantiles"][-1], len(rooms["quantiles"])) == (2, 3, 1001)


def test_the_table_names_each_column_and_its_error(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl("data", "stats", str(table)) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("age", "city", "rooms"))
    assert "3 records" in out
    assert "exact" in out


def test_options_reach_the_reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.data"
    path.write_text("1;x\n2;y\n")
    line = ["data", "stats", str(path), "--format", "csv", "--sep", ";", "--no-header", "--columns", "n,t", "--json"]
    assert run_edl(*line) == 0
    assert [column["name"] for column in json.loads(capsys.readouterr().out)["columns"]] == ["n", "t"]


@pytest.mark.parametrize(
    "command", [["stats", "--json"], ["convert", "--to", "jsonl", "--plan", "--out", "OUT"], ["schema"]]
)
def test_columns_may_be_named_by_several_options(
    table: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    words = ["data", command[0], str(table), *command[1:], "--columns", "age", "--columns", "rooms"]
    assert run_edl(*words) == 0
    out = "".join(capsys.readouterr())
    assert re.search(r"\bage\b", out)
    assert "rooms" in out
    assert "city" not in out


@pytest.mark.parametrize(
    "command", [["stats"], ["stats", "--json"], ["schema"], ["convert", "--to", "jsonl", "--plan", "--out", "OUT"]]
)
def test_a_table_that_begins_with_numbers_is_a_warning(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("0.5,-1,0\n0.25,3,1\n0.75,2,0\n")
    line = ["data", command[0], str(path), *(word.replace("OUT", str(tmp_path / "out")) for word in command[1:])]
    assert run_edl(*line) == 0
    assert "(0.5, -1, 0)" in (err := capsys.readouterr().err)
    assert "--no-header" in err
    assert run_edl(*line, "--no-header") == 0
    assert "--no-header" not in capsys.readouterr().err


def test_the_page_stands_alone_and_escapes_what_cells_contain(table: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run_edl("data", "stats", str(table), "--html", str(page)) == 0
    text = page.read_text()
    HTMLParser().feed(text)
    assert "<b>Bonn" not in text
    assert "&lt;b&gt;Bonn" in text
    assert "prefers-color-scheme: dark" in text
    assert text.count("<svg") == 2
    assert not re.search(r"<script|<link|https?://", text)


def test_a_page_that_cannot_be_written_is_named(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl("data", "stats", str(table), "--html", str(table / "page.html")) == 2
    assert "page.html" in capsys.readouterr().err


def test_what_has_no_columns_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("text\n")
    assert run_edl("data", "stats", str(tmp_path)) == 2
    assert ", ".join(TABLE_FORMATS) in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("command", ["stats", "schema"])
def test_help_names_every_format_of_tables(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl("data", command, "--help") == 0
    described = capsys.readouterr().out.partition("--format")[2].partition("detected")[0]
    assert {name for name in TABLE_FORMATS if name not in described} == set()


def test_workers_have_one_thread(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl("data", "stats", str(table), "--workers", "2", "--threads", "2") == 2
    assert "--threads" in capsys.readouterr().err


def test_workers_do_not_take_compressed_text(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = table.with_suffix(".csv.gz")
    packed.write_bytes(gzip.compress(table.read_bytes()))
    assert run_edl("data", "stats", str(packed), "--workers", "2") == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "no random access" in error
    assert "data.reader.cache" in error


def test_a_folder_without_files_of_workers_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl("data", "stats", str(tmp_path), "--merge") == 2
    assert "no worker has written" in " ".join(capsys.readouterr().err.split())


def test_help_imports_no_arrays() -> None:
    code = "import sys, edl.cli.data; print(*{'numpy', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_schema_is_a_section_that_a_job_reads(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl("data", "schema", str(table), "--format", "csv") == 0
    out = capsys.readouterr().out
    section = YAML(typ="safe").load(out)["data"]
    assert section["reader"] == {"format": "csv"}
    assert section["schema"] == {"label": "rooms", "features": {"city": "string"}}
    assert "1 MISSING" in next(line for line in out.splitlines() if '# "age": int64' in line)


@pytest.mark.parametrize(
    ("label", "said"), [("rooms", "binary classification"), ("age", "binary"), ("size", "regression")]
)
def test_the_label_says_what_it_is_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], label: str, said: str
) -> None:
    (tmp_path / "a.csv").write_text("age,rooms,size\n1.5,1,.5\n2.5,0,1.5\n1.5,1,2.5\n")
    assert run_edl("data", "schema", str(tmp_path), "--label", label) == 0
    assert said in next(line for line in capsys.readouterr().out.splitlines() if "label:" in line)


def test_a_column_with_a_label_s_name_is_the_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text('Target,"x: #1"\n1,2\n')
    assert run_edl("data", "schema", str(tmp_path)) == 0
    schema = YAML(typ="safe").load(capsys.readouterr().out)["data"]["schema"]
    assert schema == {"label": "Target", "features": {"x: #1": "int64"}}


def test_missing_values_of_a_label_are_said(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl("data", "schema", str(table), "--label", "age") == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "label:" in line)
    assert line.endswith("; 1 MISSING: leave these records out, or a job ends there")


def test_types_of_features_lose_no_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "events.parquet"
    columns = {
        "at": pa.array([1_577_836_800_000_001], pa.timestamp("us")),
        "day": pa.array([18_262], pa.date32()),
        "words": pa.array([[2**30 + 1]], pa.list_(pa.int64())),
        "pair": pa.array([[1, 2]], pa.list_(pa.int8(), 2)),
        "parts": pa.array([[[1.5]]], pa.list_(pa.list_(pa.float64()))),
        "hash": pa.array([2**64 - 1], pa.uint64()),
        "count": pa.array([5], pa.uint64()),
        "y": pa.array([1.0]),
    }
    parquet.write_table(pa.table(columns), path)
    assert run_edl("data", "schema", str(path)) == 0
    features = YAML(typ="safe").load(capsys.readouterr().out)["data"]["schema"]["features"]
    assert features == {
        "at": "int64",
        "day": "int64",
        "words": "int64",
        "pair": "int64",
        "parts": "float32",
        "hash": "float32",  # int64 has not its values
        "count": "int64",
    }


def test_a_column_of_lists_is_not_guessed_as_the_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"y": 1, "words": [1, 2]}\n{"y": 2, "words": []}\n')
    assert run_edl("data", "schema", str(tmp_path)) == 0
    assert YAML(typ="safe").load(capsys.readouterr().out)["data"]["schema"]["label"] == "y"


def test_lists_and_texts_of_many_values_are_not_guessed_to_be_the_label(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"kind": f"k{number % 3}", "words": [number], "text": f"words of {number}"} for number in range(200)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run_edl("data", "schema", str(tmp_path / "a.jsonl")) == 0
    schema = YAML(typ="safe").load(capsys.readouterr().out)["data"]["schema"]
    assert schema == {"label": "kind", "classes": ["k0", "k1", "k2"], "features": {"text": "string"}}


def test_the_summary_has_no_errors_of_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"v": [*range(7)] * 12}) + "\n" for _ in range(200)))
    assert run_edl("data", "stats", str(tmp_path / "a.jsonl")) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Ranks of quantiles are wrong by at most 0.0" in out
    assert "frequent values by" not in out
    assert "distinct values with ~" not in out


def test_the_values_of_a_label_of_text_are_its_classes(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl("data", "schema", str(table), "--label", "city") == 0
    schema = YAML(typ="safe").load(capsys.readouterr().out)["data"]["schema"]
    assert schema["classes"] == ["<b>Bonn</b>", "Ulm"]


def test_a_label_that_is_no_column_is_named(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_edl("data", "schema", str(table), "--label", "price") == 2
    assert "no column price" in capsys.readouterr().err


def test_a_schema_of_json_lines_leaves_lists_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"v": 1, "tags": ["a"], "label": 0.5}\n')
    assert run_edl("data", "schema", str(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert YAML(typ="safe").load(printed)["data"]["schema"] == {"label": "label", "features": {"v": "int64"}}
    assert "a LIST, which is read from Parquet" in printed
