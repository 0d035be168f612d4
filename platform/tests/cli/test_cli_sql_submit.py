"""edl sql --submit: what is created on a cluster, what is copied there, and what is refused before."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from cli.cli_harness import CliHarness, cli_in_job_folder
from cli.pod_files import serve
from support.text_keys import missing_keys

from edl.cluster.kubernetes.resource_kinds import CONFIGMAPS, JOBS, PODS
from edl.sql_jobs.model_registry import ModelDescription, ModelRegistry

pytest.importorskip("sqlglot")

GOLDEN = Path(__file__).with_name("golden") / "sql_submit.yaml"
TRAIN = "SELECT * FROM people LABEL rich INTO m"
PREDICT = "SELECT * FROM people TO PREDICT guessed.guess USING m"
BASE = "image: registry.example/edl:1\nvolumes: [{claim: files, mount: /data, sub_path: shared}]\nworkers: {max: 3}\n"
PASSWORD = "tr0ub4dor"
SERVER = ("--database", "postgresql://db.example/shop")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CliHarness:
    cli = cli_in_job_folder(tmp_path, monkeypatch, capsys)
    (tmp_path / "cluster.yaml").write_text(BASE, encoding="utf-8")
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


def test_with_and_set_override_the_job_file(cli: CliHarness) -> None:
    statement = TRAIN.replace("LABEL", "TO TRAIN dnn WITH workers.max=4, optimizer.name='SGD' LABEL")
    options = ("--database", "sqlite:////data/shop.db", "--yes", "--detach")
    assert submit(cli, statement, *options, "--set", "workers.min=2", "--set", "name=mine") == 0
    spec = json.loads(cli.cluster.objects_of_kind(CONFIGMAPS)[0]["data"]["job.json"])
    assert (spec["name"], spec["workers"]["min"], spec["workers"]["max"]) == ("mine", 2, 4)
    assert spec["strategy"]["name"] == "AllReduce"


@pytest.mark.parametrize(
    ("statement", "options", "said"),
    [
        ("SELECT * FROM people TO EXPLAIN m", SERVER, ["this machine", "--submit"]),
        ("SELECT * FROM people", SERVER, ["this machine"]),
        ("SHOW MODELS", ("--set", "volumes=[{host_path: /data, mount: /data}]"), ["claim"]),
        ("DROP MODEL m", SERVER, ["this machine"]),
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
            ["people.db", "no claim"],
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


def describe(name: str) -> ModelDescription:
    return ModelDescription(
        name=name, version=0, created=1.0, statement="SELECT * FROM orders LABEL x INTO returns", estimator="dnn",
        database="postgresql://db/shop", digest="d", rows=300, label="x", label_type="string", label_kind="BINARY",
        classes=("no", "yes"), columns={}, inputs=(), prepared_label="x", metrics={"accuracy": 0.9}, history=[],
        plan=[],
    )  # fmt: skip
