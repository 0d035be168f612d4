"""Statements of ``edl sql``: the query before the clauses stays as it is, and errors name line and column."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sql_statements import parse_statements

from edl.api.errors import BadInputError
from edl.sql_jobs.statement_runner import dialect_of
from edl.sql_jobs.statements import (
    Attribute,
    ColumnCall,
    ColumnName,
    DropModelStatement,
    EvaluateStatement,
    ExplainStatement,
    ModelName,
    PredictStatement,
    QueryStatement,
    SelectQuery,
    ShowModelsStatement,
    ShowTrainStatement,
    TableName,
    TextPosition,
    TrainStatement,
)


def parse_one(text: str, dialect: str | None = None) -> object:
    (statement,) = parse_statements(text, dialect)
    return statement


def parse_train(text: str, dialect: str | None = None) -> TrainStatement:
    statement = parse_one(text, dialect)
    assert isinstance(statement, TrainStatement)
    return statement


def test_the_announced_line() -> None:
    text = "SELECT * FROM employee LABEL income INTO my_elasticdl_model"
    assert parse_one(text) == TrainStatement(
        SelectQuery("SELECT * FROM employee", TextPosition(1, 1)),
        ColumnName("income", TextPosition(1, 30)),
        ModelName("my_elasticdl_model", None, TextPosition(1, 42)),
    )


SQLFLOW = """SELECT *
FROM iris.train
TO TRAIN DNNClassifier
WITH model.n_classes = 3, model.hidden_units = [10, 20], train.verbose=true, optimizer.learning_rate=-1e-3,
  validation.metrics="Accuracy", loss=my_module.my_loss
COLUMN sepal_length, NUMERIC("sepal width", 1), EMBEDDING(CATEGORY_HASH(town, 100), 8, 'mean') FOR deep
COLUMN petal_length, BUCKET(petal_width, [1, 2.5]) FOR linear
LABEL class
INTO sqlflow_models.my_dnn_model;"""


def test_all_clauses_of_training() -> None:
    statement = parse_train(SQLFLOW)
    assert statement.select == SelectQuery("SELECT *\nFROM iris.train", TextPosition(1, 1))
    assert (statement.estimator, statement.label.name, str(statement.into)) == (
        "DNNClassifier",
        "class",
        "my_dnn_model",
    )
    assert {name: each.value for name, each in statement.attributes.items()} == {
        "model.n_classes": 3,
        "model.hidden_units": (10, 20),
        "train.verbose": True,
        "optimizer.learning_rate": -0.001,
        "validation.metrics": "Accuracy",
        "loss": "my_module.my_loss",
    }
    assert statement.attributes["validation.metrics"] == Attribute("Accuracy", TextPosition(5, 3))
    town = ColumnCall("CATEGORY_HASH", (ColumnName("town", TextPosition(6, 73)), 100), TextPosition(6, 59))
    assert statement.columns["deep"] == (
        ColumnName("sepal_length", TextPosition(6, 8)),
        ColumnCall("NUMERIC", (ColumnName("sepal width", TextPosition(6, 30)), 1), TextPosition(6, 22)),
        ColumnCall("EMBEDDING", (town, 8, "mean"), TextPosition(6, 49)),
    )
    assert [type(each) for each in statement.columns["linear"]] == [ColumnName, ColumnCall]
    assert statement.columns["linear"][1].arguments[1] == (1, 2.5)  # type: ignore[union-attr]


@pytest.mark.parametrize(("dialect", "table", "column"), [("postgres", "scores", "p"), ("sqlite", "Scores", "P")])
def test_names_without_quotes_are_those_that_the_database_makes_of_them(dialect: str, table: str, column: str) -> None:
    (statement,) = parse_statements('SELECT * FROM t TO PREDICT "Shop".Scores.P USING Model', dialect)
    assert isinstance(statement, PredictStatement)
    assert (statement.into.parts, statement.column, statement.model.name) == (("Shop", table), column, "Model")


def test_several_statements_of_all_kinds() -> None:
    statements = parse_statements(
        "SELECT * FROM t TO PREDICT db.iris.class USING models.m@3;;\n"
        "SELECT * FROM t TO EVALUATE m WITH a.b='x' LABEL y INTO r.result; SELECT * FROM t TO EVALUATE m;\n"
        "SELECT * FROM t TO EXPLAIN m INTO x;\n"
        "SHOW TRAIN m; show models; DROP MODEL m@2; SELECT 1"
    )
    predict, evaluate, alone, explain, train, models, drop, query = statements
    assert isinstance(predict, PredictStatement)
    assert (predict.into.parts, predict.column, str(predict.model)) == (("db", "iris"), "class", "m@3")
    assert isinstance(evaluate, EvaluateStatement)
    assert (evaluate.label, evaluate.into) == (
        ColumnName("y", TextPosition(2, 50)),
        TableName(("r", "result"), TextPosition(2, 57)),
    )
    assert isinstance(alone, EvaluateStatement)
    assert (alone.label, alone.into) == (None, None)
    assert isinstance(explain, ExplainStatement)
    assert str(explain.into) == "x"
    assert isinstance(train, ShowTrainStatement)
    assert train.model.name == "m"
    assert models == ShowModelsStatement()
    assert isinstance(drop, DropModelStatement)
    assert str(drop.model) == "m@2"
    assert query == QueryStatement(SelectQuery("SELECT 1", TextPosition(4, 44)))


@pytest.mark.parametrize(
    ("query", "dialect"),
    [
        ("SELECT 'x TO TRAIN y LABEL a INTO b' AS t FROM t", None),
        ("SELECT a FROM t -- TO TRAIN x LABEL y INTO z\n", None),
        ("SELECT a /* LABEL y INTO z; */ FROM (SELECT * FROM u WHERE to = 'a;b') AS t", None),
        ('SELECT "LABEL", "TO TRAIN" FROM t', "postgres"),
        ("SELECT `LABEL` , b FROM `größe tabelle`", "mysql"),
        ("SELECT [a b], label FROM t", "sqlite"),
        ("SELECT x::int, $$LABEL a INTO b$$ FROM t", "postgres"),
        ("WITH q AS (SELECT 1 AS a) SELECT * FROM q", None),
        ("SELECT column FROM t ORDER BY column", None),
        ("SELECT * FROM unnest(ARRAY[1]) WITH ORDINALITY", "postgres"),
    ],
)
def test_words_of_clauses_within_a_query_are_left_to_it(query: str, dialect: str | None) -> None:
    short = parse_train(f"{query} LABEL a INTO m", dialect)
    assert short.select.text == query.strip().removesuffix("-- TO TRAIN x LABEL y INTO z").strip() or (
        short.select.text == query.strip()
    )
    assert parse_train(f"{query} TO TRAIN dnn LABEL a INTO m", dialect).label.name == "a"


@pytest.mark.parametrize("dialect", [None, "sqlite", "postgres", "duckdb"])
def test_comments_of_clauses_are_those_of_the_database(dialect: str | None) -> None:
    text = "SELECT * FROM t\nTO TRAIN dnn\nWITH train.epochs=5\n--,it's.left=[64]\nLABEL a --don't\nINTO m"
    statement = parse_train(text, dialect)
    assert statement.attributes == {"train.epochs": Attribute(5, TextPosition(3, 6))}
    assert (statement.label.name, statement.into) == ("a", ModelName("m", None, TextPosition(6, 6)))


WORDS = st.sampled_from(["LABEL", "INTO", "TO TRAIN", "WITH", ";", "it's", "a", "COLUMN", "--", "/*"])


@given(st.lists(WORDS).map(" ".join), st.sampled_from(["sqlite", "postgres", "mysql", "duckdb"]))
def test_any_text_may_be_in_quotes(content: str, dialect: str) -> None:
    quoted = content.replace("'", "''")
    query = f"SELECT '{quoted}' AS note, y FROM t"
    statement = parse_train(f"{query} LABEL y INTO m", dialect)
    assert (statement.select.text, statement.label.name, statement.into.name) == (query, "y", "m")


@pytest.mark.parametrize("query", ["SELECT * FROM t ORDER BY label DESC", "SELECT * FROM label l", "SELECT 1 label"])
def test_a_label_of_the_query_is_no_second_one(query: str) -> None:
    assert parse_train(f"{query} LABEL y INTO m").select.text == query


def test_a_column_may_be_called_label() -> None:
    statement = parse_train("SELECT label, x FROM t LABEL label INTO m")
    assert (statement.select.text, statement.label.name) == ("SELECT label, x FROM t", "label")


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("SELECT * FROM t TO TRIAN dnn LABEL a INTO b", "line 1, column 17", "did you mean TO TRAIN?"),
        ("SELECT * FROM t LABEL a", "line 1, column 17", "end with INTO my_model"),
        ("SELECT * FROM t\nTO TRAIN dnn LABEL a, b INTO m", "line 2, column 21", "a model has one label"),
        ("SELECT * FROM t LABEL a, b INTO m", "line 1, column 24", "a model has one label"),
        ("SELECT * FROM t WITH train.epochs=5 LABEL a INTO m", "line 1, column 17", "write TO TRAIN default WITH"),
        ("SELECT * FROM t COLUMN NUMERIC(b) LABEL a INTO m", "line 1, column 17", "write TO TRAIN default COLUMN"),
        ("SELECT * FROM t LABEL label, b INTO m", "line 1, column 28", "a model has one label"),
        ("SELECT * FROM t LABEL a LABEL b INTO m", "line 1, column 25", "a model has one label"),
        ("SELECT * FROM t TO TRAIN dnn LABEL a LABEL b INTO m", "line 1, column 38", "a model has one label"),
        ("SELECT * FROM t TO TRAIN dnn WITH a=1,a=2 LABEL b INTO m", "line 1, column 39", "a is set twice"),
        ("SELECT * FROM t TO TRAIN LABEL b INTO m", "line 1, column 26", "a model, such as dnn is missing"),
        ("SELECT * FROM t TO TRAIN dnn COLUMN EMBED(x) LABEL b INTO m", "column 37", "did you mean EMBEDDING?"),
        ("SELECT * FROM t TO TRAIN dnn COLUMN a FOR x COLUMN b FOR x LABEL b INTO m", "column 52", "stands twice"),
        ("SELECT * FROM t TO TRAIN dnn LABEL b INTO m@2", "line 1, column 43", "no version yet"),
        ("SELECT * FROM t TO TRAIN dnn LABEL b", "line 1, column 37", "INTO is missing, the statement ends"),
        ("SELECT * FROM t LABEL b b INTO m", "line 1, column 25", "put a name of several words into double quotes"),
        ("SELECT * FROM t TO TRAIN dnn LABEL b INTO m extra", "line 1, column 45", "found extra"),
        ("SELECT * FROM t TO TRAIN dnn WITH a= LABEL b INTO m", "line 1, column 38", "a value"),
        ("SELECT * FROM t TO PREDICT p USING m", "line 1, column 28", "names no column"),
        ("SELECT * FROM t TO PREDICT p.c", "line 1, column 31", "USING is missing"),
        ("SELECT * FROM t TO EVALUATE m@0", "line 1, column 31", "whole number from 1"),
        ("SELECT * FROM t TO EXPLAIN m USING TreeExplainer", "line 1, column 30", "EDL shuffles the values"),
        ("SELECT 'a FROM t", "line 1, column 8", "has no end"),
        (
            "SELECT 'it''s', x -- '\nFROM t LABEL x INTO m;\nSELECT * FROM t\n LABEL \"x INTO m",
            "line 4, column 8",
            "has no end",
        ),
        ("SELECT 1\n/* and so on", "line 2, column 1", "has no end"),
        ("DELETE FROM t", "line 1, column 1", "begins with SELECT"),
        ("SELECT 1;\n  SHOW TABLES", "line 2, column 8", "SHOW shows MODELS"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, where: str, said: str) -> None:
    with pytest.raises(BadInputError) as error:
        parse_statements(text)
    assert where in str(error.value.where)
    assert said in f"{error.value} {error.value.hint}"


def test_the_dialect_is_that_of_the_address_also_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP", "mysql://me:secret@host/shop")
    dialects = [
        dialect_of(address) for address in ("sqlite:///a.db", "PostgreSQL://host/db", "env://SHOP", "x://y", None)
    ]
    assert dialects == ["sqlite", "postgres", "mysql", None, None]
