"""Statements on a database of SQLite. ``edl run`` and its like are replaced; jobs/test_jobs_edl_sql.py runs them."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from ruamel.yaml import YAML

from edl.api.errors import BadInputError, EdlError, JobFailedError, StorageError
from edl.cli.sql_output import result_lines, show_train_lines
from edl.sql_jobs import statement_runner
from edl.sql_jobs.edl_process import StatementJobError
from edl.sql_jobs.model_registry import ModelRegistry, describe_model
from edl.sql_jobs.statement_parser import parse_with_texts
from edl.sql_jobs.statement_runner import (
    DropResult,
    ExplainResult,
    MetricsResult,
    ModelsResult,
    PredictResult,
    Result,
    RowsResult,
    ShowTrainResult,
    StatementRunner,
    TrainResult,
    dialect_of,
)
from edl.storage.durable_files import FileLock

TRAIN = "SELECT * FROM people LABEL rich INTO m"


class FakeJobs:
    """Stands for ``run_edl``: the model says that who is older than 50 is rich."""

    def __init__(self) -> None:
        self.verbs = list[str]()
        self.documents = list[tuple[str, dict[str, Any], str]]()
        self.losses = {"job.yaml": 0.25, "linear.yaml": 0.75}
        self.more = dict[str, float]()
        """Further metrics of evaluations."""
        self.error: EdlError | None = None
        self.writes_module = True

    def run(
        self,
        verb: str,
        folder: Path,
        arguments: Sequence[str] = (),
        on_event: Any = lambda event: None,
        *,
        needs_database: bool = False,
        job: str = "job.yaml",
    ) -> Mapping[str, Any]:
        assert not needs_database
        self.verbs.append(verb)
        if self.error is not None:
            (folder / "edl.log").write_text("why", encoding="utf-8")
            self.error.where = str(folder)
            raise self.error
        if verb == "run":
            document = YAML(typ="safe").load(folder / job)
            annealed = folder / "annealed.py"
            self.documents.append((job, document, annealed.read_text(encoding="utf-8") if annealed.exists() else ""))
            if "export=null" not in arguments:
                exported = folder / document["export"]["path"]
                exported.mkdir()
                (exported / "model.keras").write_text(f"weights of {job}", encoding="utf-8")
            assert (folder / "model.py").exists() == self.writes_module
            if "validation" not in document["data"]:
                return {}
            # Two epochs of 8 steps, of which the first one is the best.
            named = "log_loss" if "classes" in document["data"]["schema"] else "root_mean_squared_error"
            metrics = {"loss": self.losses[job], named: self.losses[job], "accuracy": 0.9, **self.more}
            for step, more in ((8, 0.0), (16, 0.5)):
                on_event({"event": "evaluation_ended", "step": step, "metrics": {**metrics, "loss": more}})
            return {"metrics": metrics, "records_done": 480}
        if verb == "evaluate":
            on_event({"event": "evaluation_ended", "step": 5, "metrics": {"loss": 0.25, "accuracy": 0.9}})
            return {"metrics": {"loss": 0.25, "accuracy": 0.9, **self.more}}
        ages = pq.read_table(folder / "data")["age"].to_numpy()
        (folder / "predictions").mkdir()
        # in another order than that of the rows, as workers write them
        for start in reversed(range(0, len(ages), 100)):
            part = ages[start : start + 100, np.newaxis]
            np.savez(
                folder / "predictions" / f"{start}.npz",
                source="x", start=start, end=start + len(part), outputs=(part > 50).astype(float),
            )  # fmt: skip
        return {}


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeJobs:
    monkeypatch.chdir(tmp_path)
    fake = FakeJobs()
    monkeypatch.setattr(statement_runner, "run_edl", fake.run)
    with closing(sqlite3.connect("people.db")) as connection, connection:
        connection.execute('CREATE TABLE people (age INTEGER, "home town" TEXT, rich TEXT, one INTEGER, void TEXT)')
        connection.executemany(
            "INSERT INTO people VALUES (?, ?, ?, 1, NULL)",
            [(20 + at % 60, f"t{at % 5}", "yes" if at % 60 > 30 else "no") for at in range(300)],
        )
    return fake


def run(text: str, **options: Any) -> Result:
    database = options.pop("database", "sqlite:///people.db")
    runner = StatementRunner(database, ModelRegistry(Path("models")), **options)
    results = [runner.run(statement, own) for statement, own in parse_with_texts(text, dialect_of(database))]
    return results[-1]


def test_a_statement_trains_and_stores_a_model_with_what_it_wants(jobs: FakeJobs) -> None:
    trained = run(f"-- a comment\n{TRAIN};")
    assert isinstance(trained, TrainResult)
    model = trained.model
    assert (model.name, model.version, model.label, model.classes, model.rows) == ("m", 1, "rich", ("no", "yes"), 300)
    assert model.statement == TRAIN
    assert [each.column for each in model.inputs] == ["age", "home town"]
    assert {name: use for name, use, _ in model.plan}["one"] == "dropped"
    assert model.metrics == {"loss": 0.25, "log_loss": 0.25, "accuracy": 0.9}
    assert len(model.digest) == 64
    assert (model.folder / "model.py").exists()
    assert list(Path(".edl/sql").iterdir()) == []  # neither rows nor runs stay
    shown = run("SHOW TRAIN m")
    assert isinstance(shown, ShowTrainResult)
    assert shown.model.statement == TRAIN
    listed = run("SHOW MODELS")
    assert isinstance(listed, ModelsResult)
    assert [each.name for each in listed.models] == ["m"]
    assert run("DROP MODEL m") == DropResult("m", [1])


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT age, age, rich FROM people", "line 1, column 1: several columns are called age"),
        (
            "SELECT CASE WHEN age < 70 THEN age ELSE 'old' END AS a, rich FROM people",
            "line 1, column 1: column a changes",
        ),
        ("SELECT * FROM people WHERE age > 999", "line 1, column 1: the query has no rows"),
    ],
)
def test_what_is_wrong_with_the_rows_is_said_of_the_query_or_of_its_column(
    jobs: FakeJobs, query: str, said: str
) -> None:
    with pytest.raises(BadInputError) as error:
        run(f"{query} LABEL rich INTO m")
    assert said in str(error.value)


def test_too_many_columns_to_explain_are_refused_before_copies_are_written(
    jobs: FakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(TRAIN)
    monkeypatch.setattr("edl.sql_jobs.statement_folders.MOST_COLUMNS", 1)
    with pytest.raises(BadInputError, match=r"line 1, column 33: m@1 has 2 columns, and TO EXPLAIN shuffles 1 at most"):
        run("SELECT * FROM people TO EXPLAIN m")


def test_a_number_that_is_the_same_in_all_rows_cannot_be_explained(jobs: FakeJobs) -> None:
    """R2 has no value on them."""
    run("SELECT * FROM people LABEL age INTO m")
    with pytest.raises(BadInputError, match="line 1, column 1: the label age has one value") as error:
        run("SELECT * FROM people WHERE age = 30 TO EXPLAIN m")
    assert "R2" in str(error.value.hint)
    assert "predict" not in jobs.verbs


def test_the_label_may_be_written_in_other_letters(jobs: FakeJobs) -> None:
    trained = run("SELECT * FROM people LABEL RICH INTO m")
    assert isinstance(trained, TrainResult)
    assert trained.model.label == "rich"


def test_predictions_are_written_beside_the_rows_in_their_order(jobs: FakeJobs) -> None:
    run(TRAIN)
    done = run('SELECT age, "home town" FROM people TO PREDICT guessed.rich USING m')
    assert isinstance(done, PredictResult)
    assert done.rows == 300
    rows = run("SELECT * FROM guessed")
    assert isinstance(rows, RowsResult)
    assert rows.names == ("age", "home town", "rich")
    assert [row[0] for row in rows.rows] == [20 + at % 60 for at in range(300)]
    assert all(row[2] == ("yes" if row[0] > 50 else "no") for row in rows.rows)


def test_a_prediction_may_have_the_probability_of_each_class(jobs: FakeJobs) -> None:
    run(TRAIN)
    predict = 'SELECT age, "home town" FROM people TO PREDICT guessed.rich WITH predict.probabilities={} USING m'
    run(predict.format("true"))
    rows = run("SELECT * FROM guessed")
    assert isinstance(rows, RowsResult)
    assert rows.names == ("age", "home town", "rich", "rich_no", "rich_yes")
    assert all(row[2:] == (("yes", 0, 1) if row[0] > 50 else ("no", 1, 0)) for row in rows.rows)
    for setting, message in [("2", "true or false"), ("true, a.b=1", "no setting a.b")]:
        with pytest.raises(BadInputError, match=message):
            run(predict.format(setting))
    run("SELECT * FROM people LABEL age INTO n")
    with pytest.raises(BadInputError, match="predicts a number"):
        run("SELECT * FROM people TO PREDICT ages.age WITH predict.probabilities=true USING n")


def test_probabilities_of_classes_that_the_database_takes_for_one_are_refused_before_the_job(jobs: FakeJobs) -> None:
    query = "SELECT age, CASE rich WHEN 'yes' THEN 'No' ELSE 'no' END AS rich FROM people"
    run(f"{query} LABEL rich INTO m")
    with pytest.raises(BadInputError, match="the classes 'No', 'no' differ only in capital letters"):
        run("SELECT age FROM people TO PREDICT guessed.rich WITH predict.probabilities=true USING m")
    assert "predict" not in jobs.verbs
    assert isinstance(run("SELECT age FROM people TO PREDICT guessed.rich USING m"), PredictResult)


def test_a_column_of_the_predictions_name_is_replaced(jobs: FakeJobs) -> None:
    run(f"{TRAIN}; SELECT * FROM people TO PREDICT guessed.rich USING m@1")
    rows = run("SELECT * FROM guessed")
    assert isinstance(rows, RowsResult)
    assert rows.names == ("age", "home town", "one", "void", "rich")


def test_a_column_in_other_letters_is_replaced_where_the_database_makes_no_difference(jobs: FakeJobs) -> None:
    run(TRAIN)
    run('SELECT age, "home town", rich FROM people TO PREDICT guessed.RICH USING m')
    rows = run("SELECT * FROM guessed LIMIT 1")
    assert isinstance(rows, RowsResult)
    assert rows.names == ("age", "home town", "RICH")


def test_a_table_that_exists_is_refused_before_the_job_or_replaced(jobs: FakeJobs) -> None:
    run(TRAIN)
    predict = "SELECT * FROM people TO PREDICT people.rich USING m"
    for text, column in [
        (predict, 33),
        ("SELECT * FROM people TO EVALUATE m INTO people", 41),
        ("SELECT * FROM people TO EXPLAIN m INTO people", 40),
    ]:
        with pytest.raises(BadInputError) as error:
            run(text)
        assert f"line 1, column {column}" in str(error.value.where)
        assert "--replace" in str(error.value.hint)
    assert jobs.verbs == ["run"] * 3
    assert isinstance(run(predict, replaces=True), PredictResult)


def test_metrics_are_written_into_a_table(jobs: FakeJobs) -> None:
    run(TRAIN)
    done = run("SELECT * FROM people TO EVALUATE m LABEL rich INTO result")
    assert isinstance(done, MetricsResult)
    assert done.metrics == {"loss": 0.25, "accuracy": 0.9}
    assert run("SELECT * FROM result") == RowsResult(("loss", "accuracy"), [(0.25, 0.9)], 1)


@pytest.mark.parametrize(
    ("label", "where", "name", "value", "reason"),
    [
        ("rich", "rich = 'yes'", "auc", None, "auc is undefined: all measured rows are of one class"),
        ("rich", "age > 0", "auc", 0.0, ""),
        ("age", "rowid = 1", "r2", None, "r2 is undefined: all measured rows have one value"),
        ("age", "age = 30", "r2", None, "r2 is undefined: all measured rows have one value"),
        ("age", "age < 40", "r2", 0.0, ""),
    ],
)
def test_a_metric_that_has_no_value_on_the_rows_is_undefined(
    jobs: FakeJobs, label: str, where: str, name: str, value: float | None, reason: str
) -> None:
    """Keras returns 0."""
    run(f"SELECT * FROM people LABEL {label} INTO m")
    jobs.more = {name: 0.0}
    done = run(f"SELECT * FROM people WHERE {where} TO EVALUATE m INTO result")
    assert isinstance(done, MetricsResult)
    assert done.metrics == {"loss": 0.25, "accuracy": 0.9, name: value}
    lines = result_lines(done)
    assert lines[0] == f"m@1 on {done.rows} row{'' if where == 'rowid = 1' else 's'}"
    assert any(re.fullmatch(rf"{name} +{'undefined' if value is None else '0'}", line) for line in lines)
    assert [line for line in lines if "is undefined" in line] == [reason] * (value is None)
    rows = run("SELECT * FROM result")
    assert isinstance(rows, RowsResult)
    assert rows.rows == [(0.25, 0.9, value)]
    types = run("SELECT typeof(loss), count(*) FROM result")
    assert isinstance(types, RowsResult)
    assert types.rows == [("real", 1)]


def test_a_model_that_was_measured_on_one_class_says_so(jobs: FakeJobs) -> None:
    jobs.more = {"auc": 0.0}
    query = "SELECT * FROM people WHERE rich = 'yes'"
    trained = run(f'SELECT * FROM people TO TRAIN dnn WITH validation.select="{query}" LABEL rich INTO m')
    assert isinstance(trained, TrainResult)
    assert trained.model.metrics["auc"] is None
    assert [metrics["auc"] for _, metrics in trained.model.history] == [None, None]
    shown, listed = run("SHOW TRAIN m"), run("SHOW MODELS")
    assert isinstance(shown, ShowTrainResult)
    assert isinstance(listed, ModelsResult)
    assert "NaN" not in (trained.model.folder / "model.json").read_text(encoding="utf-8")
    for lines in (show_train_lines(shown), result_lines(trained)):
        assert "auc is undefined: all measured rows are of one class" in lines
    assert "auc undefined" in describe_model(listed.models[0], 9)["metrics"]


def test_an_evaluation_may_name_its_metrics(jobs: FakeJobs) -> None:
    """As SQLFlow's do."""
    run(TRAIN)
    done = run("SELECT * FROM people TO EVALUATE m WITH validation.metrics='Accuracy' LABEL rich INTO result")
    assert isinstance(done, MetricsResult)
    assert done.metrics == {"loss": 0.25, "accuracy": 0.9}
    for clause, column, message in (
        ("validation.metrics='Accuracy,R2'", 37, "there is no metric R2 for one of two classes"),
        ("validation.metric=1", 37, "there is validation.metrics"),
    ):
        with pytest.raises(BadInputError) as error:
            run(f"SELECT * FROM people TO EVALUATE m WITH {clause} LABEL rich")
        assert f"line 1, column {column + 4}" in str(error.value.where)
        assert message in f"{error.value} {error.value.hint}"


def test_the_column_that_decides_is_the_most_important_one(jobs: FakeJobs) -> None:
    run(TRAIN)
    done = run("SELECT * FROM people TO EXPLAIN m INTO importance")
    assert isinstance(done, ExplainResult)
    assert [each.column for each in done.importance] == ["age", "home town"]
    assert done.importance[0].mean > 0.3
    assert done.importance[1].mean == 0
    rows = run("SELECT * FROM importance")
    assert isinstance(rows, RowsResult)
    assert rows.names == ("column", "importance", "deviation")


def test_an_export_has_module_job_and_data(jobs: FakeJobs, tmp_path: Path) -> None:
    trained = run(TRAIN, export=tmp_path / "out")
    assert isinstance(trained, TrainResult)
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"model.py", "job.yaml", "data", "export"}
    with pytest.raises(BadInputError, match="is there already"):
        run("SELECT * FROM people LABEL rich INTO n", export=tmp_path / "out")


@pytest.mark.parametrize(("linear_loss", "network_is_kept"), [(0.25 + 5.8 / 60, True), (0.25 + 5.6 / 60, False)])
def test_the_model_that_is_clearly_better_or_simpler_trains_again_on_all_rows(
    jobs: FakeJobs, tmp_path: Path, linear_loss: float, *, network_is_kept: bool
) -> None:
    jobs.losses["linear.yaml"] = linear_loss
    trained = run(TRAIN, export=tmp_path / "out")
    assert isinstance(trained, TrainResult)
    (_, network, _), (_, linear, at_high_rate), (_, refit, annealed) = jobs.documents
    assert [job for job, _, _ in jobs.documents] == ["job.yaml", "linear.yaml", "refit.yaml"]
    assert linear["model"]["params"] == {**network["model"]["params"], "hidden": []}
    assert linear["data"] == network["data"]
    assert "RATE, EPOCHS = 0.1, 300" in at_high_rate
    assert refit["data"]["training"] == ["data/training", "data/validation"]
    assert "validation" not in refit["data"]
    assert "evaluation_steps" not in refit["train"]
    chosen = network if network_is_kept else linear
    assert refit["model"] == {**chosen["model"], "definition": "annealed.custom_model"}
    assert {network["name"], linear["name"], refit["name"]} == {"m", "m-linear", "m-refit"}
    # Of the network, the best epoch, and not less than 5; its rate is that of the first training.
    rate, epochs = (0.005, 5) if network_is_kept else (0.1, 300)
    assert refit["train"]["epochs"] == trained.model.refit_epochs == epochs
    assert f"RATE, EPOCHS = {rate}, {epochs}" in annealed
    loss = 0.25 if network_is_kept else linear_loss
    assert trained.model.metrics["log_loss"] == loss
    assert trained.model.choice.startswith("the network" if network_is_kept else "the linear model")
    # What is stored evaluates and predicts: the weights and the job are of one model.
    assert (trained.model.folder / "model.keras").read_text(encoding="utf-8") == "weights of refit.yaml"
    stored = YAML(typ="safe").load(trained.model.folder / "job.yaml")
    assert stored["model"] == chosen["model"]
    assert (stored["name"], stored["export"]["path"]) == ("m", "measured")
    assert {"annealed.py", "refit.yaml"} <= {path.name for path in trained.model.folder.iterdir()}
    assert not (tmp_path / "out" / "linear.yaml").exists()
    shown = run("SHOW TRAIN m")
    assert isinstance(shown, ShowTrainResult)
    measured = f"measured on 60 rows, before the model was trained again on all rows, for {epochs:,} epochs"
    for lines in (show_train_lines(shown), result_lines(trained)):
        assert measured in lines
        assert f"chosen: {trained.model.choice}" in lines
    # The name is that of the model that is kept.
    estimator = "dnn" if network_is_kept else "linear"
    (listed,) = result_lines(run("SHOW MODELS"))[1:]
    assert f" {estimator} " in listed
    assert re.search(rf"^estimator +{estimator}$", "\n".join(show_train_lines(shown)), re.MULTILINE)
    assert result_lines(trained)[-1].endswith("edl run job.yaml && edl run refit.yaml")


@pytest.mark.parametrize(
    "setting", ["validation.refit=false", "train.epochs=3", "validation.select='SELECT * FROM people'"]
)
def test_a_statement_may_train_once(jobs: FakeJobs, setting: str) -> None:
    trained = run(f"SELECT * FROM people TO TRAIN dnn WITH {setting} LABEL rich INTO m")
    assert isinstance(trained, TrainResult)
    assert [job for job, _, _ in jobs.documents] == ["job.yaml"]
    assert (trained.model.refit_epochs, trained.model.choice) == (0, "")
    assert (trained.model.folder / "model.keras").read_text(encoding="utf-8") == "weights of job.yaml"
    rows = 300 if "select" in setting else 60
    assert f"measured on {rows} rows that it was not trained on" in result_lines(trained)
    assert not [line for line in result_lines(trained) if line.startswith("chosen")]


def test_classes_that_no_validation_row_has_are_named(jobs: FakeJobs) -> None:
    """Metrics say nothing of them."""
    some = "SELECT age, CASE WHEN rowid = 1 THEN 'seldom' ELSE rich END AS rich FROM people"
    query = "SELECT age, rich FROM people WHERE rowid <> 1"
    trained = run(f'{some} TO TRAIN dnn WITH validation.select="{query}" LABEL rich INTO m')
    assert isinstance(trained, TrainResult)
    shown = run("SHOW TRAIN m")
    assert isinstance(shown, ShowTrainResult)
    for lines in (show_train_lines(shown), result_lines(trained)):
        assert "none of these rows is 'seldom': the metrics say nothing of that" in lines


def test_settings_of_the_default_model_leave_it_the_default(jobs: FakeJobs) -> None:
    trained = run("SELECT * FROM people TO TRAIN default WITH train.class_weight=none LABEL rich INTO m")
    assert isinstance(trained, TrainResult)
    assert [job for job, _, _ in jobs.documents] == ["job.yaml", "linear.yaml", "refit.yaml"]
    assert trained.model.choice


@pytest.mark.parametrize(("setting", "is_weighted"), [("balanced", True), ("none", False), ("'none'", False)])
def test_a_statement_says_whether_classes_are_weighted(jobs: FakeJobs, setting: str, is_weighted: bool) -> None:
    trained = run(f"SELECT * FROM people TO TRAIN dnn WITH train.class_weight={setting} LABEL rich INTO m")
    assert isinstance(trained, TrainResult)
    assert ("class_weight = {" in (trained.model.folder / "model.py").read_text(encoding="utf-8")) is is_weighted
    assert "class_weight" not in (trained.model.folder / "job.yaml").read_text(encoding="utf-8")


def test_a_model_that_is_named_is_not_compared_and_trains_again(jobs: FakeJobs) -> None:
    trained = run("SELECT * FROM people TO TRAIN deepfm WITH train.epochs=3, validation.refit=true LABEL rich INTO m")
    assert isinstance(trained, TrainResult)
    assert [job for job, _, _ in jobs.documents] == ["job.yaml", "refit.yaml"]
    assert (trained.model.refit_epochs, trained.model.choice) == (3, "")


def test_rows_for_validation_may_come_from_a_query_of_their_own(jobs: FakeJobs, tmp_path: Path) -> None:
    train = (
        "SELECT * FROM people WHERE age > 22 TO TRAIN dnn "
        "WITH validation.select='SELECT {} FROM people' LABEL rich INTO "
    )
    run(train.format("*") + "a", export=tmp_path / "out")
    validation_rows = pq.read_table(tmp_path / "out" / "data" / "validation")
    assert (validation_rows.num_rows, pq.read_table(tmp_path / "out" / "data" / "training").num_rows) == (300, 285)
    for columns, message in [("age, rich", "home town is missing"), ('age, "home town"', "no column rich")]:
        with pytest.raises(BadInputError, match=message) as error:
            run(train.format(columns) + "b")
        assert "line 1, column 55" in str(error.value.where)
    with pytest.raises(BadInputError, match="is set, too"):
        run(train.format("*").replace(" LABEL", ", validation.share=0.2 LABEL") + "b")


def test_a_model_that_exists_is_refused_before_the_query_runs(jobs: FakeJobs) -> None:
    run(TRAIN)
    with pytest.raises(BadInputError, match="the model m exists"):
        run("SELECT * FROM no_such_table LABEL rich INTO m")
    trained = run(TRAIN, replaces=True)
    assert isinstance(trained, TrainResult)
    assert trained.model.version == 2


@pytest.mark.parametrize(
    ("name", "written"), [("order", '"order"'), ("yearly income", '"yearly income"'), ("rich", "rich")]
)
def test_a_hint_writes_a_column_as_the_query_must(jobs: FakeJobs, name: str, written: str) -> None:
    with closing(sqlite3.connect("people.db")) as connection, connection:
        connection.execute("CREATE TABLE odd AS SELECT age, rich AS label FROM people")
        connection.execute("INSERT INTO odd VALUES (1, NULL)")
    query = f'SELECT age, label AS "{name}" FROM odd'
    hint = re.escape(f"add WHERE {written} IS NOT NULL to the query")
    with pytest.raises(BadInputError, match=hint):
        run(f'{query} LABEL "{name}" INTO m')
    run(f'{query} WHERE label IS NOT NULL LABEL "{name}" INTO m')
    with pytest.raises(BadInputError, match=hint):
        run(f"{query} TO EVALUATE m")


@pytest.mark.parametrize("setting", ["model.hidden='x'", "optimizer.name=Fast", "train.epochs=0", "nothing.at_all=1"])
def test_wrong_settings_are_refused_before_the_query_runs(jobs: FakeJobs, setting: str) -> None:
    with pytest.raises(BadInputError) as error:
        run(f"SELECT * FROM nowhere TO TRAIN dnn WITH {setting} LABEL rich INTO m")
    assert setting.partition("=")[0].partition(".")[2] in str(error.value) or "no optimizer Fast" in str(error.value)
    assert "line 1, column 41" in str(error.value.where)
    assert not jobs.verbs


def test_a_training_that_fails_stores_no_model_and_leaves_no_rows(jobs: FakeJobs) -> None:
    jobs.error = StatementJobError("edl run failed")
    with pytest.raises(JobFailedError) as error:
        run("SELECT age, age || 'x' || rich AS word, rich FROM people LABEL rich INTO m")
    assert ModelRegistry(Path("models")).list_models() == []
    (folder,) = Path(".edl/sql").iterdir()
    # The error names it, and it has the name of the job.
    assert str(folder.absolute()) in str(error.value)
    assert folder.name.startswith("m-")
    assert {path.name for path in folder.iterdir()} == {"job.yaml", "model.py", "edl.log"}


def test_the_log_of_a_failed_statement_goes_after_a_week(jobs: FakeJobs) -> None:
    jobs.error = StatementJobError("edl run failed")
    with pytest.raises(JobFailedError):
        run(TRAIN)
    (folder,) = Path(".edl/sql").iterdir()
    for days, stays in [(6, True), (8, False)]:
        age = time.time() - days * 24 * 3600
        os.utime(folder, (age, age))
        run("SELECT * FROM people")
        assert folder.exists() == stays


@pytest.mark.parametrize("kind", ["interrupt", "table", "folder"])
def test_a_statement_whose_job_did_not_fail_leaves_no_folder(
    jobs: FakeJobs, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    run(TRAIN)

    def fail(*_: object, **__: object) -> None:
        if kind == "interrupt":
            raise KeyboardInterrupt
        # A name in the text decides nothing.
        (folder,) = Path(".edl/sql").absolute().glob("m-predict-*")
        raise StorageError("no room", where=str(folder) if kind == "folder" else "the table guessed")

    monkeypatch.setattr(statement_runner, "run_edl" if kind == "interrupt" else "write_result", fail)
    with pytest.raises((KeyboardInterrupt, StorageError)):
        run("SELECT * FROM people TO PREDICT guessed.rich USING m")
    assert list(Path(".edl/sql").iterdir()) == []


def test_a_trained_model_that_cannot_be_stored_stays_where_the_error_says(
    jobs: FakeJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("the model cannot be stored: no room", hint="EDL_MODELS names another folder for models")

    monkeypatch.setattr(ModelRegistry, "save", fail)
    with pytest.raises(StorageError, match="no room") as error:
        run(TRAIN)
    (folder,) = Path(".edl/sql").iterdir()
    assert f"the trained model is in {folder.absolute() / 'export'}" in str(error.value.hint)
    assert (folder / "export" / "model.keras").exists()
    assert not (folder / "data").exists()


def test_a_statement_that_trains_nothing_leaves_no_folder_of_its_export(jobs: FakeJobs, tmp_path: Path) -> None:
    for text in ("SELECT * FROM people LABEL one INTO m", "SELECT * FROM people LABEL none INTO m"):
        with pytest.raises(BadInputError):
            run(text, export=tmp_path / "out")
        assert not (tmp_path / "out").exists()
    jobs.error = StatementJobError("edl run failed")
    with pytest.raises(JobFailedError):
        run(TRAIN, export=tmp_path / "out")
    assert (tmp_path / "out" / "data").exists()


@pytest.mark.parametrize(("has_begun", "left"), [(True, {"job.yaml", "edl.log"}), (False, set())])
def test_rows_of_a_statement_that_was_killed_go_with_the_next_one(
    jobs: FakeJobs, *, has_begun: bool, left: set[str]
) -> None:
    killed, running = Path(".edl/sql/killed"), Path(".edl/sql/running")
    for folder in (killed, running):
        for name in ("rows", "data", ".rows.7.abc.tmp"):
            (folder / name).mkdir(parents=True)
        for name in (".lock", "edl.log", *(["job.yaml"] if has_begun else [])):
            (folder / name).touch()
    with FileLock(running / ".lock", "", protected_thing="the statement", hint=""):
        run("SELECT * FROM people")
        assert (running / "rows").exists()
    assert killed.exists() == has_begun
    assert {path.name for path in killed.glob("*")} == left
    assert sorted(path.name for path in Path(".edl/sql").iterdir()) == ["killed"] * has_begun + ["running"]


def test_a_folder_that_cannot_be_written_is_said_to_be(jobs: FakeJobs) -> None:
    Path(".edl").touch()
    with pytest.raises(StorageError, match="cannot be written") as error:
        run("SELECT * FROM people")
    assert "a folder that you may write" in str(error.value.hint)


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("SELECT * FROM people\nLABEL rch INTO m", "line 2, column 7", "no column rch.*did you mean rich"),
        ("SELECT * FROM people LABEL void INTO m", "line 1, column 28", "only NULL"),
        ("SELECT * FROM people LABEL one INTO m", "line 1, column 28", "one value, '1'"),
        ("SELECT * FROM people WHERE age > 99 LABEL rich INTO m", "line 1, column 1", "no rows"),
        ("SELECT * FROM people LIMIT 1 LABEL rich INTO m", "line 1, column 1", "one row only"),
        ("SELECT rich FROM people LABEL rich INTO m", "line 1, column 31", "no other column"),
        ("SELECT rich, one FROM people LABEL rich INTO m", "line 1, column 36", "one: all rows have the same value"),
        ("SHOW MODELS;\nSELECT nothing FROM people LABEL rich INTO m", "line 2", "nothing"),
        ("SELECT * FROM people TO PREDICT a.b USING absent", "line 1, column 43", "no model absent"),
    ],
)
def test_bad_input_is_refused_at_its_place(jobs: FakeJobs, text: str, where: str, said: str) -> None:
    with pytest.raises(BadInputError) as error:
        run(text)
    assert where in str(error.value.where)
    assert re.search(said, f"{error.value} {error.value.hint}", re.DOTALL)
    assert jobs.verbs == []


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ('SELECT age AS years, "home town" FROM people', "age is missing .is it years now"),
        ("SELECT age FROM people", "home town is missing"),
        ("SELECT 'x' || age AS age, \"home town\" FROM people", r"age was a number \(int64\), and is string"),
        (
            'SELECT age, CASE WHEN age % 2 = 0 THEN age + 0.5 END AS "home town" FROM people',
            r"home town was text \(string\), and is double",
        ),
    ],
)
@pytest.mark.parametrize("clause", ["TO PREDICT a.rich USING m", "TO EVALUATE m", "TO EXPLAIN m"])
def test_columns_that_changed_are_named(jobs: FakeJobs, query: str, said: str, clause: str) -> None:
    run(TRAIN)
    query = query.replace(" FROM", ", rich FROM")
    with pytest.raises(BadInputError, match="that m@1 wants") as error:
        run(f"{query} {clause}")
    if "years" not in said:  # too different from age to be guessed
        assert re.search(said, str(error.value))


def test_an_evaluation_without_the_label_names_it(jobs: FakeJobs) -> None:
    run(TRAIN)
    with pytest.raises(BadInputError, match="no column rich"):
        run('SELECT age, "home town" FROM people TO EVALUATE m')


@pytest.mark.parametrize("clause", ["TO EVALUATE m", "TO EXPLAIN m"])
def test_classes_that_the_model_does_not_know_are_named(jobs: FakeJobs, clause: str) -> None:
    run(TRAIN)
    with pytest.raises(BadInputError, match="the label rich has 'never', 'perhaps', which are no classes") as error:
        run(
            'SELECT age, "home town", rich FROM people UNION ALL '
            f"SELECT 1, 't1', 'perhaps' UNION ALL SELECT 1, 't1', 'never' {clause}"
        )
    assert "it predicts 'no', 'yes'" in str(error.value.hint)
    assert "line 1, column 1" in str(error.value.where)
    assert jobs.verbs == ["run"] * 3


def test_only_for_a_table_that_exists_replace_is_offered(jobs: FakeJobs) -> None:
    run(TRAIN)
    with pytest.raises(BadInputError, match='unknown database "nowhere"') as error:
        run("SELECT * FROM people TO PREDICT nowhere.a.rich USING m")
    assert "--replace" not in str(error.value.hint)
    assert jobs.verbs == ["run"] * 3


def test_statements_that_need_a_database_say_so(jobs: FakeJobs) -> None:
    assert isinstance(run("SHOW MODELS", database=None), ModelsResult)
    with pytest.raises(BadInputError) as error:
        run("SELECT 1", database=None)
    assert "EDL_DATABASE" in str(error.value.hint)


def test_names_with_quotes_and_statements_in_them_stay_names(jobs: FakeJobs) -> None:
    with closing(sqlite3.connect("people.db")) as connection, connection:
        connection.execute(
            'CREATE TABLE odd AS SELECT age AS "a""; DROP TABLE people; --", rich AS "Größe ""1""" FROM people'
        )
    trained = run('SELECT * FROM odd LABEL "Größe ""1""" INTO "m; DROP"')
    assert isinstance(trained, TrainResult)
    assert trained.model.inputs[0].column == 'a"; DROP TABLE people; --'
    assert trained.model.name == "m; DROP"
    rows = run("SELECT count(*) FROM people")
    assert isinstance(rows, RowsResult)
    assert rows.rows == [(300,)]
