"""edl sql --submit: what is created on a cluster, what is copied there, and what is refused before."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli.cli_harness import CliHarness, cli_in_job_folder
from cli.pod_files import serve
from cli.submitter_harness import ended_status
from support.doc_commands import DOCS, blocks
from support.text_keys import missing_keys

import edl
from edl.api.errors import BadInputError, JobFailedError
from edl.cluster.kubernetes.resource_kinds import CONFIGMAPS, JOBS, PODS
from edl.sql_jobs.model_registry import ModelDescription, ModelRegistry, write_description

pytest.importorskip("sqlglot")

GOLDEN = Path(__file__).with_name("golden") / "sql_submit.yaml"
TRAIN = "SELECT * FROM people LABEL rich INTO m"
PREDICT = "SELECT * FROM people TO PREDICT guessed.guess USING m"
BASE = "image: registry.example/edl:1\nvolumes: [{claim: files, mount: /data, sub_path: shared}]\nworkers: {max: 3}\n"
PASSWORD = "tr0ub4dor"
OWN = "from edl_columns import *\n\ndef custom_model(units=3):\n    pass\n"
SERVER = ("--database", "postgresql://db.example/shop")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CliHarness:
    cli = cli_in_job_folder(tmp_path, monkeypatch, capsys)
    (tmp_path / "cluster.yaml").write_text(BASE, encoding="utf-8")
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    for name in ("EDL_DATABASE", "EDL_DATABASE_USER", "EDL_DATABASE_PASSWORD", "EDL_MODELS"):
        monkeypatch.delenv(name, raising=False)
    with closing(sqlite3.connect("people.db")) as connection, connection:
        connection.execute("CREATE TABLE people (age INTEGER, rich TEXT)")
    return cli


def submit(cli: CliHarness, statement: str, *options: str) -> int:
    return cli.edl("sql", statement, "--submit", "--job-file", "cluster.yaml", *options)


def test_the_manifests_of_a_statement_are_those_of_an_ordinary_job(
    cli: CliHarness, pytestconfig: pytest.Config
) -> None:
    assert submit(cli, PREDICT, *SERVER, "--database-secret", "shop", "--dry-run", "-n", "team-a") == 0
    if pytestconfig.getoption("update_golden"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(cli.out, encoding="utf-8")
    assert cli.out == GOLDEN.read_text(encoding="utf-8"), "pytest --update-golden, and read the difference"
    assert cli.cluster.created == []


def test_only_the_masters_container_gets_the_secret(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_DATABASE", f"postgresql://me:{PASSWORD}@db.example/shop")
    monkeypatch.setenv("EDL_DATABASE_PASSWORD", PASSWORD)
    assert submit(cli, TRAIN, "--database-secret", "shop", "--yes", "--detach") == 0
    assert PASSWORD not in json.dumps([*cli.cluster.objects.values()])
    assert PASSWORD not in cli.out + cli.err
    (job,) = cli.cluster.objects_of_kind(JOBS)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    sources = {each["name"]: each.get("valueFrom", {}).get("secretKeyRef") for each in container["env"]}
    secrets = {name: source["name"] for name, source in sources.items() if source}
    assert secrets == dict.fromkeys(("EDL_DATABASE", "EDL_DATABASE_USER", "EDL_DATABASE_PASSWORD"), "shop")
    spec = json.loads(cli.cluster.objects_of_kind(CONFIGMAPS)[0]["data"]["job.json"])
    assert spec["workers"]["overrides"] == spec["pod"]["overrides"] == spec["pod"]["env"] == {}
    assert json.loads(spec["master"]["prepare"][-1])["database"] == "env://EDL_DATABASE"


def test_a_file_of_sqlite_is_copied_once_before_the_job_is_created(
    cli: CliHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.cluster.admissions.append(
        lambda thing: thing.update(status={"phase": "Running"}) if thing["kind"] == "Pod" else None
    )
    (tmp_path / "claim").mkdir()
    serve(tmp_path / "claim", monkeypatch)
    assert submit(cli, TRAIN, "--database", "sqlite:///people.db", "--yes", "--detach") == 0
    (copied,) = (tmp_path / "claim").rglob("people.db")
    folder = copied.parent.name
    assert copied.relative_to(tmp_path / "claim") == Path("shared/edl-sql/databases") / folder / "people.db"
    with closing(sqlite3.connect(copied)) as connection, connection:
        assert connection.execute("SELECT count(*) FROM people").fetchall() == [(0,)]
        connection.execute("CREATE TABLE guessed (a)")
    spec = json.loads(cli.cluster.objects_of_kind(CONFIGMAPS)[0]["data"]["job.json"])
    request = json.loads(spec["master"]["prepare"][-1])
    assert request["database"] == f"sqlite:////data/edl-sql/databases/{folder}/people.db"
    assert [kind for kind, _ in cli.cluster.created][:2] == ["Pod", "Job"]
    # The copy has a table by now, which the next statement may read.
    assert submit(cli, PREDICT, "--database", "sqlite:///people.db", "--yes", "--detach") == 0
    with closing(sqlite3.connect(copied)) as connection:
        assert connection.execute("SELECT count(*) FROM guessed").fetchall() == [(0,)]
    assert all(pod["metadata"]["name"].endswith("abcde") for pod in cli.cluster.objects_of_kind(PODS)), "masters only"


def test_a_file_in_a_volume_is_used_as_it_is(cli: CliHarness) -> None:
    assert submit(cli, TRAIN, "--database", "sqlite:////data/shop.db", "--dry-run") == 0
    assert "sqlite:////data/shop.db" in cli.out
    assert "would be copied" not in cli.out


@pytest.mark.parametrize(
    ("statement", "options", "servers", "again"),
    [
        (TRAIN, (), True, "compares the model with a linear one"),
        (TRAIN.replace("LABEL", "TO TRAIN dnn LABEL"), (), True, "then trains the model again on all rows"),
        (TRAIN.replace("LABEL", "TO TRAIN dnn WITH strategy.name='AllReduce' LABEL"), (), False, "trains the model"),
        (TRAIN, ("--set", "strategy.name=AllReduce", "--set", "train.epochs=3"), False, ""),
        (TRAIN.replace("LABEL", "TO TRAIN dnn WITH validation.refit=false LABEL"), (), True, ""),
        (TRAIN.replace("LABEL", "TO TRAIN 'own.py' LABEL"), (), False, ""),
        (PREDICT, (), False, ""),
    ],
)
def test_the_plan_says_what_depends_on_the_rows(
    cli: CliHarness, statement: str, options: tuple[str, ...], again: str, *, servers: bool
) -> None:
    shop = ("--database", "sqlite:////data/shop.db")
    assert submit(cli, statement, *shop, *options, "--dry-run") == 0
    notes = [line for line in cli.out.splitlines() if line.startswith("# If ")]
    assert any("16,777,216" in line and "ParameterServer" in line for line in notes) == servers
    assert [line for line in notes if "10,000 rows" in line and again in line] == (notes[-1:] if again else [])
    assert len(notes) == servers + bool(again)


def test_with_and_set_override_the_job_file(cli: CliHarness) -> None:
    statement = TRAIN.replace("LABEL", "TO TRAIN dnn WITH workers.max=4, optimizer.name='SGD' LABEL")
    options = ("--database", "sqlite:////data/shop.db", "--yes", "--detach")
    assert submit(cli, statement, *options, "--set", "workers.min=2", "--set", "name=mine") == 0
    spec = json.loads(cli.cluster.objects_of_kind(CONFIGMAPS)[0]["data"]["job.json"])
    assert (spec["name"], spec["workers"]["min"], spec["workers"]["max"]) == ("mine", 2, 4)
    assert spec["strategy"]["name"] == "AllReduce"


@pytest.mark.parametrize(
    "setting", ["validation.metrics='accuracy'", "validation.select='SELECT * FROM others'", "model.n_classes=2"]
)
def test_settings_that_are_no_fields_of_a_job_are_those_of_this_machine(cli: CliHarness, setting: str) -> None:
    statement = TRAIN.replace("LABEL", f"TO TRAIN dnn WITH {setting}, train.epochs=3 LABEL")
    assert submit(cli, statement, "--database", "sqlite:////data/shop.db", "--yes", "--detach") == 0
    spec = json.loads(cli.cluster.objects_of_kind(CONFIGMAPS)[0]["data"]["job.json"])
    assert spec["train"]["epochs"] == 3


@pytest.mark.parametrize(
    ("statement", "options", "said"),
    [
        ("SELECT * FROM people", SERVER, ["line 1, column 1", "makes no job", "this machine", "edl data cp"]),
        ("SELECT * FROM people TO EXPLAIN m WITH a=1", SERVER, ["line 1, column", "no setting a"]),
        (
            TRAIN.replace("LABEL", "TO TRAIN dnn WITH validation.share=0.1, validation.select='SELECT 1' LABEL"),
            SERVER,
            ["line 1, column", "validation.share", "leave out one"],
        ),
        ("SHOW MODELS", ("--set", "volumes=[{host_path: /data, mount: /data}]"), ["claim"]),
        ("DROP MODEL m", ("--set", "volumes=[{host_path: /data, mount: /data}]"), ["claim"]),
        ("DROP MODEL m", ("--dry-run",), ["--dry-run"]),
        (TRAIN.replace("LABEL", "TO TRAIN 'zoo/none.py' LABEL"), SERVER, ["line 1, column", "none.py"]),
        (
            TRAIN.replace("LABEL", "TO TRAIN 'own.py' LABEL"),
            (*SERVER, "--set", "volumes=[{host_path: /data, mount: /data}]"),
            ["modules of this machine", "no claim"],
        ),
        ("SHOW MODELS", ("--dry-run",), ["--dry-run"]),
        (f"{TRAIN}; {PREDICT}", (*SERVER, "--detach"), ["--detach", "2"]),
        (TRAIN, (), ["--database"]),
        (TRAIN, ("--database", "sqlite:///none.db"), ["none.db", "/data"]),
        (TRAIN, ("--database", "env://EDL_DATABASE"), ["--database-secret", "admission.allowedSecrets"]),
        (TRAIN, (*SERVER, "--set", "volumes=[]"), ["volumes", "claim"]),
        (TRAIN, (*SERVER, "--models", "/elsewhere"), ["--models", "/data"]),
        (TRAIN, (*SERVER, "--export", "x"), ["--export"]),
        (TRAIN, (*SERVER, "--job-file", "job.yaml"), ["model", "--job-file"]),
        (TRAIN.replace("LABEL", "TO TRAIN xgboost.gbtree LABEL"), SERVER, ["dnn"]),
        (
            TRAIN,
            ("--database", "sqlite:///people.db", "--set", "volumes=[{host_path: /data, mount: /data}]"),
            ["people.db of this machine", "no claim"],
        ),
    ],
)
def test_what_a_cluster_cannot_run_is_refused_by_name(
    cli: CliHarness, statement: str, options: tuple[str, ...], said: list[str]
) -> None:
    assert submit(cli, statement, *options, "--yes") == 2
    assert not missing_keys(" ".join(cli.err.split()), *said)
    assert cli.cluster.created == []


def test_a_password_of_this_machine_is_not_sent_to_a_cluster(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_DATABASE_PASSWORD", PASSWORD)
    assert submit(cli, TRAIN, *SERVER, "--yes") == 2
    assert "--database-secret" in cli.err
    assert PASSWORD not in cli.err


def test_options_of_a_job_need_submit(cli: CliHarness) -> None:
    assert cli.edl("sql", TRAIN, "--database", "sqlite:///people.db", "--dry-run") == 2
    assert "--submit" in cli.err


def test_the_models_of_the_volume_are_shown(cli: CliHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.cluster.admissions.append(lambda thing: thing.update(status={"phase": "Running"}))
    models = tmp_path / "claim" / "shared" / "edl-sql" / "models"
    (tmp_path / "claim").mkdir()
    serve(tmp_path / "claim", monkeypatch)
    assert submit(cli, "SHOW MODELS") == 0
    assert "no models" in cli.out
    ModelRegistry(models).save(describe("returns"), [])
    (models / "returns" / "1" / "model.keras").write_text("weights", encoding="utf-8")
    assert submit(cli, "SHOW MODELS; SHOW TRAIN returns") == 0
    assert not missing_keys(cli.out, "returns", "accuracy 0.9", "postgresql://db/shop", "SELECT * FROM orders")
    assert submit(cli, "SHOW TRAIN return") == 2
    assert "did you mean returns" in cli.err
    assert cli.cluster.objects_of_kind(PODS) == []


def test_a_model_of_the_volume_is_dropped(cli: CliHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.cluster.admissions.append(lambda thing: thing.update(status={"phase": "Running"}))
    models = ModelRegistry(tmp_path / "claim" / "shared" / "edl-sql" / "models")
    (tmp_path / "claim").mkdir()
    serve(tmp_path / "claim", monkeypatch)
    for name in ("returns", "returns", "sales"):
        models.save(describe(name), [])
    assert submit(cli, "DROP MODEL return") == 2
    assert "did you mean returns" in cli.err
    assert submit(cli, "DROP MODEL returns@1") == 0
    assert "dropped returns, version 1" in cli.out
    assert (models.versions("returns"), models.versions("sales")) == ([2], [1])
    assert submit(cli, "DROP MODEL returns; SHOW MODELS") == 0
    assert [each.name for each in models.list_models()] == ["sales"]
    assert "returns" not in cli.out.split("model", 1)[1]


def test_a_module_of_the_user_is_copied_once_and_named_in_the_job(
    cli: CliHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.cluster.admissions.append(
        lambda thing: thing.update(status={"phase": "Running"}) if thing["kind"] == "Pod" else None
    )
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "own.py").write_text(OWN, encoding="utf-8")
    (tmp_path / "claim").mkdir()
    serve(tmp_path / "claim", monkeypatch)
    statement = TRAIN.replace("LABEL", "TO TRAIN 'zoo/own.py' WITH model.units=4 LABEL")
    for run in ("first", "second"):
        options = ("--database", "sqlite:////data/shop.db", "--yes", "--detach", "--set", f"name={run}")
        assert submit(cli, statement, *options) == 0, cli.err
    (copied,) = (tmp_path / "claim").rglob("own.py")
    folder = copied.parent.relative_to(tmp_path / "claim" / "shared")
    assert folder.parent == Path("edl-sql/modules")
    assert copied.read_text(encoding="utf-8") == OWN
    spec = json.loads(cli.cluster.objects_of_kind(CONFIGMAPS)[0]["data"]["job.json"])
    assert spec["model"]["definition"] == "own.custom_model"
    request = json.loads(spec["master"]["prepare"][-1])
    assert (request["modules"], request["definition"]) == (f"/data/{folder}", "own.custom_model")
    assert submit(cli, statement, *SERVER, "--dry-run") == 0
    assert "# The module own (1 files) would be copied to files:/shared/edl-sql/modules/" in cli.out


def describe(name: str) -> ModelDescription:
    return ModelDescription(
        name=name, version=0, created=1.0, statement="SELECT * FROM orders LABEL x INTO returns", estimator="dnn",
        database="postgresql://db/shop", digest="d", rows=300, label="x", label_type="string", label_kind="BINARY",
        classes=("no", "yes"), columns={}, inputs=(), prepared_label="x", metrics={"accuracy": 0.9}, history=[],
        plan=[],
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------
# Results, for dataframes and cells.


@pytest.fixture
def ended(cli: CliHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster on which each job is done at once; the folder ``sql`` of its run on the claim."""
    cli.cluster.admissions.append(
        lambda thing: thing.update(status={"phase": "Running"}) if thing["kind"] == "Pod" else None
    )
    folder = tmp_path / "claim" / "shared" / "edl" / "team" / "mnist" / "run" / "sql"
    folder.mkdir(parents=True)
    cli.cluster.published = ended_status()
    serve(tmp_path / "claim", monkeypatch)
    write_description(describe("m"), folder / "model.json")
    return folder


def write_result(folder: Path, **content: object) -> None:
    (folder / "finished.json").write_text(json.dumps(content), encoding="utf-8")


OPTIONS: dict[str, Any] = {"database": "sqlite:////data/shop.db", "submit": True, "job_file": "cluster.yaml"}


def test_an_explanation_is_printed_when_its_job_has_ended(cli: CliHarness, ended: Path) -> None:
    write_result(ended, rows=300, importance=[["age", 0.25, 0.01], ["town", 0.0, 0.0]])
    options = ("--database", "sqlite:////data/shop.db", "--yes", "--set", "name=mnist")
    assert submit(cli, "SELECT * FROM people TO EXPLAIN m", *options) == 0
    assert not missing_keys(cli.out, "300 rows", "age", "0.2500", "0.0100", "accuracy lost")
    spec = json.loads(cli.cluster.objects_of_kind(CONFIGMAPS)[0]["data"]["job.json"])
    assert (spec["task"], spec["data"]["prediction"]) == ("predict", ["/data/edl-sql/rows"])


def test_the_command_that_brings_a_copied_database_back_names_namespace_and_image(cli: CliHarness, ended: Path) -> None:
    write_result(ended, model="m", table="guessed", rows=2)
    options = ("--database", "sqlite:///people.db", "--yes", "--set", "name=mnist", "-n", "team")
    assert submit(cli, PREDICT, *options) == 0
    copies = r"edl data cp files:/shared/edl-sql/databases/\w+/people\.db -n team --image registry\.example/edl:1 FILE"
    assert re.search(copies, " ".join((cli.out + cli.err).split()))


def test_python_gets_dataframes_of_jobs_and_prints_nothing(cli: CliHarness, ended: Path) -> None:
    pytest.importorskip("pandas")
    settings = ["name=mnist"]
    write_result(ended, model="m", version=1)
    assert edl.sql(TRAIN, **OPTIONS, settings=settings).to_dict("records") == [{"accuracy": 0.9}]
    write_result(ended, metrics={"loss": 0.5}, rows=300)
    evaluate = "SELECT * FROM people TO EVALUATE m"
    assert edl.sql(evaluate, **OPTIONS, settings=settings).to_dict("records") == [{"loss": 0.5}]
    write_result(ended, model="m", table="guessed", rows=2)
    pq.write_table(pa.table({"age": [20, 60], "guess": ["no", "yes"]}), ended / "predictions.parquet")
    assert list(edl.sql(PREDICT, **OPTIONS, settings=settings)["guess"]) == ["no", "yes"]
    assert edl.sql("SHOW MODELS", **OPTIONS).empty
    captured = cli.capsys.readouterr()
    assert captured.out + captured.err == ""


def test_python_gets_an_exception_for_a_job_that_failed(cli: CliHarness, ended: Path) -> None:
    pytest.importorskip("pandas")
    cli.cluster.published = ended_status("Failed", "the query has no rows", "BadInput")
    with pytest.raises(JobFailedError, match="the query has no rows"):
        edl.sql(TRAIN, **OPTIONS, settings=["name=mnist"])
    with pytest.raises(BadInputError, match=r"job_file.*\n.*submit=True"):
        edl.sql(TRAIN, job_file="cluster.yaml")
    with pytest.raises(BadInputError, match="line 1, column 1"):
        edl.sql("SELECT * FROM people", **OPTIONS)


def test_a_cell_submits_and_its_dataframe_is_that_of_the_job(
    cli: CliHarness, ended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    interactive = pytest.importorskip("IPython.core.interactiveshell")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    config = pytest.importorskip("traitlets.config")
    interactive.InteractiveShell.clear_instance()
    shell = interactive.InteractiveShell.instance(config=config.Config({"HistoryManager": {"enabled": False}}))
    shell.run_line_magic("load_ext", "edl")
    write_result(ended, rows=300, importance=[["age", 0.25, 0.01]])
    line = "%%edl --submit --job-file cluster.yaml --set name=mnist --database sqlite:////data/shop.db"
    done = shell.run_cell(f"{line} --to matters\nSELECT * FROM people TO EXPLAIN m")
    assert done.success, done.error_in_exec
    assert list(shell.user_ns["matters"]["column"]) == ["age"]
    assert "Job mnist submitted" in cli.capsys.readouterr().out
    refused = shell.run_cell("%%edl --set name=mnist\nSHOW MODELS")
    assert "--submit" in str(refused.error_in_exec)
    interactive.InteractiveShell.clear_instance()


def test_the_prompt_submits_what_is_typed(cli: CliHarness, ended: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = []

    def type_statements(
        run: Callable[[str], int], database: str, models: Callable[[], list[str]], dialect: str
    ) -> None:
        codes.append(run(f"{TRAIN};"))
        assert (database, models(), dialect) == ("sqlite:////data/shop.db", [], "sqlite")

    monkeypatch.setattr("edl.cli.sql._is_terminal", lambda: True)
    monkeypatch.setattr("edl.cli.sql_prompt.open_prompt", type_statements)
    options = ("--database", "sqlite:////data/shop.db", "--yes", "--set", "name=mnist")
    assert cli.edl("sql", "--submit", "--job-file", "cluster.yaml", *options) == 0
    assert codes == [0]
    assert "Job mnist submitted" in cli.out


# --------------------------------------------------------------------------------------------------
# The page *SQL in, model out*, word for word: what it says of a cluster. e2e/test_sql.py has a cluster.


def test_what_the_page_submits_is_a_job_with_what_its_file_says(
    cli: CliHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = DOCS / "sql.md"
    (command,) = (each.text for each in blocks(page) if "--submit" in each.text)
    (section,) = re.findall(r"^```yaml\n(image: .*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "cluster.yaml").write_text(section, encoding="utf-8")
    with closing(sqlite3.connect("shop.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (price INTEGER, returned TEXT)")
    cli.cluster.claim("fileserver-claim")
    cli.cluster.admissions.append(
        lambda thing: thing.update(status={"phase": "Running"}) if thing["kind"] == "Pod" else None
    )
    (tmp_path / "claim").mkdir()
    serve(tmp_path / "claim", monkeypatch)
    program, *words = shlex.split(command)
    assert program == "edl"
    # Nobody answers here, and no master runs.
    assert cli.edl(*words, "--yes", "--detach") == 0, cli.err
    (copied,) = (tmp_path / "claim" / "edl-sql" / "databases").rglob("shop.db")
    spec = json.loads(cli.cluster.objects_of_kind(CONFIGMAPS)[0]["data"]["job.json"])
    assert (spec["name"], spec["image"], spec["workers"]["max"]) == ("returns", "edl/edl:dev", 4)
    request = json.loads(spec["master"]["prepare"][-1])
    assert request["statement"] == "SELECT * FROM orders LABEL returned INTO returns"
    assert request["database"] == f"sqlite:////data/{copied.relative_to(tmp_path / 'claim')}"
