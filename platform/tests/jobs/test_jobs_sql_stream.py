"""edl sql --stream with real training: the model is that of extracted rows, whoever is killed on the way."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from signal import SIGKILL
from types import SimpleNamespace
from typing import Any

import pytest
from support import fork_server
from support.databases import (
    PASSWORD,
    USER,
    PostgresServer,
    find_mariadb,
    find_postgres,
    require,
    start_mariadb,
    start_postgres,
)
from support.job_process import STARTED

from edl.api.errors import EdlError
from edl.ops.fault_injection import RolePids
from edl.sql_jobs import edl_process
from edl.sql_jobs.model_registry import ModelDescription, ModelRegistry
from edl.sql_jobs.statement_parser import parse_with_texts
from edl.sql_jobs.statement_runner import Observer, StatementRunner, TrainResult, dialect_of

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(600)]

ROWS = 3000
COLUMNS = (
    "n AS id, (n * 7919) % 101 AS age, concat('town ', n % 40) AS town, CASE WHEN n % 9 > 0 THEN n / 7.0 END AS pay, "
    "(n * 7919) % 101 > 50 AS rich"
)


class Listener(Observer):
    """Keeps the lines of the job; at the first step, something may happen."""

    def __init__(self) -> None:
        self.lines = list[Mapping[str, Any]]()
        self.pids = RolePids()

    def job_event(self, event: Mapping[str, Any]) -> None:
        self.lines.append(event)
        self.pids.record_event(event)
        if event.get("event") == "status" and int(event.get("step") or 0) > 0:
            self.at_step()

    def at_step(self) -> None:
        """Called at each line with a step."""


class KillsAWorker(Listener):
    """Kills the first worker, once."""

    def __init__(self) -> None:
        super().__init__()
        self.killed = 0

    def at_step(self) -> None:
        workers = self.pids.pids_of("worker")
        if not self.killed and workers:
            self.killed = min(workers.values())
            os.kill(self.killed, SIGKILL)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDL_DATABASE_USER", USER)
    monkeypatch.setenv("EDL_DATABASE_PASSWORD", PASSWORD)


@pytest.fixture(autouse=True)
def forked_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs of statements are forked, as those of ``edl run`` are in other tests."""
    if not STARTED:
        # What the module uses of subprocess, and no other module's.
        names = {name: getattr(subprocess, name) for name in ("PIPE", "TimeoutExpired")}
        monkeypatch.setattr(edl_process, "subprocess", SimpleNamespace(**names, Popen=fork_server.start_edl))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with start_postgres(require(find_postgres(), "postgresql")) as started:
        started.connect(
            f"CREATE TABLE people AS SELECT {COLUMNS} FROM generate_series(1, {ROWS}) AS n",
            "ALTER TABLE people ADD PRIMARY KEY (id)",
        )
        yield started


def train(database: str, settings: str, stream: str, listener: Listener | None = None) -> ModelDescription:
    text = f"SELECT * FROM people TO TRAIN dnn WITH {settings} LABEL rich INTO m"
    runner = StatementRunner(
        database, ModelRegistry(Path("models")), listener or Listener(), replaces=True, stream=stream
    )
    ((statement, own),) = parse_with_texts(text, dialect_of(database))
    done = runner.run(statement, own)
    assert isinstance(done, TrainResult)
    return done.model


@pytest.mark.repetition
def test_the_model_is_that_of_extracted_rows(server: PostgresServer) -> None:
    extracted = train(server.address, "train.epochs=2", "")
    streamed = train(server.address, "train.epochs=2", "snapshot")
    assert (streamed.rows, streamed.digest, streamed.plan) == (extracted.rows, extracted.digest, extracted.plan)
    assert streamed.history == extracted.history
    assert streamed.metrics == extracted.metrics
    assert (streamed.stream, extracted.stream) == ("snapshot", "")
    assert (streamed.folder / "job.yaml").read_bytes() == (extracted.folder / "job.yaml").read_bytes()
    files = [path.read_bytes() for path in Path().rglob("*") if path.is_file()]
    assert not [content for content in files if PASSWORD.encode() in content]


def test_a_killed_worker_loses_no_row(server: PostgresServer) -> None:
    listener = KillsAWorker()
    settings = "train.epochs=4, train.minibatch_size=32, strategy.name='AllReduce', workers.min=1, workers.max=2"
    model = train(server.address, settings, "snapshot", listener)
    summary = listener.lines[-1]
    assert listener.killed
    assert summary["workers_lost"] == 1
    assert summary["records_lost"] == 0
    assert summary["records_done"] == summary["records_total"] == 4 * (ROWS - ROWS // 5)
    assert model.metrics["accuracy"] > 0.8


@pytest.mark.repetition
def test_a_snapshot_that_is_lost_on_the_way_ends_the_job(server: PostgresServer) -> None:
    class LosesTheSnapshot(Listener):
        done = False

        def at_step(self) -> None:
            if not self.done:
                self.done = True
                server.connect(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND "
                    "backend_type = 'client backend'"
                )

    with pytest.raises(EdlError, match="the snapshot is gone"):
        train(server.address, "train.epochs=40, train.minibatch_size=32", "snapshot", LosesTheSnapshot())
    assert not list(Path().rglob("model.json"))
    assert not list(Path().rglob("stream.json"))


@pytest.mark.repetition
def test_mariadb_trains_without_a_snapshot() -> None:
    with start_mariadb(require(find_mariadb(), "mariadb-server")) as maria:
        maria.connect(
            f"CREATE TABLE people AS SELECT {COLUMNS} FROM (SELECT seq AS n FROM seq_1_to_{ROWS}) AS numbers",
            "ALTER TABLE people ADD PRIMARY KEY (id)",
        )
        extracted = train(maria.address, "train.epochs=2", "")
        streamed = train(maria.address, "train.epochs=2", "inconsistent")
    assert streamed.metrics == extracted.metrics
    assert (streamed.stream, streamed.digest) == ("inconsistent", extracted.digest)
