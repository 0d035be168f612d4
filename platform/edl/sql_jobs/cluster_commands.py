"""The two commands of a statement's job on a cluster, which its master runs: docs/design/0014-sql-on-a-cluster.md.

``python -m edl.sql_jobs.cluster_commands prepare REQUEST`` reads the rows and writes data, module and the rest of the
job file. ``… finish`` registers the model, or writes the table. Only these two see the database.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from edl.api.errors import BadInputError, EdlError
from edl.api.job_spec import JobSpec
from edl.jobfile.loader import dump_job_spec, load_job_file
from edl.jobfile.strategy_choice import uses_all_reduce
from edl.sql_jobs.cluster_request import ClusterRequest
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
from edl.sql_jobs.training_settings import NOT_ON_A_CLUSTER
from edl.sql_jobs.user_module import ZOO_SETTING
from edl.storage.durable_files import JsonLinesTail, translate_os_errors, write_json
from edl.storage.run_directory import RunDirectory, write_run_spec
from edl.storage.run_weights import OUTPUT_DIRECTORY

FOLDER = "sql"
"""Of the run directory: what a statement becomes."""
DONE_FILE, PREDICTIONS_FILE = "finished.json", "predictions.parquet"
"""What came out of a statement."""
_REQUEST_FILE, _WRITING_FILE, _ROWS_FILE = "request.json", "writing.json", "rows.txt"
_PERMUTED_FOLDER = "permuted"
_PROGRESS_SECONDS = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    run = RunDirectory(Path(os.environ["EDL_RUN_DIR"]))
    try:
        if words[:1] == ["prepare"]:
            prepare(ClusterRequest.from_text(words[1]), run)
        else:
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
        statement = _with_copied_module(statement, request)
        rows = _extract(request, statement, folder)
        prepared = prepare_train(
            statement,
            text,
            rows,
            request.database,
            folder,
            query_seconds=request.query_seconds,
            refit_obstacle=NOT_ON_A_CLUSTER,
        )
        write_description(prepared.model, folder / DESCRIPTION_FILE)
        _print(f"{prepared.counts.training:,} rows to train on, {prepared.counts.validation:,} for validation")
        if prepared.settings.refit_reason:
            _print(f"the model does not train again on all rows: {prepared.settings.refit_reason}")
        for name, use, reason in prepared.model.plan:
            _print(f"{name}: {use}, because {reason}")
        named = {name.partition(".")[2] for name in prepared.settings.fields if name.startswith("train.")}
        train = {name: value for name, value in request.train.items() if name not in named}
        document = prepared.document
        suggested = dict(document["train"])
        if uses_all_reduce(submitted) and "evaluation_steps" not in named:
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
        }
    assert isinstance(statement, EvaluateStatement | PredictStatement | ExplainStatement)
    model = registry.find(statement.model)
    if isinstance(statement, PredictStatement):
        take_probabilities(statement, model)
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
    if done.exists():
        return
    request = ClusterRequest.from_text((folder / _REQUEST_FILE).read_text(encoding="utf-8"))
    statement, _ = _parse(request)
    model = read_description(folder / DESCRIPTION_FILE)
    if isinstance(statement, TrainStatement):
        result = _register(model, statement, ModelRegistry(Path(request.models)), run, summary)
    elif isinstance(statement, PredictStatement):
        result = _write_predictions(request, statement, model, run)
    elif isinstance(statement, ExplainStatement):
        permuted = PermutedRows.load(folder / _PERMUTED_FOLDER)
        importance = score_permutations(permuted, read_predictions(run.path / OUTPUT_DIRECTORY), model)
        result = {"rows": permuted.rows, "importance": [astuple(each) for each in importance]}
        if statement.into is not None:
            _write_once(request, statement.into, importance_table(importance), folder, len(importance))
    else:
        assert isinstance(statement, EvaluateStatement)
        rows = int((folder / _ROWS_FILE).read_text(encoding="utf-8"))
        metrics = measured_on(folder / "data", model)(summary["metrics"])
        metrics = named_metrics(metrics, take_metrics(statement, model))
        result = {"metrics": metrics, "rows": rows}
        if statement.into is not None:
            _write_once(request, statement.into, metrics_table(metrics), folder, 1)
    write_json(done, result, fsync=True)
    _print(f"finished: {json.dumps(result)}")
    # Rows of a database do not stay behind.
    for name in ("rows", "data", _PERMUTED_FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)


def _register(
    model: ModelDescription,
    statement: TrainStatement,
    registry: ModelRegistry,
    run: RunDirectory,
    summary: Mapping[str, Any],
) -> dict[str, Any]:
    for version in registry.versions(model.name):
        found = registry.find(ModelName(model.name, version, statement.into.place))
        if (found.created, found.digest) == (model.created, model.digest):
            write_description(found, run.path / FOLDER / DESCRIPTION_FILE)
            return {"model": model.name, "version": version}  # by a master that was lost right after
    events = JsonLinesTail(run.events).poll()
    history = [(int(each["step"]), dict(each["metrics"])) for each in events if each.get("event") == "evaluation_ended"]
    metrics = dict(summary.get("metrics") or (history[-1][1] if history else {}))
    marked = measured_on(run.path / FOLDER / "data" / "validation", model)
    trained = replace(model, metrics=marked(metrics), history=[(step, marked(each)) for step, each in history])
    files = model_files(run.path / FOLDER, run.export)
    if not any(file.name == MODEL_FILE for file in files):
        raise BadInputError("the job exported no model", where=str(run.export), hint="leave export as it is")
    saved = registry.save(trained, files)
    # For whoever asks for the result.
    write_description(saved, run.path / FOLDER / DESCRIPTION_FILE)
    return {"model": saved.name, "version": saved.version}


def _write_predictions(
    request: ClusterRequest, statement: PredictStatement, model: ModelDescription, run: RunDirectory
) -> dict[str, Any]:
    """Write rows with predictions as Parquet on the volume, and from there into the table."""
    folder = run.path / FOLDER
    parquet = folder / PREDICTIONS_FILE
    if not parquet.exists():
        files = sorted((folder / "rows").glob("*.parquet"))
        outputs = read_predictions(run.path / OUTPUT_DIRECTORY)
        temporary = parquet.with_name(f".{parquet.name}.tmp")
        writer: Any = None
        try:
            wanted = take_probabilities(statement, model)
            ignores_case = dialect_of(request.database) != "postgres"
            for batch in with_predictions(
                files, outputs, model, statement.column, probabilities=wanted, ignores_case=ignores_case
            ):
                writer = writer or pq.ParquetWriter(temporary, batch.schema, compression="zstd")
                writer.write_batch(batch)
        finally:
            if writer is not None:
                writer.close()
        temporary.rename(parquet)
    content = pq.ParquetFile(parquet)
    rows = content.metadata.num_rows
    _write_once(request, statement.into, content.iter_batches(), folder, rows)
    return {"model": model.name, "table": str(statement.into), "rows": rows}


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
