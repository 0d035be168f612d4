"""SQLFlow's documented statements, on planted tables of the documented schemas: what runs, and what is refused.

``edl run`` is replaced here. The table of docs/sql.md is compared with the table below.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("duckdb")
pytest.importorskip("duckdb_engine")
import duckdb

from edl.api.errors import BadInputError
from edl.sql_jobs import statement_runner
from edl.sql_jobs.model_registry import ModelRegistry
from edl.sql_jobs.statement_parser import parse_with_texts
from edl.sql_jobs.statement_runner import MetricsResult, PredictResult, StatementRunner, TrainResult

DATABASE = "duckdb:///sqlflow.duckdb"
IRIS = "sepal_length, sepal_width, petal_length, petal_width"
HOUSING = "crim, zn, indus, chas, nox, rm, age, dis, rad, tax, ptratio, b, lstat"

STATEMENTS: Mapping[str, tuple[str, str]] = {
    "iris: `TO TRAIN DNNClassifier`": (
        f"""SELECT * FROM iris.train TO TRAIN DNNClassifier WITH
          model.n_classes = 3, model.hidden_units = [10, 10], train.epoch = 10
        COLUMN {IRIS} LABEL class INTO sqlflow_models.my_dnn_model;""",
        "trains dnn",
    ),
    "iris: `TO PREDICT iris.predict.class`": (
        "SELECT * FROM iris.test TO PREDICT iris.predict.class USING sqlflow_models.my_dnn_model;",
        "predicts",
    ),
    "iris: `TO EVALUATE` with `validation.metrics`": (
        """SELECT * FROM iris.test TO EVALUATE sqlflow_models.my_dnn_model WITH validation.metrics="Accuracy"
        LABEL class INTO iris.evaluate_result;""",
        "evaluates",
    ),
    "iris: `validation.select`, `validation.metrics`, `model.optimizer`": (
        """SELECT * FROM iris.train WHERE class<>2 TO TRAIN sqlflow_models.DNNClassifier WITH
          model.n_classes = 2, model.hidden_units = [10, 10], train.batch_size = 4,
          validation.select = "SELECT * FROM iris.test WHERE class<>2",
          validation.metrics = "Accuracy,AUC", model.optimizer=RMSprop, optimizer.learning_rate=0.1
        LABEL class INTO sqlflow_models.with_metrics;""",
        "trains dnn",
    ),
    "iris: `TO TRAIN DNNLinearCombinedClassifier … COLUMN … FOR`": (
        """SELECT * FROM iris.train TO TRAIN DNNLinearCombinedClassifier WITH
          model.n_classes = 3, model.dnn_hidden_units = [10, 20], train.batch_size = 10, train.epoch = 2
        COLUMN sepal_length, sepal_width FOR linear_feature_columns
        COLUMN petal_length, petal_width FOR dnn_feature_columns
        LABEL class INTO sqlflow_models.combined;""",
        "trains wide_and_deep",
    ),
    "iris: `TO TRAIN xgboost.gbtree`": (
        """SELECT * FROM iris.train TO TRAIN xgboost.gbtree WITH
          objective="multi:softprob", train.num_boost_round = 30, num_class = 3
        LABEL class INTO sqlflow_models.xgboost_model;""",
        "refused: use dnn",
    ),
    "Boston housing: `TO TRAIN DNNRegressor`": (
        f"""SELECT * FROM housing.train TO TRAIN DNNRegressor WITH
          model.hidden_units = [10, 20], train.epoch = 10, validation.select = "SELECT * FROM housing.test"
        COLUMN {HOUSING} LABEL medv INTO sqlflow_models.my_dnn_regressor;""",
        "trains dnn",
    ),
    "Boston housing: `TO TRAIN LinearRegressor`": (
        "SELECT * FROM housing.train TO TRAIN LinearRegressor LABEL medv INTO sqlflow_models.linear;",
        "trains linear",
    ),
    "Boston housing: `TO TRAIN xgboost.gbtree`": (
        f"""SELECT * FROM housing.train TO TRAIN xgboost.gbtree WITH
          objective="reg:squarederror", train.num_boost_round = 30, validation.select="SELECT * FROM housing.test"
        COLUMN {HOUSING} LABEL medv INTO sqlflow_models.my_xgb_regression_model;""",
        "refused: use dnn",
    ),
    "Titanic: `TO TRAIN DNNClassifier` with `EMBEDDING`, `INDICATOR`, `CATEGORY_ID`": (
        """SELECT * FROM titanic.train TO TRAIN DNNClassifier WITH
          model.n_classes = 2, model.hidden_units = [10, 20], train.epoch = 10
        COLUMN EMBEDDING(CATEGORY_HASH(ticket, 100), 8), INDICATOR(CATEGORY_ID(pclass, 4)),
          INDICATOR(CATEGORY_HASH(sex, 2)), age, sibsp, parch, fare, embarked
        LABEL survived INTO sqlflow_models.my_titanic_model;""",
        "trains dnn",
    ),
    "Titanic: `CROSS` and `BUCKET`": (
        """SELECT * FROM titanic.train TO TRAIN DNNClassifier WITH model.n_classes = 2, model.hidden_units = [10]
        COLUMN BUCKET(age, [10, 20, 40, 60]), CROSS([BUCKET(age, [10, 60]), sex], 16), fare
        LABEL survived INTO sqlflow_models.crossed;""",
        "trains dnn",
    ),
    "Titanic: `TO TRAIN BoostedTreesClassifier`": (
        """SELECT * FROM titanic.train TO TRAIN BoostedTreesClassifier WITH
          model.n_batches_per_layer = 1, model.center_bias = True, train.batch_size = 100
        LABEL survived INTO sqlflow_models.boosted_trees_model;""",
        "refused: use dnn",
    ),
}


def make_tables() -> None:
    """The documented schemas, with a signal that a model can find."""
    rng = random.Random(0)
    iris = [(*(rng.gauss(4 + label, 1) for _ in range(4)), label) for label in (at % 3 for at in range(150))]
    houses = [(*(rng.gauss(0, 1) for _ in range(13)), rng.gauss(20, 5)) for _ in range(120)]
    people = [
        (at, at % 2, 1 + at % 3, f"Mr. No {at}", rng.choice(["male", "female"]), rng.choice([None, rng.uniform(1, 80)]),
         at % 4, at % 5, f"A{rng.randrange(90)}", rng.uniform(5, 90), rng.choice([None, "C85"]), rng.choice("SCQ"))
        for at in range(1, 151)
    ]  # fmt: skip
    numbers = ", ".join(f"{name} DOUBLE" for name in HOUSING.split(", "))
    with duckdb.connect("sqlflow.duckdb") as connection:
        for schema, columns, rows in (
            ("iris", ", ".join(f"{name} DOUBLE" for name in IRIS.split(", ")) + ", class INTEGER", iris),
            ("housing", f"{numbers}, medv DOUBLE", houses),
            (
                "titanic",
                "passengerid INTEGER, survived INTEGER, pclass INTEGER, name TEXT, sex TEXT, age DOUBLE, "
                "sibsp INTEGER, parch INTEGER, ticket TEXT, fare DOUBLE, cabin TEXT, embarked TEXT",
                people,
            ),
        ):
            connection.execute(f"CREATE SCHEMA {schema}")
            for table, part in (("train", rows[: len(rows) * 4 // 5]), ("test", rows[len(rows) * 4 // 5 :])):
                connection.execute(f"CREATE TABLE {schema}.{table} ({columns})")
                marks = ", ".join("?" * len(rows[0]))
                connection.executemany(f"INSERT INTO {schema}.{table} VALUES ({marks})", part)


def run_edl(
    verb: str, folder: Path, arguments: Sequence[str] = (), on_event: Any = None, **options: object
) -> Mapping[str, Any]:
    if verb == "predict":
        rows = pq.read_table(folder / "data").num_rows
        (folder / "predictions").mkdir()
        np.savez(
            folder / "predictions" / "0.npz", source="x", start=0, end=rows, outputs=np.eye(3)[np.arange(rows) % 3]
        )
        return {}
    if verb == "evaluate":
        return {"metrics": {"loss": 0.25, "accuracy": 0.9, "log_loss": 0.2}}
    assert pq.read_table(folder / "data" / "validation").num_rows > 0
    (folder / "export").mkdir(exist_ok=True)
    (folder / "export" / "model.keras").write_text("weights", encoding="utf-8")
    return {"metrics": {"loss": 0.25}}


def run(text: str) -> str:
    ((statement, own),) = parse_with_texts(text, "duckdb")
    try:
        result = StatementRunner(DATABASE, ModelRegistry(Path("models"))).run(statement, own)
    except BadInputError as error:
        return f"refused: {re.split(r' for | [(]|, ', str(error.hint))[0]}"
    if isinstance(result, TrainResult):
        return f"trains {result.model.estimator}"
    if isinstance(result, MetricsResult):
        assert set(result.metrics) == {"loss", "accuracy"}
        return "evaluates"
    assert isinstance(result, PredictResult)
    return "predicts"


def test_documented_statements_run_or_are_refused_with_what_to_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(statement_runner, "run_edl", run_edl)
    make_tables()
    outcomes = {name: run(text) for name, (text, _) in STATEMENTS.items()}
    assert outcomes == {name: outcome for name, (_, outcome) in STATEMENTS.items()}


def test_the_documentation_has_this_table() -> None:
    text = (Path(__file__).parents[3] / "docs" / "sql.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:iris|Boston housing|Titanic): .+) \| (.+) \|$", text, re.MULTILINE)
    assert dict(rows) == {name: outcome for name, (_, outcome) in STATEMENTS.items()}
