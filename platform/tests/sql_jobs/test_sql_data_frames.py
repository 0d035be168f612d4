"""edl.sql(): statements from Python, dataframes and exceptions out."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import edl
from edl.api.errors import BadInputError
from edl.sql_jobs import statement_runner

pd = pytest.importorskip("pandas")

TRAIN = "SELECT * FROM people LABEL rich INTO m"


@pytest.fixture(autouse=True)
def people(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDL_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("EDL_DATABASE", "sqlite:///people.db")
    with closing(sqlite3.connect("people.db")) as connection, connection:
        connection.execute("CREATE TABLE people (age INTEGER, born DATE, rich TEXT)")
        connection.executemany(
            "INSERT INTO people VALUES (?, '2000-01-02', ?)",
            [(20 + at % 60, "yes" if at % 60 > 30 else "no") for at in range(3000)],
        )

    def run_edl(
        verb: str, folder: Path, arguments: Sequence[str] = (), on_event: Any = None, **options: object
    ) -> Mapping[str, Any]:
        if verb == "predict":
            ages = pq.read_table(folder / "data")["age"].to_numpy()
            (folder / "predictions").mkdir()
            outputs = (ages[:, np.newaxis] > 50).astype(float)
            np.savez(folder / "predictions" / "0.npz", source="x", start=0, end=len(ages), outputs=outputs)
            return {}
        (folder / "export").mkdir(exist_ok=True)
        (folder / "export" / "model.keras").write_text("weights", encoding="utf-8")
        return {"metrics": {"loss": 0.25, "accuracy": 0.9, "log_loss": 0.25, "auc": 0.0}}

    monkeypatch.setattr(statement_runner, "run_edl", run_edl)


def test_a_query_returns_all_its_rows_with_their_types() -> None:
    frame = edl.sql("SELECT age, born, rich FROM people")
    assert len(frame) == 3000  # a terminal shows 1,000
    assert list(frame.columns) == ["age", "born", "rich"]
    assert frame["age"].dtype == "int64"
    assert frame["born"].iloc[0] == pd.Timestamp("2000-01-02")
    assert edl.sql("SELECT age FROM people WHERE age > 999").empty


def test_a_training_and_an_evaluation_return_metrics() -> None:
    for statement in (TRAIN, "SELECT * FROM people TO EVALUATE m"):
        assert edl.sql(statement).to_dict("records") == [{"loss": 0.25, "accuracy": 0.9, "log_loss": 0.25, "auc": 0.0}]
    one_class = edl.sql("SELECT * FROM people WHERE rich = 'yes' TO EVALUATE m")
    assert one_class["auc"].dtype == "float64"
    assert one_class["auc"].isna().all()
    (model,) = edl.sql("SHOW MODELS").to_dict("records")
    assert (model["model"], model["accuracy"]) == ("m", 0.9)
    assert "age" in set(edl.sql("SHOW TRAIN m")["column"])
    assert edl.sql("DROP MODEL m").to_dict("records") == [{"model": "m", "version": 1}]
    assert edl.sql("SHOW MODELS").empty


def test_a_prediction_returns_its_rows_and_writes_them() -> None:
    frame = edl.sql(f"{TRAIN}; SELECT age, born FROM people TO PREDICT guessed.rich USING m")
    assert list(frame.columns) == ["age", "born", "rich"]
    assert ((frame["age"] > 50) == (frame["rich"] == "yes")).all()
    assert edl.sql("SELECT * FROM guessed", database="sqlite:///people.db").equals(frame[["age", "born", "rich"]])


def test_an_explanation_returns_columns_by_importance() -> None:
    frame = edl.sql(f"{TRAIN}; SELECT * FROM people TO EXPLAIN m")
    assert list(frame.columns) == ["column", "importance", "deviation"]
    assert frame["column"].iloc[0] == "age"


def test_an_error_has_its_place_in_the_statement() -> None:
    with pytest.raises(BadInputError, match=r"statement, line 2, column 7.*no column rch") as error:
        edl.sql("SELECT * FROM people\nLABEL rch INTO m")
    assert (error.value.line, error.value.column) == (2, 7)  # type: ignore[attr-defined]
    with pytest.raises(BadInputError, match="no statement"):
        edl.sql(" -- nothing")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(BadInputError, match=r"edl.sql needs the package pandas\n.*\[train,sql,pandas\]"):
        edl.sql("SELECT 1 AS a")


def test_rows_stay_in_the_database_with_stream(tmp_path: Path) -> None:
    with closing(sqlite3.connect("people.db")) as connection, connection:
        connection.execute("CREATE TABLE members (id INTEGER PRIMARY KEY, age INTEGER, rich TEXT)")
        connection.execute("INSERT INTO members SELECT rowid, age, rich FROM people")
    statement = "SELECT * FROM members LABEL rich INTO m"
    with pytest.raises(BadInputError, match="stream"):
        edl.sql(statement, stream=True)  # SQLite cannot share a snapshot
    assert not edl.sql(statement, stream="inconsistent").empty
    assert "inconsistent" in (tmp_path / "models" / "m" / "1" / "model.json").read_text()
    for options, message in (({"stream": "often"}, "often"), ({"stream": True, "submit": True}, "this machine")):
        with pytest.raises(BadInputError, match=message):
            edl.sql(statement, replace=True, **options)
    with pytest.raises(BadInputError, match="TO TRAIN"):
        edl.sql("SELECT * FROM members TO EVALUATE m", stream="inconsistent")
