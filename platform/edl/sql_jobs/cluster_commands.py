"""The two commands of a statement's job on a cluster, which its master runs: docs/design/0014-sql-on-a-cluster.md.

``python -m edl.sql_jobs.cluster_commands prepare REQUEST`` reads the rows and writes data, module and the rest of the
job file. ``… finish`` registers the model, or writes the table. Only these two see the database.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import astuple, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import pyarrow.parquet as pq

from edl.api.errors import BadInputError, EdlError
from edl.api.exit_codes import SIGTERM_EXIT
from edl.api.job_spec import JobSpec
from edl.jobfile.loader import dump_job_spec, load_job_file
from edl.jobfile.strategy_choice import uses_all_reduce
from edl.sql_jobs.cluster_job import find_length
from edl.sql_jobs.cluster_request import ClusterRequest
from edl.sql_jobs.edl_process import run_edl
from edl.sql_jobs.job_settings import REFIT_SETTING
from edl.sql_jobs.model_registry import (
    DESCRIPTION_FILE,
    MODEL_FILE,
    ModelDescription,
    ModelRegistry,
    read_description,
    write_description,
)
from edl.sql_jobs.permutation_importance import PermutedRows, importance_table, score_permutations
from edl.sql_jobs.prediction_output import read_predictions
from edl.sql_jobs.query_extraction import ExtractedRows
from edl.sql_jobs.statement_folders import (
    PreparedTraining,
    check_target,
    extract_rows,
    measured_on,
    metrics_table,
    model_files,
    named_metrics,
    prepare_evaluate,
    prepare_explain,
    prepare_predict,
    prepare_train,
    refuse_attributes,
    take_metrics,
    take_probabilities,
    with_predictions,
    write_result,
)
from edl.sql_jobs.statement_parser import parse_with_texts
from edl.sql_jobs.statement_runner import dialect_of
from edl.sql_jobs.statements import (
    Attribute,
    EvaluateStatement,
    ExplainStatement,
    JobStatement,
    ModelName,
    PredictStatement,
    Statement,
    TableName,
    TrainStatement,
)
from edl.sql_jobs.table_writer import count_rows
from edl.sql_jobs.training_sequence import (
    FurtherTrainings,
    KeptTraining,
    MeasuredTraining,
    train_again,
    with_kept,
    with_measured,
)
from edl.sql_jobs.training_settings import STRATEGY_SETTING, TOO_MANY_TO_REFIT
from edl.sql_jobs.user_module import ZOO_SETTING
from edl.storage.durable_files import JsonLinesTail, replace_file, translate_os_errors, write_json
from edl.storage.run_directory import RunDirectory, write_run_spec
from edl.storage.run_weights import OUTPUT_DIRECTORY

FOLDER = "sql"
"""Of the run directory: what a statement becomes."""
DONE_FILE, PREDICTIONS_FILE = "finished.json", "predictions.parquet"
"""What came out of a statement."""
_REQUEST_FILE, _WRITING_FILE, _ROWS_FILE = "request.json", "writing.json", "rows.txt"
_PERMUTED_FOLDER = "permuted"
_FURTHER_FILE, _ATTEMPTS_FILE = "further.json", "attempts.txt"
"""What trains after the job, and how often a master began with that."""
_MOST_ATTEMPTS = 2
"""A master whose memory is too small for it is killed each time."""
_PROGRESS_SECONDS = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    run = RunDirectory(Path(os.environ["EDL_RUN_DIR"]))
    try:
        if words[:1] == ["prepare"]:
            prepare(ClusterRequest.from_text(words[1]), run)
        else:
            # A master that must leave ends what this process trains, too.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(SIGTERM_EXIT))
            finish(run, json.load(sys.stdin))
    except EdlError as error:
        print(f"edl: {error}", file=sys.stderr)
        return error.exit_code
    return 0


# --------------------------------------------------------------------------------------------------
# Before the records are counted.


def prepare(request: ClusterRequest, run: RunDirectory) -> None:
    """Read the rows of the statement, and write what the job trains or predicts into its run directory.

    Raises:
        EdlError: the statement cannot run.
    """
    folder = run.path / FOLDER
    with translate_os_errors(folder, "write the rows"):
        # Of a master that was lost meanwhile. Rows are read again, in one snapshot.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        statement, text = _parse(request)
        changes = _prepare_folder(request, statement, text, folder, load_job_file(run.spec))
        (folder / _REQUEST_FILE).write_text(request.to_text(), encoding="utf-8")
    _change_spec(run, changes, request.settings)


def _parse(request: ClusterRequest) -> tuple[Statement, str]:
    return parse_with_texts(request.statement, dialect_of(request.database))[0]


def _prepare_folder(
    request: ClusterRequest, statement: Statement, text: str, folder: Path, submitted: JobSpec
) -> dict[str, Any]:
    """Write the files; returns the sections of the job file that depend on the rows."""
    registry = ModelRegistry(Path(request.models))
    if isinstance(statement, TrainStatement):
        registry.check_new(statement.into, replace_model=request.replaces)
        statement = _with_strategy(_with_copied_module(statement, request), submitted)
        return _prepare_training_job(request, statement, text, folder, submitted)
    assert isinstance(statement, EvaluateStatement | PredictStatement | ExplainStatement)
    return _prepare_model_use(request, statement, registry.find(statement.model), folder)


def _prepare_training_job(
    request: ClusterRequest, statement: TrainStatement, text: str, folder: Path, submitted: JobSpec
) -> dict[str, Any]:
    rows = _extract(request, statement, folder)
    prepared = prepare_train(
        statement,
        text,
        rows,
        request.database,
        folder,
        query_seconds=request.query_seconds,
        refit_obstacle=TOO_MANY_TO_REFIT,
    )
    write_description(prepared.model, folder / DESCRIPTION_FILE)
    _print(f"{prepared.counts.training:,} rows to train on, {prepared.counts.validation:,} for validation")
    _plan_refit(request, statement, prepared, folder)
    for name, use, reason in prepared.model.plan:
        _print(f"{name}: {use}, because {reason}")
    return _training_sections(request, prepared, folder, submitted)


def _plan_refit(request: ClusterRequest, statement: TrainStatement, prepared: PreparedTraining, folder: Path) -> None:
    """Note that the master trains the model again on all rows, or say why it does not."""
    settings = prepared.settings
    obstacle = settings.refit_reason
    if settings.refits and REFIT_SETTING not in statement.attributes:
        obstacle = find_length(request.train, request.settings)
    if settings.refits and not obstacle:
        FurtherTrainings.from_prepared(prepared).write(folder / _FURTHER_FILE)
        _print("when the model is measured, the master trains it again on all rows")
    elif obstacle:
        _print(f"the model does not train again on all rows: {obstacle}")


def _training_sections(
    request: ClusterRequest, prepared: PreparedTraining, folder: Path, submitted: JobSpec
) -> dict[str, Any]:
    settings, document = prepared.settings, prepared.document
    named = {name.partition(".")[2] for name in settings.fields if name.startswith("train.")}
    train = {name: value for name, value in request.train.items() if name not in named}
    suggested = dict(document["train"])
    needs_servers = request.chooses_strategy and settings.strategy == "ParameterServer"
    if needs_servers:
        _print(f"strategy ParameterServer: the vectors of categories have {settings.vector_numbers:,} numbers")
    if uses_all_reduce(submitted) and not needs_servers and "evaluation_steps" not in named:
        # A step has a minibatch of every worker: still an evaluation in an epoch.
        suggested["evaluation_steps"] = -(-suggested["evaluation_steps"] // submitted.workers.max)
    data = {part: [str(folder / "data" / part)] for part in ("training", "validation")}
    return {
        "model": {
            "zoo": str(folder),
            "definition": document["model"]["definition"],
            "params": document["model"].get("params", {}),
        },
        "data": {**data, "schema": document["data"]["schema"]},
        "train": {**suggested, **train},
        **({"strategy": {"name": "ParameterServer"}} if needs_servers else {}),
    }


def _prepare_model_use(
    request: ClusterRequest,
    statement: EvaluateStatement | PredictStatement | ExplainStatement,
    model: ModelDescription,
    folder: Path,
) -> dict[str, Any]:
    # before the rows are read
    if isinstance(statement, PredictStatement):
        take_probabilities(statement, model, ignores_case=dialect_of(request.database) != "postgres")
    elif isinstance(statement, EvaluateStatement):
        take_metrics(statement, model)
    else:
        refuse_attributes(statement.attributes)
    if statement.into is not None:
        check_target(request.database, statement.into, replaces=request.replaces)
    rows = _extract(request, statement, folder)
    if isinstance(statement, PredictStatement):
        prepare_predict(statement, model, rows, folder)
    else:
        if isinstance(statement, EvaluateStatement):
            prepare_evaluate(statement, model, rows, folder)
        else:
            prepare_explain(statement, model, rows, folder).save(folder / _PERMUTED_FOLDER)
        shutil.rmtree(folder / "rows")
    write_description(model, folder / DESCRIPTION_FILE)
    (folder / _ROWS_FILE).write_text(str(rows.rows), encoding="utf-8")
    return _stored_job(model, folder, "validation" if isinstance(statement, EvaluateStatement) else "prediction")


def _with_copied_module(statement: TrainStatement, request: ClusterRequest) -> TrainStatement:
    """The statement with the module of the user that was copied to the volume, in place of that of their machine."""
    if not request.modules:
        return statement
    zoo = Attribute(request.modules, statement.estimator_place or statement.into.place)
    return replace(statement, estimator=request.definition, attributes={**statement.attributes, ZOO_SETTING: zoo})


def _with_strategy(statement: TrainStatement, submitted: JobSpec) -> TrainStatement:
    """The statement with the name of its job's strategy, if it sets fields that another strategy may not have."""
    given = statement.attributes
    place = next((each.place for name, each in given.items() if name.startswith(("strategy.", "evaluation."))), None)
    if place is None or STRATEGY_SETTING in given:
        return statement
    return replace(statement, attributes={**given, STRATEGY_SETTING: Attribute(submitted.strategy.name, place)})


def _extract(request: ClusterRequest, statement: JobStatement, folder: Path) -> ExtractedRows:
    said = time.monotonic()

    def say(rows: int) -> None:
        nonlocal said
        if time.monotonic() - said >= _PROGRESS_SECONDS:
            said = time.monotonic()
            _print(f"reading the query: {rows:,} rows")

    rows = extract_rows(
        request.database, statement.select, folder, on_progress=say, query_seconds=request.query_seconds
    )
    _print(f"read {rows.rows:,} rows in {rows.seconds:.1f} s; writing them in the form of the model")
    return rows


def _stored_job(model: ModelDescription, folder: Path, data_set: str) -> dict[str, Any]:
    stored: dict[str, Any] = dump_job_spec(load_job_file(model.folder / "job.yaml"))
    return {
        "model": {
            "zoo": str(folder),
            "definition": stored["model"]["definition"],
            "params": stored["model"]["params"],
            "weights": str(model.folder / MODEL_FILE),
        },
        "data": {data_set: [str(folder / "data")], "schema": stored["data"]["schema"]},
        "train": {"minibatch_size": stored["train"]["minibatch_size"]},
    }


def _change_spec(run: RunDirectory, changes: Mapping[str, Mapping[str, Any]], settings: Sequence[str]) -> None:
    """Complete the job file of the run; what the user set with ``--set`` stays."""
    document: dict[str, Any] = dump_job_spec(load_job_file(run.spec))
    for section, values in changes.items():
        document[section] = {**document[section], **values}
    completed = run.path / FOLDER / "job.json"
    write_json(completed, document)
    # The others are in the job file as it was submitted, and not changed here.
    kept = [each for each in settings if each.startswith(("train.", "train="))]
    write_run_spec(run, dump_job_spec(load_job_file(completed, kept)), fsync=True)


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --------------------------------------------------------------------------------------------------
# After the last record.


def finish(run: RunDirectory, summary: Mapping[str, Any]) -> None:
    """Register the model of a training, or write the table of an evaluation or a prediction, once.

    Args:
        run: of the job.
        summary: of the job.

    Raises:
        EdlError: it cannot be written.
    """
    folder = run.path / FOLDER
    done = folder / DONE_FILE
    if not done.exists():
        result = _finish_statement(run, summary)
        write_json(done, result, fsync=True)
        _print(f"finished: {json.dumps(result)}")
    # Rows of a database do not stay behind, nor if the master that finished was lost before it removed them.
    for name in ("rows", "data", _PERMUTED_FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)
    for left in folder.glob(f".{PREDICTIONS_FILE}.*.tmp"):
        with suppress(OSError):
            left.unlink()


def _finish_statement(run: RunDirectory, summary: Mapping[str, Any]) -> dict[str, Any]:
    folder = run.path / FOLDER
    request = ClusterRequest.from_text((folder / _REQUEST_FILE).read_text(encoding="utf-8"))
    statement, _ = _parse(request)
    model = read_description(folder / DESCRIPTION_FILE)
    if isinstance(statement, TrainStatement):
        return _register(model, statement, ModelRegistry(Path(request.models)), run, summary)
    if isinstance(statement, PredictStatement):
        return _write_predictions(request, statement, model, run)
    if isinstance(statement, ExplainStatement):
        permuted = PermutedRows.load(folder / _PERMUTED_FOLDER)
        importance = score_permutations(permuted, read_predictions(run.path / OUTPUT_DIRECTORY), model)
        if statement.into is not None:
            _write_once(request, statement.into, importance_table(importance), folder, len(importance))
        return {"rows": permuted.rows, "importance": [astuple(each) for each in importance]}
    assert isinstance(statement, EvaluateStatement)
    rows = int((folder / _ROWS_FILE).read_text(encoding="utf-8"))
    metrics = measured_on(folder / "data", model)(summary["metrics"])
    metrics = named_metrics(metrics, take_metrics(statement, model))
    if statement.into is not None:
        _write_once(request, statement.into, metrics_table(metrics), folder, 1)
    return {"metrics": metrics, "rows": rows}


def _register(
    model: ModelDescription,
    statement: TrainStatement,
    registry: ModelRegistry,
    run: RunDirectory,
    summary: Mapping[str, Any],
) -> dict[str, Any]:
    for version in registry.versions(model.name):
        registered = registry.find(ModelName(model.name, version, statement.into.place))
        if (registered.created, registered.digest) == (model.created, model.digest):
            write_description(registered, run.path / FOLDER / DESCRIPTION_FILE)
            return {"model": model.name, "version": version}  # by a master that was lost right after
    first = MeasuredTraining.from_events(JsonLinesTail(run.events).poll(), summary)
    marked = measured_on(run.path / FOLDER / "data" / "validation", model)
    files = model_files(run.path / FOLDER, run.export)
    if not any(file.name == MODEL_FILE for file in files):
        raise BadInputError("the job exported no model", where=str(run.export), hint="leave export as it is")
    with ExitStack() as parts:
        if (again := _train_again(run, first, parts)) is None:
            saved = registry.save(with_measured(model, first, marked), files)
        else:
            kept, copy = again
            saved = registry.save(with_kept(model, kept, marked), model_files(copy, copy / "export"))
    # For whoever asks for the result.
    write_description(saved, run.path / FOLDER / DESCRIPTION_FILE)
    return {"model": saved.name, "version": saved.version}


def _train_again(run: RunDirectory, first: MeasuredTraining, parts: ExitStack) -> tuple[KeptTraining, Path] | None:
    """Do for a small table, in this pod, what a statement on one machine does after its first training.

    Args:
        run: of the job, whose own training is the first one.
        first: what it said.
        parts: end the folder that the model is in.

    Returns:
        The training and its folder; None if nothing is to be done, or it failed: what the job exported is a model, too.
    """
    folder = run.path / FOLDER
    if not (folder / _FURTHER_FILE).exists():
        return None
    attempts = folder / _ATTEMPTS_FILE
    before = len(attempts.read_text(encoding="utf-8").splitlines()) if attempts.exists() else 0
    prefix = _remove_earlier_copies(run)
    if before >= _MOST_ATTEMPTS:
        _print(f"the model that was measured is kept: {before} masters were lost while it trained again")
        return None
    # The child is a job of its own, and not the master of this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EDL_")}

    def train(job: str, *, exports: bool, has_validation: bool) -> MeasuredTraining:
        events = list[Mapping[str, Any]]()
        arguments = [] if exports else ["--set", "export=null"]
        summary = run_edl("run", copy, arguments, events.append, job=job, environment=environment)
        return MeasuredTraining.from_events(events, summary)

    try:
        with translate_os_errors(attempts, "write"), attempts.open("a", encoding="utf-8") as file:
            file.write("begun\n")
        with translate_os_errors(Path(gettempdir()), "write"):
            # On no volume, which may be slow.
            temporary = parts.enter_context(TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True))
            copy = Path(temporary) / FOLDER
            shutil.copytree(folder, copy)
            return train_again(copy, first, _for_one_machine(run), train, _print), copy
    except EdlError as error:
        # Its hint names a folder that goes now.
        _print(f"the model that was measured is kept, because training again failed: {error.message}")
        return None


def _remove_earlier_copies(run: RunDirectory) -> str:
    """Remove the copies of masters that were killed: a pod keeps ``/tmp``. Returns how the names of a run's begin."""
    prefix = f"edl-sql-{sha256(bytes(run.path)).hexdigest()[:16]}-"
    for left in Path(gettempdir()).glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    return prefix


def _for_one_machine(run: RunDirectory) -> FurtherTrainings:
    """The further trainings of a run, as the master can do them by itself."""
    further, spec = FurtherTrainings.read(run.path / FOLDER / _FURTHER_FILE), load_job_file(run.spec)
    dumped: dict[str, Any] = dump_job_spec(spec)
    document, train = further.document, dict(dumped["train"])
    if uses_all_reduce(spec):
        # A step of the first training had a minibatch of every worker.
        train["minibatch_size"] = min(further.rows.training, train["minibatch_size"] * spec.workers.max)
    kept = {name: document[name] for name in ("apiVersion", "name", "model", "data", "export")}
    return replace(further, document={**kept, "train": train, "strategy": {"name": "Local"}})


def _write_predictions(
    request: ClusterRequest, statement: PredictStatement, model: ModelDescription, run: RunDirectory
) -> dict[str, Any]:
    """Write rows with predictions as Parquet on the volume, and from there into the table."""
    folder = run.path / FOLDER
    parquet = folder / PREDICTIONS_FILE
    if not parquet.exists():
        files = sorted((folder / "rows").glob("*.parquet"))
        outputs = read_predictions(run.path / OUTPUT_DIRECTORY)
        batches = with_predictions(
            files,
            outputs,
            model,
            statement.column,
            probabilities=take_probabilities(statement, model),
            ignores_case=dialect_of(request.database) != "postgres",
        )
        with translate_os_errors(parquet, "write the predictions"), replace_file(parquet) as temporary:
            _write_parquet(temporary, _read_batches(run, batches))
    content = pq.ParquetFile(parquet)
    rows = content.metadata.num_rows
    _write_once(request, statement.into, content.iter_batches(), folder, rows)
    return {"model": model.name, "table": str(statement.into), "rows": rows}


def _read_batches(run: RunDirectory, batches: Iterable[Any]) -> Iterator[Any]:
    """The batches, which are read while others are written: errors of both have their own names."""
    with translate_os_errors(run.path, "read the rows and their predictions"):
        yield from batches


def _write_parquet(path: Path, batches: Iterable[Any]) -> None:
    writer: Any = None
    with ExitStack() as stack:
        for batch in batches:
            writer = writer or stack.enter_context(pq.ParquetWriter(path, batch.schema, compression="zstd"))
            writer.write_batch(batch)


def _write_once(request: ClusterRequest, table: TableName, batches: Any, folder: Path, rows: int) -> None:
    """Write a table, which a lost master may have done already: it was no table when the job began."""
    writing = folder / _WRITING_FILE
    if writing.exists() and not request.replaces:
        with suppress(EdlError):
            if count_rows(request.database, table.parts) == rows:
                return
    write_json(writing, {"table": str(table), "rows": rows}, fsync=True)
    write_result(request.database, table, batches, replaces=request.replaces)


if __name__ == "__main__":
    sys.exit(main())
