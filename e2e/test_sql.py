"""edl sql --submit: a file of SQLite on the volume, and a server with a Secret, train a model while pods are lost."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from contextlib import closing

import pytest
from e2e.database_server import ADDRESS, PASSWORD, DatabasePod
from e2e.install import SECRET
from e2e.jobs import ClusterJob, delete_pod
from e2e.ledger import STORAGE, FetchedRun
from e2e.namespaces import Namespace
from e2e.pods import SMALL_CPU
from e2e.programs import EDL, ROOT, Done, ProgramError, call
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


def write_job(namespace: Namespace, name: str) -> ClusterJob:
    """A job file with what the cluster must know."""
    base = {
        "image": namespace.images.training,
        "volumes": [{"claim": CLAIM, "mount": MOUNT}],
        "master": {"resources": {"cpu": SMALL_CPU, "memory": "1Gi"}},
        "workers": {"min": 1, "max": 2, "resources": {"cpu": 0.1, "memory": "1Gi"}},
    }
    return ClusterJob.write(namespace, {"name": name, **base})


def try_submit(
    namespace: Namespace, database: str, statement: str, name: str, *options: str
) -> tuple[ClusterJob, Done]:
    """``edl sql --submit`` with a data scientist's rights; it returns when the master has started."""
    job = write_job(namespace, name)
    arguments = ("--job-file", job.file, "--database", database, "--yes", "--detach", *options)
    return job, namespace.user.edl("sql", statement, "--submit", *arguments, seconds=300)


def submit(namespace: Namespace, database: str, statement: str, name: str, *options: str) -> ClusterJob:
    """The same, of a statement that must be accepted."""
    job, done = try_submit(namespace, database, statement, name, *options)
    if done.returncode:
        raise ProgramError(f"edl sql --submit: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return job


def wait_complete(job: ClusterJob) -> None:
    how = job.wait_end()
    assert how == "Complete", f"{job.name}: {how}, {job.page('failure.json')}"


def lose_a_worker(namespace: Namespace, job: ClusterJob) -> None:
    """Delete a worker of a training; each record must be trained once in each epoch."""
    job.wait_training(workers=2)
    delete_pod(namespace, job.pod_name(Role.WORKER, 0))
    job.wait_for("a new worker", lambda: 2 in job.workers() or None)
    wait_complete(job)
    summary = job.wait_for("its summary", lambda: job.page("summary.json"), 10)
    assert summary["records_lost"] == summary["records_rolled_back"] == 0
    assert summary["records_repeated"] <= 2 * MINIBATCH
    run = FetchedRun.fetch_run(job)
    assert find_ledger_problems(run.ledger, EPOCHS) == []


def wait_predicted(job: ClusterJob) -> None:
    wait_complete(job)
    summary = job.wait_for("its summary", lambda: job.page("summary.json"), 10)
    assert (summary["records_done"], summary["records_lost"]) == (ROWS, 0)


@pytest.mark.in_turn(2)
def test_a_statement_trains_while_a_worker_is_lost_and_its_model_predicts(namespace: Namespace) -> None:
    database = namespace.folder / "edl-demo.db"
    make_demo(database)

    job = submit(namespace, f"sqlite:///{database}", TRAIN, "my-elasticdl-model")
    lose_a_worker(namespace, job)
    assert "my-elasticdl-model" in namespace.user.edl("list").stdout

    predicting = submit(namespace, f"sqlite:///{database}", PREDICT, "my-elasticdl-model-predict")
    wait_predicted(predicting)

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
    job, done = try_submit(
        namespace, f"sqlite:///{database}", "SELECT * FROM employee LABEL salary INTO never", "never"
    )
    if done.returncode:  # the master had ended while the command waited for its start
        assert "salary" in done.stderr
        return
    assert job.wait_end() == "Failed"
    assert "salary" in job.why()


@pytest.mark.in_turn(0)
def test_a_server_with_a_secret_trains_a_model_and_gets_its_predictions(namespace: Namespace) -> None:
    demo = namespace.folder / "edl-demo.db"
    make_demo(demo)
    server = DatabasePod.start(namespace)
    assert server.copy_table(demo, "employee") == ROWS

    job = submit(namespace, ADDRESS, TRAIN, "my-elasticdl-model", "--database-secret", SECRET)
    lose_a_worker(namespace, job)

    predict = "SELECT * FROM employee TO PREDICT guessed.guess USING my_elasticdl_model"
    predicting = submit(namespace, ADDRESS, predict, "my-elasticdl-model-predict", "--database-secret", SECRET)
    wait_predicted(predicting)
    rows = "SELECT count(*), count(DISTINCT id), avg((guess = income)::int) FROM guessed"
    ((count, ids, agreed),) = server.execute(rows)
    assert (int(count), int(ids)) == (ROWS, ROWS)
    assert float(agreed) > 0.8

    # A table that exists is refused, and stays.
    server.execute("DELETE FROM guessed WHERE id > 1")
    again, _ = try_submit(namespace, ADDRESS, predict, "my-elasticdl-model-predict", "--database-secret", SECRET)
    assert again.wait_end() == "Failed"
    assert "guessed" in again.why()
    assert server.execute("SELECT count(*) FROM guessed") == [["1"]]

    _assert_password_is_nowhere(namespace, job, predicting)


def _assert_password_is_nowhere(namespace: Namespace, *jobs: ClusterJob) -> None:
    """Only the Secret has it: no object, no log, and no file of the volume."""
    objects = namespace.kubectl("get", "jobs,pods,configmaps,services,events", "-o", "json")
    assert ADDRESS in objects
    assert PASSWORD not in objects
    volume = namespace.volume.fetch_folder("", namespace.folder / "volume")
    files = [path for path in volume.rglob("*") if path.is_file()]
    for job in jobs:
        assert any(job.uid in path.parts for path in files), "the logs of its run are on the volume, too"
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []


MODULE = """
import keras
from edl_columns import callbacks, eval_metrics_fn, features, inputs, loss, optimizer, output
from hidden import activation


def custom_model(units=4):
    given = inputs()
    return keras.Model(given, output(keras.layers.Dense(units, activation=activation())(features(given))))
"""


@pytest.mark.in_turn(1)
def test_a_module_of_ones_own_is_explained_and_removed(namespace: Namespace) -> None:
    demo = namespace.folder / "edl-demo.db"
    make_demo(demo)
    (namespace.folder / "mine.py").write_text(MODULE)
    (namespace.folder / "hidden.py").write_text('def activation():\n    return "relu"\n')
    database = f"sqlite:///{demo}"
    query = "SELECT age, hours_per_week, income FROM employee WHERE hours_per_week IS NOT NULL"
    module = namespace.folder / "mine.py"
    train = f"{query} TO TRAIN '{module}' WITH model.units=8, train.epochs=2 LABEL income INTO mine"
    wait_complete(submit(namespace, database, train, "mine"))

    def run(statement: str) -> str:
        """A statement that is waited for; what the command prints."""
        arguments = ("--submit", "--job-file", write_job(namespace, "other").file, "--database", database, "--yes")
        done = namespace.user.edl("sql", statement, *arguments, seconds=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "mine" in run("SHOW MODELS")
    assert "units" in run("SHOW TRAIN mine")
    explained = run(f"{query} TO EXPLAIN mine")
    assert {"age", "hours_per_week"} <= set(explained.split())
    run("DROP MODEL mine")
    assert "mine" not in run("SHOW MODELS")


@pytest.mark.in_turn(0)
def test_the_page_of_sql_trains_on_a_cluster(namespace: Namespace) -> None:
    """The command of docs/sql.md and its job file, word for word, but for namespace, image and sizes of pods."""
    page = (ROOT / "docs" / "sql.md").read_text()
    command = re.search(r"^\$ (edl sql --submit .+)$", page, re.MULTILINE)
    fields = re.search(r"^```yaml\n(image: .+?)^```", page, re.MULTILINE | re.DOTALL)
    assert command is not None
    assert fields is not None
    small = "resources: {cpu: 0.1, memory: 1Gi}"
    text = fields[1].replace("edl/edl:dev", namespace.images.training)
    text = text.replace("workers: {max: 4}", f"workers: {{max: 4, {small}}}") + f"master: {{{small}}}\n"
    assert text.count(small) == 2
    (namespace.folder / "cluster.yaml").write_text(text)
    make_demo(namespace.folder / "shop.db")
    with closing(sqlite3.connect(namespace.folder / "shop.db")) as connection:
        connection.execute("ALTER TABLE employee RENAME TO orders")
        connection.execute("ALTER TABLE orders RENAME COLUMN income TO returned")

    words = [namespace.name if word == "team-a" else word for word in shlex.split(command[1])]
    account = {"KUBECONFIG": str(namespace.user.kubeconfig)}
    # Here is nobody whom the command could ask.
    done = call(EDL, *words[1:], "--yes", env=account, cwd=namespace.folder, seconds=400)
    assert done.returncode == 0, done.stdout + done.stderr
    wait_complete(ClusterJob(namespace, "returns", namespace.folder / "cluster.yaml"))
    (namespace.folder / "printed.txt").write_text(done.stdout)
    stored = namespace.volume.fetch_folder("/edl-sql/models/returns/1", namespace.folder / "model")
    assert json.loads((stored / "model.json").read_text())["metrics"]["accuracy"] > 0.8
