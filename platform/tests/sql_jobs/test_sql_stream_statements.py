"""``--stream``: which statements and databases it takes, and what a lost snapshot leaves. ``edl run`` is replaced."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from sql_jobs.conftest import DatabaseUnderTest, sqlite_database
from support.databases import PostgresServer

from edl.api.errors import BadInputError, RetryableError
from edl.cli.sql_output import show_train_lines
from edl.sql_jobs import statement_runner
from edl.sql_jobs.model_registry import ModelRegistry
from edl.sql_jobs.statement_parser import parse_with_texts
from edl.sql_jobs.statement_runner import Observer, ShowTrainResult, StatementRunner, TrainResult, dialect_of

ROWS = [(n, 20 + n % 60, 1 if n % 60 > 30 else 0) for n in range(1, 301)]
METRICS = {"loss": 0.25, "log_loss": 0.25}
NO_KEY = "has no unique key"


class FakeRun(Observer):
    """Stands for ``run_edl``, and hears what the runner says."""

    def __init__(self) -> None:
        self.arguments = dict[str, Sequence[str]]()
        self.meanwhile: Callable[[], object] = lambda: None
        self.said = list[tuple[str, bool]]()
        self.more = dict[str, float]()
        """Further metrics."""

    def run(
        self, verb: str, folder: Path, arguments: Sequence[str], on_event: Any, *, needs_database: bool, job: str
    ) -> Mapping[str, Any]:
        assert (verb, needs_database) == ("run", True)
        self.arguments[job] = arguments
        assert not list(folder.rglob("*.parquet"))
        described = json.loads((folder / "stream" / "stream.json").read_text(encoding="utf-8"))
        assert described["rows"] == len(ROWS)
        self.meanwhile()
        metrics = {**METRICS, **self.more}
        on_event({"event": "evaluation_ended", "step": 5, "metrics": metrics})
        (folder / "export").mkdir(exist_ok=True)
        (folder / "export" / "model.keras").write_text("weights", encoding="utf-8")
        return {"metrics": metrics}

    def streamed(self, key: str, *, is_consistent: bool) -> None:
        self.said.append((key, is_consistent))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRun:
    monkeypatch.chdir(tmp_path)
    fake = FakeRun()
    monkeypatch.setattr(statement_runner, "run_edl", fake.run)
    return fake


def make_table(database: DatabaseUnderTest) -> None:
    database.fill("id INTEGER PRIMARY KEY, age INTEGER, rich INTEGER", ROWS)


def run(database: str, text: str, fake: FakeRun, stream: str, **options: Any) -> Any:
    runner = StatementRunner(database, ModelRegistry(Path("models")), fake, stream=stream, **options)
    return [runner.run(each, own) for each, own in parse_with_texts(text, dialect_of(database))][-1]


@pytest.mark.first_cases(2)
def test_other_databases_need_inconsistent_which_is_stored_with_the_model(
    any_database: DatabaseUnderTest, fake: FakeRun
) -> None:
    make_table(any_database)
    train = "SELECT * FROM t TO TRAIN dnn WITH stream.key='id' LABEL rich INTO m"
    shares = any_database.kind == "postgresql"
    if not shares:
        with pytest.raises(BadInputError, match="cannot let several connections") as refused:
            run(any_database.address, train, fake, "snapshot")
        assert "--stream=inconsistent" in str(refused.value.hint)
        assert not ModelRegistry(Path("models")).list_names()
    trained = run(any_database.address, train, fake, "inconsistent")
    assert isinstance(trained, TrainResult)
    assert trained.model.stream == ("snapshot" if shares else "inconsistent")
    assert fake.said == [("id", shares)]
    assert "data.training=stream/training.npy" in fake.arguments["job.yaml"]
    assert "data.training=stream/all.npy" in fake.arguments["refit.yaml"]
    assert not [each for each in fake.arguments["refit.yaml"] if each.startswith("data.validation")]
    shown = run(any_database.address, "SHOW TRAIN m", fake, "")
    assert isinstance(shown, ShowTrainResult)
    assert any(line.startswith("stream") and trained.model.stream in line for line in show_train_lines(shown))
    assert list(Path(".edl/sql").iterdir()) == []
    assert not (trained.model.folder / "edl_stream.py").exists()


def test_a_class_that_no_validation_row_has_is_named(fake: FakeRun, tmp_path: Path) -> None:
    database = sqlite_database(tmp_path)
    database.fill("id INTEGER PRIMARY KEY, age INTEGER, rich INTEGER", [(n, age, n == 1) for n, age, _ in ROWS])
    fake.more = {"auc": 0.0}
    trained = run(database.address, "SELECT * FROM t LABEL rich INTO m", fake, "inconsistent")
    assert isinstance(trained, TrainResult)
    assert trained.model.unmeasured_classes == ["1"]
    assert trained.model.metrics == {**METRICS, "auc": None}


@pytest.mark.parametrize("when", ["during the job", "before its last rows"])
def test_a_lost_snapshot_ends_the_training_and_leaves_nothing(
    postgres: PostgresServer, fake: FakeRun, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    make_table(DatabaseUnderTest("postgresql", postgres.address, postgres.connect))
    if when == "during the job":
        monkeypatch.setattr(statement_runner, "_SNAPSHOT_SECONDS", 0.0)
    fake.meanwhile = lambda: postgres.connect(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND "
        "backend_type = 'client backend'"
    )
    with pytest.raises(RetryableError, match="the snapshot is gone"):
        run(postgres.address, "SELECT * FROM t LABEL rich INTO m", fake, "snapshot")
    assert not list(Path("models").rglob("model.json"))
    assert not list(Path(".edl").rglob("stream.json"))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT age, rich FROM t", "id, the key of the table t, is not selected"),
        ("SELECT DISTINCT id, age, rich FROM t", NO_KEY),
        ("SELECT id, age, rich FROM t LIMIT 10", NO_KEY),
        ("SELECT a.id, a.age, b.rich FROM t AS a JOIN t AS b ON a.id = b.id", NO_KEY),
        ("SELECT min(id) AS id, age, rich FROM t GROUP BY age, rich", NO_KEY),
        ("SELECT * FROM (SELECT * FROM t) AS x", NO_KEY),
        ("SELECT * FROM copies", "the table copies has no primary key of one column"),
        ("SELECT * FROM pairs", "the table pairs has no primary key of one column"),
        ("SELECT * FROM nothing", "there is no table nothing"),
    ],
)
def test_a_query_without_a_key_is_refused_with_what_to_write(
    postgres: PostgresServer, fake: FakeRun, query: str, said: str
) -> None:
    make_table(DatabaseUnderTest("postgresql", postgres.address, postgres.connect))
    postgres.connect(
        "CREATE TABLE copies AS SELECT * FROM t",
        "CREATE TABLE pairs (a INTEGER, b INTEGER, rich INTEGER, PRIMARY KEY (a, b))",
    )
    with pytest.raises(BadInputError, match=said) as refused:
        run(postgres.address, f"{query} LABEL rich INTO m", fake, "snapshot")
    assert str(refused.value.where).endswith("line 1, column 1")
    if said != "there is no table nothing":
        assert "--stream" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ("SELECT * FROM t WHERE age > 0 ORDER BY age", "id"),
        ('SELECT x.age, ID AS "Nr", rich FROM public.T AS x', "Nr"),
        ("SELECT rich, t.* FROM (SELECT 1) AS one, t", None),
    ],
)
def test_the_key_of_a_plain_table_is_found(
    postgres: PostgresServer, fake: FakeRun, query: str, key: str | None
) -> None:
    make_table(DatabaseUnderTest("postgresql", postgres.address, postgres.connect))
    if key is None:
        with pytest.raises(BadInputError, match=NO_KEY):
            run(postgres.address, f"{query} LABEL rich INTO m", fake, "snapshot")
        return
    run(postgres.address, f"{query} LABEL rich INTO m", fake, "snapshot")
    assert fake.said == [(key, True)]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("SELECT * FROM t TO EVALUATE m", {}, "--stream is for TO TRAIN"),
        ("SELECT * FROM t TO PREDICT p.rich USING m", {}, "--stream is for TO TRAIN"),
        ("SELECT * FROM t TO EXPLAIN m", {}, "--stream is for TO TRAIN"),
        ("SELECT * FROM t LABEL rich INTO m", {"export": Path("out")}, "leaves them in the database"),
        ("SELECT * FROM t TO TRAIN dnn WITH stream.key=1 LABEL rich INTO m", {}, "is the name of a column"),
        ("SELECT * FROM t TO TRAIN dnn WITH stream.key='nr' LABEL rich INTO m", {}, "the query has no column nr"),
        ("SELECT * FROM t TO TRAIN dnn WITH stream.key='age' LABEL rich INTO m", {}, "several rows in which age is 20"),
        (
            "SELECT * FROM t TO TRAIN dnn WITH validation.select='SELECT * FROM t' LABEL rich INTO m",
            {},
            "validation.select does not go with --stream",
        ),
    ],
)
def test_what_does_not_go_with_streaming(
    postgres: PostgresServer, fake: FakeRun, text: str, options: Mapping[str, Any], said: str
) -> None:
    make_table(DatabaseUnderTest("postgresql", postgres.address, postgres.connect))
    with pytest.raises(BadInputError, match=said):
        run(postgres.address, text, fake, "snapshot", **options)
