"""What a master does for a statement before the records are counted, and after the last one. Workers are replaced."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from ruamel.yaml import YAML
from sql_jobs.conftest import DatabaseUnderTest
from support.databases import PASSWORD

from edl.api.errors import BadInputError, EdlError, JobFailedError, StorageError
from edl.jobfile.loader import dump_job_spec, load_job_file
from edl.jobfile.strategy_choice import count_parameter_servers
from edl.sql_jobs import cluster_commands
from edl.sql_jobs.cluster_commands import FOLDER, finish, prepare
from edl.sql_jobs.cluster_job import ClusterOptions, cluster_job
from edl.sql_jobs.cluster_request import ClusterRequest
from edl.sql_jobs.model_registry import ModelRegistry
from edl.sql_jobs.statement_folders import with_predictions
from edl.sql_jobs.statement_parser import parse_with_texts
from edl.storage.run_directory import RunDirectory, write_run_spec

SMALL = "SELECT * FROM people LABEL rich INTO m"
TRAIN = "SELECT * FROM people TO TRAIN linear WITH train.epochs=3 LABEL rich INTO m"
PREDICT = "SELECT * FROM people TO PREDICT guessed.guess USING m"
METRICS = {"loss": 0.25, "accuracy": 0.9}


class Volume:
    """A volume with a database, and the runs of jobs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "people.db"
        self.address = f"sqlite:///{self.database}"
        with closing(sqlite3.connect(self.database)) as connection, connection:
            connection.execute("CREATE TABLE people (age INTEGER, town TEXT, rich TEXT)")
            connection.executemany(
                "INSERT INTO people VALUES (?, ?, ?)",
                [(20 + at % 60, f"t{at % 5}", "yes" if at % 60 > 30 else "no") for at in range(300)],
            )

    def query(self, text: str) -> list[Any]:
        with closing(sqlite3.connect(self.database)) as connection, connection:
            return connection.execute(text).fetchall()

    def submit(self, statement: str, name: str = "r1", **options: Any) -> tuple[ClusterRequest, RunDirectory]:
        """A run with its job file as it was submitted."""
        run = RunDirectory(self.folder / "runs" / name)
        run.path.mkdir(parents=True)
        ((parsed, text),) = parse_with_texts(statement, "sqlite")
        base = {"image": "edl/edl:dev", "volumes": [{"claim": "files", "mount": str(self.folder)}]}
        wanted = ClusterOptions(self.address, {**base, **options.pop("base", {})}, **options)
        file = run.path / "submitted.json"
        file.write_text(json.dumps(cluster_job(parsed, text, wanted, str(self.folder))), encoding="utf-8")
        spec = load_job_file(file, wanted.settings)
        write_run_spec(run, dump_job_spec(spec))
        return ClusterRequest.from_text(spec.master.prepare[-1]), run

    @property
    def models(self) -> ModelRegistry:
        return ModelRegistry(self.folder / "edl-sql" / "models")

    def train(self, name: str = "train", **options: Any) -> RunDirectory:
        """A run that trained, in which workers exported a model."""
        request, run = self.submit(TRAIN, name, **options)
        prepare(request, run)
        run.export.mkdir()
        (run.export / "model.keras").write_text("weights", encoding="utf-8")
        event = {"event": "evaluation_ended", "time": 1.0, "step": 5, "metrics": METRICS}
        run.events.write_text(json.dumps(event) + "\n", encoding="utf-8")
        finish(run, {"metrics": METRICS})
        return run


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    return Volume(tmp_path)


def write_predictions(run: RunDirectory, ranges: Sequence[tuple[int, int]]) -> None:
    """What workers write: who is older than 50 is rich."""
    ages = pq.read_table(run.path / FOLDER / "data")["age"].to_numpy()
    (run.path / "predictions").mkdir()
    for start, end in ranges:
        outputs = (ages[start:end, np.newaxis] > 50).astype(float)
        np.savez(run.path / "predictions" / f"x-{start}-{end}.npz", source="x", start=start, end=end, outputs=outputs)


def test_rows_and_module_are_written_and_the_job_file_is_completed(volume: Volume) -> None:
    request, run = volume.submit(TRAIN, base={"train": {"epochs": 9, "minibatches_per_task": 2}})
    prepare(request, run)
    spec = load_job_file(run.spec)
    folder = run.path / FOLDER
    assert spec.model.zoo == str(folder)
    assert (folder / "model.py").exists()
    assert spec.data.training == (str(folder / "data" / "training"),)
    assert sum(pq.read_table(folder / "data" / part).num_rows for part in ("training", "validation")) == 300
    assert spec.data.schema is not None
    # The statement counts more than the job file, which counts more than the number of rows.
    assert (spec.train.epochs, spec.train.minibatches_per_task, spec.train.minibatch_size) == (3, 2, 32)
    # 240 rows are 8 minibatches, so 4 steps of two workers.
    assert spec.train.evaluation_steps == 4
    assert spec.image == "edl/edl:dev"
    assert not (folder / "rows").exists()


def test_a_setting_of_the_command_line_counts_most(volume: Volume) -> None:
    request, run = volume.submit(TRAIN, settings=("train.epochs=7",))
    prepare(request, run)
    assert load_job_file(run.spec).train.epochs == 7


@pytest.mark.parametrize("setting", ["model.params.dropout=0.5", "model={}", "data.schema={label: x}", "export=null"])
def test_a_setting_that_the_statement_would_overwrite_is_refused(volume: Volume, setting: str) -> None:
    with pytest.raises(BadInputError, match="which is the statement's"):
        volume.submit(TRAIN, settings=(setting,))


class FakeRuns:
    """Stands for ``run_edl`` in the master's pod."""

    def __init__(self, linear_loss: float) -> None:
        self.linear_loss = linear_loss
        self.documents = dict[str, Any]()
        self.error: EdlError | None = None
        self.summary_has_metrics = True

    def run(
        self,
        verb: str,
        folder: Path,
        arguments: Sequence[str],
        on_event: Any,
        *,
        job: str,
        environment: Mapping[str, str],
    ) -> Mapping[str, Any]:
        assert verb == "run"
        # A variable of the master would make the job one of its pods.
        assert not [name for name in environment if name.startswith("EDL_")]
        if self.error is not None:
            raise self.error
        self.documents[job] = document = YAML(typ="safe").load(folder / job)
        for part in document["data"]["training"] if job == "refit.yaml" else [document["data"]["training"]]:
            assert pq.read_table(folder / part).num_rows
        if "export=null" not in arguments:
            (folder / "export").mkdir()
            (folder / "export" / "model.keras").write_text("weights of all rows", encoding="utf-8")
        metrics = {"loss": self.linear_loss, "log_loss": self.linear_loss}
        if job != "refit.yaml":
            on_event({"event": "evaluation_ended", "step": 3, "metrics": metrics})
        return {"metrics": metrics} if self.summary_has_metrics else {}


def train_small(volume: Volume, name: str = "small", text: str = SMALL, **options: Any) -> RunDirectory:
    """A run that trained a small table, before it is finished."""
    request, run = volume.submit(text, name, **options)
    prepare(request, run)
    run.export.mkdir()
    (run.export / "model.keras").write_text("measured weights", encoding="utf-8")
    events = [
        {"event": "evaluation_ended", "time": 1.0, "step": step, "metrics": {"loss": loss}}
        for step, loss in ((4, 0.5), (8, 0.25), (12, 0.75))
    ]
    run.events.write_text("".join(json.dumps(each) + "\n" for each in events), encoding="utf-8")
    return run


SUMMARY = {"metrics": {"loss": 0.25, "log_loss": 0.25}, "records_done": 240 * 9}


@pytest.mark.parametrize(("linear_loss", "estimator"), [(0.75, "dnn"), (0.25, "linear")])
def test_the_master_trains_a_small_table_again_as_one_machine_does(
    volume: Volume, monkeypatch: pytest.MonkeyPatch, linear_loss: float, estimator: str
) -> None:
    fake = FakeRuns(linear_loss)
    monkeypatch.setattr(cluster_commands, "run_edl", fake.run)
    monkeypatch.setenv("EDL_JOB_UID", "uid")
    run = train_small(volume)
    finish(run, SUMMARY)
    (model,) = volume.models.list_models()
    assert list(fake.documents) == ["linear.yaml", "refit.yaml"]
    assert (model.estimator, model.choice.partition(" with")[0].split(" ")[1]) == (
        estimator, "network" if estimator == "dnn" else "linear",
    )  # fmt: skip
    assert (model.folder / "model.keras").read_text(encoding="utf-8") == "weights of all rows"
    refit = fake.documents["refit.yaml"]
    assert refit["strategy"] == {"name": "Local"}
    # The second of three evaluations was the best, of 9 epochs: 6. A step had a minibatch of each of two workers.
    epochs, minibatch = (6, 64) if estimator == "dnn" else (300, 300)
    assert (refit["train"]["epochs"], refit["train"]["minibatch_size"], model.refit_epochs) == (
        epochs,
        minibatch,
        epochs,
    )
    assert not (run.path / FOLDER / "data").exists()


def test_a_linear_model_whose_summary_has_no_metrics_is_compared_by_its_last_evaluation(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRuns(0.25)
    fake.summary_has_metrics = False
    monkeypatch.setattr(cluster_commands, "run_edl", fake.run)
    finish(train_small(volume), SUMMARY)
    (model,) = volume.models.list_models()
    assert (model.estimator, model.metrics["log_loss"]) == ("linear", 0.25)


def test_a_model_that_cannot_be_trained_again_is_the_one_that_was_measured(
    volume: Volume, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeRuns(0.75)
    fake.error = JobFailedError("edl run failed: no memory")
    monkeypatch.setattr(cluster_commands, "run_edl", fake.run)
    finish(train_small(volume), SUMMARY)
    (model,) = volume.models.list_models()
    assert (model.folder / "model.keras").read_text(encoding="utf-8") == "measured weights"
    assert (model.refit_epochs, model.choice, model.estimator) == (0, "", "dnn")
    assert "because training again failed: edl run failed: no memory" in capsys.readouterr().err


def test_a_pod_without_room_for_a_second_training_keeps_the_model_that_was_measured(
    volume: Volume, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def find_no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run = train_small(volume)
    monkeypatch.setattr(cluster_commands.shutil, "copytree", find_no_room)
    finish(run, SUMMARY)
    (model,) = volume.models.list_models()
    assert (model.folder / "model.keras").read_text(encoding="utf-8") == "measured weights"
    errors = capsys.readouterr().err
    assert "because training again failed" in errors
    assert os.strerror(errno.ENOSPC) in errors


def test_the_reason_names_no_folder_that_is_gone(
    volume: Volume, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeRuns(0.75)
    fake.error = JobFailedError("edl run failed", where="/tmp/gone", hint="the log is /tmp/gone/edl.log")
    monkeypatch.setattr(cluster_commands, "run_edl", fake.run)
    finish(train_small(volume), SUMMARY)
    assert "/tmp/gone" not in capsys.readouterr().err


def test_the_copy_of_a_master_that_was_killed_is_removed_by_the_next_one(
    volume: Volume, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Killed(BaseException):
        pass

    def be_killed(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "pod"))
    (tmp_path / "pod").mkdir()
    monkeypatch.setattr(cluster_commands, "run_edl", be_killed)
    run = train_small(volume)
    # A process that is killed removes nothing, and a container that starts again in the same pod has its files.
    with monkeypatch.context() as patch:
        patch.setattr(TemporaryDirectory, "cleanup", lambda self: self._finalizer.detach())
        patch.setattr(TemporaryDirectory, "__exit__", lambda self, *_: bool(self._finalizer.detach()) and None)
        with pytest.raises(Killed):
            finish(run, SUMMARY)
    assert list((tmp_path / "pod").rglob("*.parquet"))
    monkeypatch.setattr(cluster_commands, "run_edl", FakeRuns(0.75).run)
    finish(run, SUMMARY)
    assert list((tmp_path / "pod").iterdir()) == []


def test_masters_that_are_lost_while_they_train_again_do_not_begin_for_ever(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    def be_killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster_commands, "run_edl", be_killed)
    run = train_small(volume)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            finish(run, SUMMARY)
        assert volume.models.list_models() == []
    finish(run, SUMMARY)
    assert [each.refit_epochs for each in volume.models.list_models()] == [0]


@pytest.mark.parametrize(
    ("text", "options", "again"),
    [
        (SMALL.replace("LABEL", "TO TRAIN dnn LABEL"), {}, ["refit.yaml"]),
        (SMALL.replace("LABEL", "TO TRAIN dnn WITH train.epochs=3 LABEL"), {}, []),
        (SMALL.replace("LABEL", "TO TRAIN dnn WITH validation.refit=false LABEL"), {}, []),
        (SMALL, {"base": {"train": {"epochs": 3}}}, []),
        (SMALL, {"settings": ("train.max_steps=3",)}, []),
        (SMALL, {"settings": ("train={epochs: 3}",)}, []),
        (
            SMALL.replace("LABEL", "TO TRAIN dnn WITH validation.refit=true LABEL"),
            {"base": {"train": {"epochs": 3}}},
            ["refit.yaml"],
        ),
    ],
)
def test_who_says_how_long_a_model_trains_gets_no_second_training(
    volume: Volume, monkeypatch: pytest.MonkeyPatch, text: str, options: dict[str, Any], again: list[str]
) -> None:
    fake = FakeRuns(0.75)
    monkeypatch.setattr(cluster_commands, "run_edl", fake.run)
    finish(train_small(volume, text=text, **options), SUMMARY)
    assert list(fake.documents) == again
    assert len(volume.models.list_models()) == 1


@pytest.mark.parametrize(
    ("setting", "options", "strategy"),
    [
        ("", {}, "ParameterServer"),
        ("WITH strategy.name='AllReduce'", {}, "AllReduce"),
        ("", {"base": {"strategy": {"name": "AllReduce"}}}, "AllReduce"),
        ("", {"settings": ("strategy.name=AllReduce",)}, "AllReduce"),
        # Fields that only AllReduce has.
        ("WITH strategy.global_batch=64", {}, "AllReduce"),
        ("WITH evaluation.max_workers=0", {}, "AllReduce"),
        ("", {"base": {"evaluation": {"max_workers": 0}}}, "AllReduce"),
        ("", {"settings": ("evaluation.max_workers=0",)}, "AllReduce"),
    ],
)
def test_vectors_of_many_ids_lie_on_parameter_servers_unless_a_strategy_is_named(
    volume: Volume, setting: str, options: dict[str, Any], strategy: str
) -> None:
    column = "COLUMN EMBEDDING(CATEGORY_HASH(town, 2000000), 16)"
    text = f"SELECT * FROM people TO TRAIN dnn {setting} {column} LABEL rich INTO m"
    request, run = volume.submit(text, **options)
    assert load_job_file(run.spec).strategy.name == "AllReduce"
    prepare(request, run)
    spec = load_job_file(run.spec)
    assert spec.strategy.name == strategy
    # Without AllReduce a step has one minibatch, and 240 rows are 8 of these.
    assert spec.train.evaluation_steps == (8 if strategy == "ParameterServer" else 4)
    assert count_parameter_servers(spec) == (strategy == "ParameterServer")


def test_a_master_that_is_lost_while_it_prepares_is_followed_by_one_that_begins_again(volume: Volume) -> None:
    request, run = volume.submit(TRAIN)
    (run.path / FOLDER / "rows").mkdir(parents=True)
    (run.path / FOLDER / "rows" / "half.parquet").write_bytes(b"half")
    prepare(request, run)
    prepare(request, run)
    assert pq.read_table(run.path / FOLDER / "data" / "training").num_rows > 200


def test_the_model_is_registered_once_with_its_metrics_and_the_rows_go(volume: Volume) -> None:
    run = volume.train()
    (model,) = volume.models.list_models()
    assert (model.name, model.version, model.metrics, model.history) == ("m", 1, METRICS, [[5, METRICS]])
    assert (model.folder / "model.py").exists()
    assert not (run.path / FOLDER / "data").exists()
    # A master that was lost before it removed the rows.
    (run.path / FOLDER / "data").mkdir()
    finish(run, {"metrics": METRICS})
    assert not (run.path / FOLDER / "data").exists()
    # A master that was lost before it noted that it had finished.
    (run.path / FOLDER / "finished.json").unlink()
    finish(run, {"metrics": METRICS})
    assert volume.models.versions("m") == [1]


def test_a_model_that_exists_is_refused_before_the_query_runs(volume: Volume, monkeypatch: pytest.MonkeyPatch) -> None:
    volume.train()
    monkeypatch.setattr(cluster_commands, "extract_rows", lambda *_, **__: pytest.fail("the query was run"))
    with pytest.raises(BadInputError, match="exists"):
        prepare(*volume.submit(TRAIN, "again"))


def test_a_model_that_is_replaced_gets_another_version(volume: Volume) -> None:
    volume.train()
    volume.train("again", replaces=True)
    assert volume.models.versions("m") == [1, 2]


def test_predictions_become_parquet_and_one_table(volume: Volume) -> None:
    volume.train()
    request, run = volume.submit(PREDICT, "predict")
    prepare(request, run)
    spec = load_job_file(run.spec)
    assert (spec.task, spec.model.weights) == ("predict", str(volume.models.folder / "m" / "1" / "model.keras"))
    # The range 0-100 was written again, as another one, after a worker was lost.
    write_predictions(run, [(200, 300), (0, 60), (0, 100), (50, 200)])
    finish(run, {"metrics": {}})
    assert volume.query("SELECT count(*), sum(guess = 'yes'), sum((guess = 'yes') = (age > 50)) FROM guessed") == [
        (300, 145, 300)
    ]
    assert pq.read_table(run.path / FOLDER / "predictions.parquet").num_rows == 300
    assert not (run.path / FOLDER / "rows").exists()


def test_predictions_are_complete_though_two_masters_write_them_at_once_and_one_was_killed(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume.train()
    request, run = volume.submit(PREDICT, "predict")
    prepare(request, run)
    write_predictions(run, [(0, 300)])
    left = run.path / FOLDER / ".predictions.parquet.killed.tmp"
    left.write_bytes(b"half")

    def predict_while_another_master_writes(*given: Any, **options: Any) -> Iterator[Any]:
        with monkeypatch.context() as other:
            other.setattr(cluster_commands, "with_predictions", with_predictions)
            for batch in with_predictions(*given, **options):
                yield batch
                cluster_commands._finish_statement(run, {"metrics": {}})

    monkeypatch.setattr(cluster_commands, "with_predictions", predict_while_another_master_writes)
    finish(run, {"metrics": {}})
    assert volume.query("SELECT count(*) FROM guessed") == [(300,)]
    assert pq.read_table(run.path / FOLDER / "predictions.parquet").num_rows == 300
    assert not list((run.path / FOLDER).glob(".*.tmp"))


def test_a_full_volume_is_said_with_the_file_of_the_predictions(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume.train()
    request, run = volume.submit(PREDICT, "predict")
    prepare(request, run)
    write_predictions(run, [(0, 300)])

    def write(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(pq.ParquetWriter, "write_batch", write)
        with pytest.raises(StorageError, match="No space left") as raised:
            finish(run, {"metrics": {}})
    file = run.path / FOLDER / "predictions.parquet"
    assert raised.value.where == str(file)
    assert "disk is full" in (raised.value.hint or "")
    assert not list(file.parent.glob("*predictions*")), "its space is free again"
    finish(run, {"metrics": {}})
    assert volume.query("SELECT count(*) FROM guessed") == [(300,)]


def test_rows_that_cannot_be_read_are_not_blamed_on_the_file_of_the_predictions(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume.train()
    request, run = volume.submit(PREDICT, "predict")
    prepare(request, run)
    write_predictions(run, [(0, 300)])

    def read(*_: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", read)
    with pytest.raises(StorageError, match="cannot read the rows and their predictions: Input/output error") as raised:
        finish(run, {"metrics": {}})
    assert raised.value.where == str(run.path)


def test_a_table_that_a_lost_master_wrote_is_not_written_again(volume: Volume) -> None:
    volume.train()
    request, run = volume.submit(PREDICT, "predict")
    prepare(request, run)
    write_predictions(run, [(0, 300)])
    finish(run, {"metrics": {}})
    (run.path / FOLDER / "finished.json").unlink()
    volume.query("UPDATE guessed SET guess = 'seen'")
    finish(run, {"metrics": {}})
    assert volume.query("SELECT DISTINCT guess FROM guessed") == [("seen",)]


def test_a_table_that_somebody_else_made_meanwhile_is_not_replaced(volume: Volume) -> None:
    volume.train()
    request, run = volume.submit(PREDICT, "predict")
    prepare(request, run)
    write_predictions(run, [(0, 300)])
    volume.query("CREATE TABLE guessed (a)")
    for _ in range(2):
        with pytest.raises(BadInputError, match="such a table"):
            finish(run, {"metrics": {}})
    assert volume.query("SELECT * FROM guessed") == []


def test_a_table_that_exists_is_refused_before_the_query_runs(volume: Volume, monkeypatch: pytest.MonkeyPatch) -> None:
    volume.train()
    monkeypatch.setattr(cluster_commands, "extract_rows", lambda *_, **__: pytest.fail("the query was run"))
    with pytest.raises(BadInputError, match="such a table"):
        prepare(*volume.submit("SELECT * FROM people TO PREDICT people.guess USING m", "predict"))


def test_metrics_become_a_table_if_the_statement_names_one(volume: Volume) -> None:
    volume.train()
    request, run = volume.submit("SELECT * FROM people TO EVALUATE m INTO scores", "evaluate")
    prepare(request, run)
    assert load_job_file(run.spec).data.validation == (str(run.path / FOLDER / "data"),)
    finish(run, {"metrics": METRICS})
    assert volume.query("SELECT accuracy FROM scores") == [(0.9,)]


def test_a_metric_that_has_no_value_on_the_rows_is_null(volume: Volume) -> None:
    volume.train()
    request, run = volume.submit("SELECT * FROM people WHERE rich = 'no' TO EVALUATE m INTO scores", "evaluate")
    prepare(request, run)
    finish(run, {"metrics": {**METRICS, "auc": 0.0}})
    assert volume.query("SELECT accuracy, auc FROM scores") == [(0.9, None)]
    assert json.loads((run.path / FOLDER / "finished.json").read_text(encoding="utf-8"))["metrics"]["auc"] is None


def test_a_model_that_was_measured_on_one_value_says_so(volume: Volume) -> None:
    settings = "validation.select='SELECT * FROM people LIMIT 1', validation.metrics='R2'"
    text = f"SELECT * FROM people TO TRAIN linear WITH {settings} LABEL age INTO n"
    request, run = volume.submit(text)
    prepare(request, run)
    run.export.mkdir()
    (run.export / "model.keras").write_text("weights", encoding="utf-8")
    finish(run, {"metrics": {**METRICS, "r2": 0.0}})
    (model,) = volume.models.list_models()
    assert model.metrics == {**METRICS, "r2": None}


def test_an_evaluation_may_name_its_metrics(volume: Volume) -> None:
    volume.train()
    text = "SELECT * FROM people TO EVALUATE m WITH validation.metrics='AUC' INTO scores"
    request, run = volume.submit(text, "evaluate")
    prepare(request, run)
    finish(run, {"metrics": METRICS})
    assert volume.query("SELECT * FROM scores") == [(METRICS["loss"],)]


def test_an_error_has_its_place_and_the_exit_code_of_bad_input(
    volume: Volume, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    request, run = volume.submit("SELECT *\nFROM people LABEL poor INTO m")
    monkeypatch.setenv("EDL_RUN_DIR", str(run.path))
    assert cluster_commands.main(["prepare", request.to_text()]) == 2
    errors = capsys.readouterr().err
    assert "poor" in errors
    assert "line 2" in errors


def test_a_request_of_another_version_is_refused() -> None:
    with pytest.raises(BadInputError, match="request"):
        ClusterRequest.from_text('{"statement": "", "other": 1}')


def test_credentials_of_a_server_are_in_no_file_of_the_job(volume: Volume, any_database: DatabaseUnderTest) -> None:
    people = volume.query("SELECT age, town, rich FROM people")
    any_database.execute("CREATE TABLE people (age INTEGER, town VARCHAR(9), rich VARCHAR(9))")
    any_database.execute("INSERT INTO people VALUES " + ", ".join(map(str, people)))
    volume.address = any_database.address
    volume.train()
    request, run = volume.submit(PREDICT, "predict")
    prepare(request, run)
    write_predictions(run, [(0, 300)])
    finish(run, {"metrics": {}})
    (run.path / FOLDER / "finished.json").unlink()
    finish(run, {"metrics": {}})
    assert any_database.execute("SELECT count(*) FROM guessed WHERE (guess = 'yes') = (age > 50)") == [(300,)]
    assert not [path for path in volume.folder.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]


def test_an_explanation_scores_shuffled_copies_that_workers_predicted(volume: Volume) -> None:
    volume.train()
    request, run = volume.submit("SELECT * FROM people TO EXPLAIN m INTO matters", "explain")
    prepare(request, run)
    spec = load_job_file(run.spec)
    folder = run.path / FOLDER
    assert (spec.task, spec.data.prediction) == ("predict", (str(folder / "data"),))
    # The rows as they are, and three copies for each of two columns.
    assert pq.read_table(folder / "data").num_rows == 300 * 7
    write_predictions(run, [(0, 1000), (1000, 2100)])
    finish(run, {})
    assert volume.query('SELECT "column", importance > 0.1 FROM matters') == [("age", 1), ("town", 0)]
    result = json.loads((folder / "finished.json").read_text(encoding="utf-8"))
    assert result["rows"] == 300
    assert [each[0] for each in result["importance"]] == ["age", "town"]
    left = {path.name for path in folder.iterdir()}
    assert not left & {"rows", "data", "all", "permuted"}
    finish(run, {})
    with pytest.raises(BadInputError, match=r"line 1, column .* matters: there is such a table"):
        prepare(volume.submit("SELECT * FROM people TO EXPLAIN m INTO matters", "again")[0], run)


def test_a_module_of_the_user_is_taken_from_the_volume(volume: Volume, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "import keras\nfrom edl_columns import *\n\n"
        "def custom_model(units=3):\n    given = inputs()\n    return keras.Model(given, output(features(given)))\n"
    )
    (volume.folder / "zoo").mkdir()
    (volume.folder / "zoo" / "own.py").write_text(text, encoding="utf-8")
    copied = volume.folder / "edl-sql" / "modules" / "abc"
    copied.mkdir(parents=True)
    (copied / "own.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(volume.folder)
    statement = TRAIN.replace("TO TRAIN linear WITH", "TO TRAIN 'zoo/own.py' WITH model.units=5,")
    request, run = volume.submit(statement, modules=str(copied))
    # The pod has no such folder.
    (volume.folder / "zoo" / "own.py").unlink()
    prepare(request, run)
    spec = load_job_file(run.spec)
    assert (spec.model.definition, spec.model.params) == ("own.custom_model", {"units": 5})
    assert spec.model.zoo == str(run.path / FOLDER)
    assert (run.path / FOLDER / "own.py").read_text(encoding="utf-8") == text
    assert (run.path / FOLDER / "edl_columns.py").exists()
    description = json.loads((run.path / FOLDER / "model.json").read_text(encoding="utf-8"))
    assert (description["estimator"], description["statement"]) == ("own.custom_model", statement)
