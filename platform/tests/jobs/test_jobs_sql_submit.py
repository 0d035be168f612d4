"""The job of edl sql --submit with real processes: the master reads the rows, a worker is lost, the model predicts."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.job_process import JobProcess

from edl.jobfile.loader import load_job_file
from edl.sql_jobs.cluster_job import ClusterOptions, cluster_job
from edl.sql_jobs.demo_table import ROWS, make_demo
from edl.sql_jobs.model_registry import ModelRegistry
from edl.sql_jobs.statement_parser import parse_with_texts
from edl.storage.run_directory import RunDirectory

pytestmark = [pytest.mark.jobs, pytest.mark.thorough, pytest.mark.timeout(900)]

EPOCHS, MINIBATCH = 6, 16
TRAIN = (
    f"SELECT * FROM employee TO TRAIN dnn WITH train.epochs={EPOCHS}, train.minibatch_size={MINIBATCH} "
    "LABEL income INTO m"
)


def write_job(volume: Path, statement: str) -> Path:
    """The job file of a statement. The volume is mounted where it is on this machine."""
    ((parsed, text),) = parse_with_texts(statement, "sqlite")
    base = {"image": "edl/edl:dev", "volumes": [{"claim": "files", "mount": str(volume)}]}
    options = ClusterOptions(f"sqlite:///{volume}/edl-demo.db", base)
    document = cluster_job(parsed, text, options, str(volume))
    file = volume / f"{document['name']}.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


def test_a_statement_trains_while_a_worker_is_killed_and_its_model_predicts(tmp_path: Path) -> None:
    make_demo(tmp_path / "edl-demo.db")
    with JobProcess(write_job(tmp_path, TRAIN), cwd=tmp_path) as job:
        job.wait_step(20, timeout=300)
        index = min(job.training())
        job.send("worker", index, signal.SIGKILL)
        assert job.wait(400) == 0, job.errors
        summary = job.summary()
    assert (summary["records_lost"], summary["records_rolled_back"], summary["workers_lost"]) == (0, 0, 1)
    assert summary["records_repeated"] <= MINIBATCH
    (model,) = ModelRegistry(tmp_path / "edl-sql" / "models").list_models()
    assert model.metrics["accuracy"] > 0.8

    predict = write_job(tmp_path, "SELECT * FROM employee TO PREDICT guessed.guess USING m")
    output = tmp_path / ".edl" / "local" / "m-predict" / "r1" / "predictions"
    options = ("--from", str(model.folder / "model.keras"), "--output", str(output))
    with JobProcess(predict, *options, cwd=tmp_path, command="predict") as job:
        assert job.wait(300) == 0, job.errors
    with closing(sqlite3.connect(tmp_path / "edl-demo.db")) as connection:
        rows, agreed = connection.execute("SELECT count(*), avg(guess = income) FROM guessed").fetchone()
    assert rows == ROWS
    assert agreed > 0.8


def test_the_master_compares_a_small_table_with_a_linear_model_and_trains_it_again(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "edl-demo.db")) as connection, connection:
        connection.execute("CREATE TABLE small (age INTEGER, town TEXT, rich TEXT)")
        rows = [(20 + at % 60, f"t{at % 5}", "yes" if at % 60 > 30 else "no") for at in range(300)]
        connection.executemany("INSERT INTO small VALUES (?, ?, ?)", rows)
    with JobProcess(write_job(tmp_path, "SELECT * FROM small LABEL rich INTO m"), cwd=tmp_path) as job:
        assert job.wait(600) == 0, job.errors
    (model,) = ModelRegistry(tmp_path / "edl-sql" / "models").list_models()
    assert model.choice
    assert model.refit_epochs >= 5
    assert model.estimator in ("dnn", "linear")
    assert (model.folder / "model.keras").stat().st_size
    assert "failed" not in job.errors


def test_vectors_of_many_ids_lie_on_a_parameter_server_that_nobody_named(tmp_path: Path) -> None:
    make_demo(tmp_path / "edl-demo.db")
    column = "COLUMN EMBEDDING(CATEGORY_HASH(occupation, 2000000), 16)"
    with JobProcess(write_job(tmp_path, TRAIN.replace("LABEL", f"{column} LABEL")), cwd=tmp_path) as job:
        assert job.wait(600) == 0, job.errors
    assert load_job_file(RunDirectory(tmp_path / ".edl" / "local" / "m" / "r1").spec).strategy.name == "ParameterServer"
    assert len(ModelRegistry(tmp_path / "edl-sql" / "models").list_models()) == 1
