"""edl sql --submit: a file of SQLite goes to the volume, trains a model while a worker is lost, gets predictions."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from e2e.jobs import ClusterJob, delete_pod
from e2e.ledger import STORAGE, FetchedRun
from e2e.namespaces import Namespace
from e2e.pods import SMALL_CPU
from e2e.programs import Done, ProgramError
from e2e.volume import CLAIM, MOUNT

from edl.api.cluster_port import Role
from edl.simulation.ledger_recount import find_ledger_problems
from edl.sql_jobs.demo_table import ROWS, make_demo

EPOCHS, MINIBATCH = 5, 8
"""Too few epochs for training to end early, and enough steps to lose a worker in."""
TRAIN = (
    f"SELECT * FROM employee TO TRAIN dnn WITH train.epochs={EPOCHS}, train.minibatch_size={MINIBATCH} "
    "LABEL income INTO my_elasticdl_model"
)
PREDICT = "SELECT * FROM employee TO PREDICT guessed.guess USING my_elasticdl_model"


def try_submit(namespace: Namespace, database: Path, statement: str, name: str) -> tuple[ClusterJob, Done]:
    """``edl sql --submit`` with a data scientist's rights; it returns when the master has started."""
    small = {"resources": {"cpu": SMALL_CPU, "memory": "1Gi"}}
    base = {
        "image": namespace.images.training,
        "volumes": [{"claim": CLAIM, "mount": MOUNT}],
        "master": small,
        "workers": {"min": 1, "max": 2, "resources": {"cpu": 0.1, "memory": "1Gi"}},
    }
    job = ClusterJob.write(namespace, {"name": name, **base})
    options = ("--job-file", job.file, "--database", f"sqlite:///{database}", "--yes", "--detach")
    return job, namespace.user.edl("sql", statement, "--submit", *options, seconds=300)


def submit(namespace: Namespace, database: Path, statement: str, name: str) -> ClusterJob:
    """The same, of a statement that must be accepted."""
    job, done = try_submit(namespace, database, statement, name)
    if done.returncode:
        raise ProgramError(f"edl sql --submit: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return job


def wait_complete(job: ClusterJob) -> None:
    how = job.wait_end()
    assert how == "Complete", f"{job.name}: {how}, {job.page('failure.json')}"


@pytest.mark.in_turn(2)
def test_a_statement_trains_while_a_worker_is_lost_and_its_model_predicts(namespace: Namespace) -> None:
    database = namespace.folder / "edl-demo.db"
    make_demo(database)

    job = submit(namespace, database, TRAIN, "my-elasticdl-model")
    job.wait_training(workers=2)
    delete_pod(namespace, job.pod_name(Role.WORKER, 0))
    job.wait_for("a new worker", lambda: 2 in job.workers() or None)
    wait_complete(job)
    summary = job.wait_for("its summary", lambda: job.page("summary.json"), 10)
    assert summary["records_lost"] == summary["records_rolled_back"] == 0
    assert summary["records_repeated"] <= 2 * MINIBATCH
    run = FetchedRun.fetch_run(job)
    assert find_ledger_problems(run.ledger, EPOCHS) == []
    assert "my-elasticdl-model" in namespace.user.edl("list").stdout

    predicting = submit(namespace, database, PREDICT, "my-elasticdl-model-predict")
    wait_complete(predicting)
    summary = predicting.wait_for("its summary", lambda: predicting.page("summary.json"), 10)
    assert (summary["records_done"], summary["records_lost"]) == (ROWS, 0)

    volume = namespace.volume.fetch_folder("/edl-sql", namespace.folder / "volume")
    stored = json.loads((volume / "models" / "my_elasticdl_model" / "1" / "model.json").read_text())
    assert stored["metrics"]["accuracy"] > 0.8
    (copied,) = (volume / "databases").glob("*/edl-demo.db")
    with closing(sqlite3.connect(copied)) as connection:
        rows, agreed = connection.execute("SELECT count(*), avg(guess = income) FROM guessed").fetchone()
    assert rows == ROWS
    assert agreed > 0.8
    place = f"{STORAGE}/{namespace.name}/{predicting.name}/{predicting.uid}/sql"
    assert (namespace.volume.fetch_folder(place, namespace.folder / "predicted") / "predictions.parquet").exists()


@pytest.mark.in_turn(2)
def test_a_label_that_is_not_there_is_why_the_job_failed(namespace: Namespace) -> None:
    database = namespace.folder / "edl-demo.db"
    make_demo(database)
    job, done = try_submit(namespace, database, "SELECT * FROM employee LABEL salary INTO never", "never")
    if done.returncode:  # the master had ended while the command waited for its start
        assert "salary" in done.stderr
        return
    assert job.wait_end() == "Failed"
    assert "salary" in job.why()
