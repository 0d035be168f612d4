"""Facts of columns from Parquet parts: what the plan decides by."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edl.sql_jobs.column_plan import ColumnFacts
from edl.sql_jobs.row_statistics import collect_facts


def collect(folder: Path, columns: dict[str, object], label: str = "y") -> dict[str, ColumnFacts]:
    table = pa.table(columns)
    half = table.num_rows // 2
    for number, part in enumerate((table.slice(0, half), table.slice(half))):
        pq.write_table(part, folder / f"part-{number}.parquet")
    return {each.name: each for each in collect_facts(sorted(folder.glob("*.parquet")), label)}


def test_numbers_dates_texts_and_nulls(tmp_path: Path) -> None:
    days = [dt.date(1970, 1, 1 + number % 20) for number in range(100)]
    facts = collect(
        tmp_path,
        {
            "n": [None if number % 10 == 0 else number for number in range(100)],
            "day": days,
            "at": [dt.datetime(1970, 1, 2, number % 24) for number in range(100)],
            "t": ["a", "b"] * 50,
            "flag": [True, None] * 50,
            "void": pa.nulls(100),
            "blob": [b"x"] * 100,
            "y": [0.5 * number for number in range(100)],
        },
    )
    assert (facts["n"].kind, facts["n"].count, facts["n"].missing) == ("integer", 90, 10)
    assert (facts["day"].kind, facts["day"].has_time, facts["day"].mean) == ("date", False, pytest.approx(9.5))
    assert facts["at"].has_time
    assert 1 <= facts["at"].mean < 2
    assert (facts["t"].distinct, dict(facts["t"].values)) == (2, {"a": 50, "b": 50})
    assert dict(facts["flag"].values) == {"true": 50}
    assert (facts["void"].count, facts["void"].missing) == (0, 100)
    assert facts["blob"].kind == "other"


def test_copies_of_a_label_of_classes_and_of_a_number_are_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 400)
    columns = {"y": y, "name": [f"n{value}" for value in y], "other": rng.integers(0, 3, 400), "merged": y // 2}
    facts = collect(tmp_path, columns)
    assert [name for name, each in facts.items() if each.copies_label] == ["name"]
    y = rng.normal(size=400)
    noisy = y + 0.001 * rng.normal(size=400)
    missing = [None if number == 3 else value for number, value in enumerate(-7 * y)]
    facts = collect(tmp_path, {"y": y, "scaled": 2.54 * y + 7, "missing": missing, "noisy": noisy})
    assert [name for name, each in facts.items() if each.copies_label] == ["scaled", "missing"]


def test_numbers_of_a_small_table_without_equal_values_are_no_copies_of_the_label(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    facts = collect(tmp_path, {"y": rng.normal(size=90), "x": rng.normal(size=90)})
    assert not facts["x"].copies_label


def test_words_of_texts_are_counted_as_keras_sees_them(tmp_path: Path) -> None:
    texts = [f"It's good, VERY good: {number} stars" for number in range(100)]
    text_facts = collect(tmp_path, {"t": texts, "y": list(range(100))})["t"]
    assert text_facts.words == 6.0
    assert text_facts.vocabulary[0] == "good"
    assert {"its", "very", "stars"} <= set(text_facts.vocabulary)
