"""Runs statements: rows of a database in, models, metrics and tables out. It prints nothing.

An ``Observer`` hears what happens meanwhile.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from edl.api.errors import BadInputError, StorageError
from edl.data.database import find_scheme
from edl.sql_jobs.cluster_job import name_of
from edl.sql_jobs.column_plan import ColumnPlan
from edl.sql_jobs.edl_process import KeptFolderError, UnstoredResultError, run_edl
from edl.sql_jobs.exported_snapshot import export_snapshot
from edl.sql_jobs.job_document import check_job_fields
from edl.sql_jobs.job_settings import find_validation_query
from edl.sql_jobs.model_module import VOCABULARY_FILE
from edl.sql_jobs.model_registry import MODEL_FILE, ModelDescription, ModelRegistry
from edl.sql_jobs.parquet_parts import NoRowsError
from edl.sql_jobs.permutation_importance import ColumnImportance, importance_table, score_permutations
from edl.sql_jobs.prediction_output import read_predictions
from edl.sql_jobs.prepared_rows import PreparedRows
from edl.sql_jobs.query_extraction import ExtractedRows
from edl.sql_jobs.row_stream import RowOrigin, StreamedRows, stream_settings
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
    stream_rows,
    take_metrics,
    take_probabilities,
    with_predictions,
    write_result,
)
from edl.sql_jobs.statement_parser import StatementError
from edl.sql_jobs.statements import (
    DropModelStatement,
    EvaluateStatement,
    ExplainStatement,
    JobStatement,
    PredictStatement,
    QueryStatement,
    SelectQuery,
    ShowModelsStatement,
    ShowTrainStatement,
    Statement,
    TableName,
    TrainStatement,
)
from edl.sql_jobs.stream_key import find_stream_key
from edl.sql_jobs.training_sequence import (
    FurtherTrainings,
    MeasuredTraining,
    train_again,
    with_kept,
    with_measured,
)
from edl.sql_jobs.training_settings import TrainingSettings, check_settings
from edl.sql_jobs.undefined_metrics import Metrics
from edl.storage.durable_files import FileLock, LockHeldError

_DIALECTS = {"sqlite": "sqlite", "postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql", "duckdb": "duckdb"}
_WORK_FOLDER = Path(".edl", "sql")
_LOCK_FILE = ".lock"
_ROW_FOLDERS = ("rows", "data", "all", "more", "stream", "predictions")
STREAM_SNAPSHOT, STREAM_INCONSISTENT = "snapshot", "inconsistent"
"""Values of ``--stream``."""
_FAILED_SECONDS = 7 * 24 * 3600.0
"""Age from which the log of a failed statement is removed."""
_SNAPSHOT_SECONDS = 5.0
"""Between two looks at the connection that holds a snapshot."""


class Observer:
    """Hears what a statement does; each method may be overridden."""

    def extracted(self, rows: int) -> None:
        """So many rows of the query are read."""

    def streamed(self, key: str, *, is_consistent: bool) -> None:
        """The rows of a training stay in the database, and are read by ranges of this column."""

    def planned(self, plan: ColumnPlan, settings: TrainingSettings, rows: PreparedRows) -> None:
        """The plan of a training, before it begins."""

    def training(self, text: str) -> None:
        """A further training of the statement begins."""

    def job_event(self, event: Mapping[str, Any]) -> None:
        """A line of ``edl run --json`` and its like."""

    wants_rows: ClassVar[bool] = False
    """Whether ``row_batch`` gets all rows; otherwise those that a result shows."""

    def row_batch(self, batch: pa.RecordBatch) -> None:
        """The next rows of a query, or of those with predictions."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A trained model, and the folder that it was exported to, if one was named."""

    model: ModelDescription
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class MetricsResult:
    """Metrics of a model on rows, None if undefined, and the table that they were written into, if one was named."""

    model: ModelDescription
    metrics: Metrics
    rows: int
    table: TableName | None = None


@dataclass(frozen=True, slots=True)
class PredictResult:
    """The table with predictions."""

    model: ModelDescription
    table: TableName
    column: str
    rows: int


@dataclass(frozen=True, slots=True)
class ExplainResult:
    """How much each column matters, the most important one first."""

    model: ModelDescription
    importance: Sequence[ColumnImportance]
    rows: int
    table: TableName | None = None


@dataclass(frozen=True, slots=True)
class RowsResult:
    """The first rows of a query, and how many there are."""

    names: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]
    total: int


@dataclass(frozen=True, slots=True)
class ModelsResult:
    """The models of the registry."""

    models: Sequence[ModelDescription]


@dataclass(frozen=True, slots=True)
class ShowTrainResult:
    """How a model was trained."""

    model: ModelDescription


@dataclass(frozen=True, slots=True)
class DropResult:
    """What was removed."""

    name: str
    versions: Sequence[int]


Result = (
    TrainResult
    | MetricsResult
    | PredictResult
    | ExplainResult
    | RowsResult
    | ModelsResult
    | ShowTrainResult
    | DropResult
)


def dialect_of(database: str | None) -> str | None:
    """sqlglot's name of a database's dialect; None: unknown."""
    scheme = "" if not database else find_scheme(database)
    return _DIALECTS.get(scheme.partition("+")[0])


@dataclass
class StatementRunner:
    """Runs statements against one database and one registry.

    Args:
        database: its address; None: only statements that need none can run.
        registry: of models.
        observer: hears what happens.
        replaces: a model that exists gets a new version, and a table that exists is replaced.
        export: a new folder for the module, the job and the data of a training.
        most_rows: of a query that are returned.
        query_seconds: what a query may take in the database; None: no limit.
        stream: the rows of a training stay in the database: ``STREAM_SNAPSHOT``, or ``STREAM_INCONSISTENT`` to accept
            rows of several states where a database cannot share one; empty: they are read once, into files.
    """

    database: str | None
    registry: ModelRegistry
    observer: Observer = field(default_factory=Observer)
    replaces: bool = False
    export: Path | None = None
    most_rows: int = 1000
    query_seconds: float | None = None
    stream: str = ""

    def check(self, statements: Sequence[Statement]) -> None:
        """Refuse what could not run with these settings, for all statements before the first one runs.

        Raises:
            BadInputError: the rows stay in the database, and a statement uses a model on rows, which are read once.
        """
        for statement in statements:
            if self.stream and isinstance(statement, EvaluateStatement | PredictStatement | ExplainStatement):
                raise StatementError(
                    "--stream is for TO TRAIN", statement.select.place, "run this statement by itself, without --stream"
                )

    def run(self, statement: Statement, text: str) -> Result:
        """Run a statement.

        Args:
            statement: what it asks for.
            text: its own text, which is stored with a model.

        Raises:
            EdlError: it cannot run, or fails.
        """
        self.check([statement])
        if isinstance(statement, TrainStatement):
            return self._train(statement, text)
        if isinstance(statement, EvaluateStatement):
            return self._evaluate(statement)
        if isinstance(statement, PredictStatement):
            return self._predict(statement)
        if isinstance(statement, ExplainStatement):
            return self._explain(statement)
        if isinstance(statement, QueryStatement):
            return self._query(statement)
        if isinstance(statement, ShowModelsStatement):
            return ModelsResult(self.registry.list_models())
        if isinstance(statement, ShowTrainStatement):
            return ShowTrainResult(self.registry.find(statement.model))
        assert isinstance(statement, DropModelStatement)
        return DropResult(statement.model.name, self.registry.drop(statement.model))

    # -- training --------------------------------------------------------------------------------

    def _train(self, statement: TrainStatement, text: str) -> TrainResult:
        # before the rows are read
        check_settings(statement)
        check_job_fields(statement)
        self.registry.check_new(statement.into, replace_model=self.replaces)
        with _work_folder(statement, self.export) as folder, self._find_rows(statement, folder) as query_rows:
            prepared = prepare_train(
                statement, text, query_rows.rows, self.database or "", folder, query_seconds=self.query_seconds
            )
            self.observer.planned(prepared.plan, prepared.settings, prepared.counts)
            model = replace(self._run_trainings(folder, query_rows, prepared), stream=query_rows.stream)
            exported = folder / "export"
            try:
                saved = self.registry.save(model, model_files(folder, exported))
            except StorageError as error:
                hint = f"{error.hint}; the trained model is in {exported}"
                raise UnstoredResultError(error.message, where=error.where, hint=hint) from error
        return TrainResult(saved, self.export)

    def _find_rows(self, statement: TrainStatement, folder: Path) -> AbstractContextManager[_QueryRows]:
        """The rows of a training: extracted, or in the database as long as the context is open."""
        if self.stream:
            return self._stream_rows(statement)
        return nullcontext(_QueryRows(self._extract(statement.select, folder)))

    @contextmanager
    def _stream_rows(self, statement: TrainStatement) -> Iterator[_QueryRows]:
        database, select = self._need_database(), statement.select
        if self.export is not None:
            raise BadInputError(
                "keeps the rows, and --stream leaves them in the database",
                where="--export",
                hint="leave one of them out",
            )
        if (query := find_validation_query(statement)) is not None:
            raise StatementError(
                "validation.select does not go with --stream",
                query.place,
                "use validation.share, or leave --stream out",
            )
        accepts = self.stream == STREAM_INCONSISTENT
        with export_snapshot(database, allow_inconsistent=accepts) as snapshot:
            key = find_stream_key(statement, database, dialect_of(database))
            origin = RowOrigin(database, select.text, key, snapshot.name, self.query_seconds)
            self.observer.streamed(key, is_consistent=snapshot.is_consistent)
            rows = stream_rows(origin, select, self.observer.extracted)
            stream = STREAM_SNAPSHOT if snapshot.is_consistent else STREAM_INCONSISTENT
            yield _QueryRows(rows, stream, snapshot.check)

    def _run_trainings(self, folder: Path, query_rows: _QueryRows, prepared: PreparedTraining) -> ModelDescription:
        """Train what is in a folder, of a small table several times; returns the model with what was measured."""
        run = partial(self._run_training, folder, query_rows, prepared)
        if not prepared.settings.refits:
            return with_measured(prepared.model, run(), prepared.mark_undefined)
        first, further = run(exports=False), FurtherTrainings.from_prepared(prepared)
        kept = train_again(folder, first, further, run, self.observer.training)
        return with_kept(prepared.model, kept, prepared.mark_undefined)

    def _run_training(
        self,
        folder: Path,
        query_rows: _QueryRows,
        prepared: PreparedTraining,
        job: str = "job.yaml",
        *,
        exports: bool = True,
        has_validation: bool = True,
    ) -> MeasuredTraining:
        """Run a job of a folder.

        Args:
            folder: of the statement.
            query_rows: of its query.
            prepared: what was made of them.
            job: name of the job file.
            exports: the model is kept.
            has_validation: validation rows are held back.
        """
        evaluations = list[Mapping[str, Any]]()
        next_check = time.monotonic() + _SNAPSHOT_SECONDS

        def follow(event: Mapping[str, Any]) -> None:
            nonlocal next_check
            if time.monotonic() >= next_check:
                query_rows.check()
                next_check = time.monotonic() + _SNAPSHOT_SECONDS
            if event.get("event") == "evaluation_ended":
                evaluations.append(event)
                event = {**event, "metrics": prepared.mark_undefined(event["metrics"])}
            self.observer.job_event(event)

        arguments = [] if exports else ["--set", "export=null"]
        if query_rows.stream:
            arguments += stream_settings(has_validation=has_validation)
        summary = run_edl("run", folder, arguments, follow, needs_database=bool(query_rows.stream), job=job)
        if query_rows.stream:
            # Whatever was read after the snapshot was lost would be of another state.
            query_rows.check()
        return MeasuredTraining.from_events(evaluations, summary)

    # -- models that exist -----------------------------------------------------------------------

    def _evaluate(self, statement: EvaluateStatement) -> MetricsResult:
        take_metrics(statement)
        model = self.registry.find(statement.model)
        names = take_metrics(statement, model)
        self._check_target(statement.into)
        with _work_folder(statement) as folder:
            rows = self._extract(statement.select, folder)
            prepare_evaluate(statement, model, rows, folder)
            measured = measured_on(folder / "data", model)(self._run_evaluation(folder, model))
            metrics = named_metrics(measured, names)
            if statement.into is not None:
                self._write(statement.into, metrics_table(metrics))
        return MetricsResult(model, metrics, rows.rows, statement.into)

    def _run_evaluation(self, folder: Path, model: ModelDescription) -> dict[str, float]:
        arguments = ["--from", str(model.folder / MODEL_FILE), "--set", "data.validation=data"]
        last: dict[str, float] = {}

        def follow(event: Mapping[str, Any]) -> None:
            if event.get("event") == "evaluation_ended":
                last.update(event["metrics"])
            self.observer.job_event(event)

        summary = run_edl("evaluate", folder, arguments, follow)
        return dict(summary.get("metrics") or last)

    def _predict(self, statement: PredictStatement) -> PredictResult:
        take_probabilities(statement)
        model = self.registry.find(statement.model)
        ignores_case = dialect_of(self.database) != "postgres"
        probabilities = take_probabilities(statement, model, ignores_case=ignores_case)
        self._check_target(statement.into)
        with _work_folder(statement) as folder:
            rows = self._extract(statement.select, folder)
            prepare_predict(statement, model, rows, folder)
            self._run_prediction(folder, model)
            outputs = read_predictions(folder / "predictions")
            batches = with_predictions(
                rows.files,
                outputs,
                model,
                statement.column,
                probabilities=probabilities,
                ignores_case=ignores_case,
            )
            self._write(statement.into, map(self._pass_on, batches))
        return PredictResult(model, statement.into, statement.column, rows.rows)

    def _pass_on(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.observer.row_batch(batch)
        return batch

    def _run_prediction(self, folder: Path, model: ModelDescription) -> None:
        source = ["--from", str(model.folder / MODEL_FILE), "--output", "predictions"]
        run_edl("predict", folder, [*source, "--set", "data.prediction=data"], self.observer.job_event)

    def _explain(self, statement: ExplainStatement) -> ExplainResult:
        refuse_attributes(statement.attributes)
        model = self.registry.find(statement.model)
        self._check_target(statement.into)
        with _work_folder(statement) as folder:
            rows = self._extract(statement.select, folder)
            permuted = prepare_explain(statement, model, rows, folder)
            self._run_prediction(folder, model)
            importance = score_permutations(permuted, read_predictions(folder / "predictions"), model)
            if statement.into is not None:
                self._write(statement.into, importance_table(importance))
        return ExplainResult(model, importance, permuted.rows, statement.into)

    # -- rows ------------------------------------------------------------------------------------

    def _query(self, statement: QueryStatement) -> RowsResult:
        with _work_folder(statement) as folder:
            try:
                rows = self._extract(statement.select, folder)
            except BadInputError as error:
                if isinstance(error.__cause__, NoRowsError):
                    return RowsResult((), [], 0)
                raise
            shown = list[tuple[Any, ...]]()
            for file in rows.files:
                for batch in pq.ParquetFile(file).iter_batches(self.most_rows):
                    self.observer.row_batch(batch)
                    if len(shown) < self.most_rows:
                        shown += zip(*(column.to_pylist() for column in batch.columns), strict=True)
                    elif not self.observer.wants_rows:
                        break
        return RowsResult(tuple(each.name for each in rows.columns), shown[: self.most_rows], rows.rows)

    def _extract(self, select: SelectQuery, folder: Path) -> ExtractedRows:
        return extract_rows(
            self._need_database(),
            select,
            folder,
            on_progress=self.observer.extracted,
            query_seconds=self.query_seconds,
        )

    def _check_target(self, table: TableName | None) -> None:
        """Refuse a table that exists or cannot be written before a job computes its rows. The writer checks again."""
        if table is not None:
            check_target(self._need_database(), table, replaces=self.replaces)

    def _write(self, table: TableName, batches: Iterable[Any]) -> None:
        write_result(self._need_database(), table, batches, replaces=self.replaces)

    def _need_database(self) -> str:
        if self.database is None:
            raise BadInputError(
                "is missing",
                where="--database",
                hint="give --database sqlite:///file.db or set EDL_DATABASE; --demo makes a table to try",
            )
        return self.database


def check_stream_value(stream: str, *, submit: bool) -> None:
    """Refuse a value of ``--stream`` that has no meaning.

    Raises:
        BadInputError: it is none of the two, or statements are jobs on a cluster.
    """
    if stream not in ("", STREAM_SNAPSHOT, STREAM_INCONSISTENT):
        raise BadInputError(f"has no value {stream}", where="--stream", hint="write --stream or --stream=inconsistent")
    if stream and submit:
        raise BadInputError(
            "is for a training on this machine, whose process holds the snapshot",
            where="--stream",
            hint="leave out --stream: the job reads the query once; or leave out --submit",
        )


@dataclass(frozen=True, slots=True)
class _QueryRows:
    """The rows of a training.

    Attributes:
        rows: extracted, or in the database.
        stream: see ``ModelDescription``.
        check: raises if the snapshot that they are read in is gone.
    """

    rows: ExtractedRows | StreamedRows
    stream: str = ""
    check: Callable[[], object] = lambda: None


@contextmanager
def _work_folder(statement: JobStatement | QueryStatement, named: Path | None = None) -> Iterator[Path]:
    """A folder for the files of a statement, which goes with it.

    What the user named stays, if something can be trained in it. After a ``KeptFolderError``, all but the rows
    stays.

    Raises:
        BadInputError: the named folder is there already.
    """
    if named is not None:
        with _named_folder(named):
            yield named
        return
    with _translate_folder_errors():
        _WORK_FOLDER.mkdir(parents=True, exist_ok=True)
        _clear_earlier_statements()
        name = "query" if isinstance(statement, QueryStatement) else name_of(statement)
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_WORK_FOLDER)).absolute()
        lock = FileLock(folder / f"{_LOCK_FILE}.new", str(os.getpid()), protected_thing="the statement", hint="")
        lock.path.rename(folder / _LOCK_FILE)  # under this name it is locked, or its process is gone
    with lock:
        try:
            yield folder
        except BaseException as error:
            # Rows of a database do not stay behind.
            if isinstance(error, KeptFolderError):
                _remove_rows(folder)
            else:
                shutil.rmtree(folder, ignore_errors=True)
            raise
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _named_folder(folder: Path) -> Iterator[None]:
    """A new folder of the user's. Of a statement that fails before its job begins, it is removed again."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInputError("is there already", where=str(folder), hint="name a folder that does not exist")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if not (folder / "job.yaml").exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _remove_rows(folder: Path) -> None:
    """Remove the rows of a statement that did not end well, and all of it if no job began, whose log could tell why."""
    if not (folder / "job.yaml").exists():
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in [folder / name for name in _ROW_FOLDERS] + list(folder.glob(".*.tmp")):
        shutil.rmtree(path, ignore_errors=True)
    for name in (VOCABULARY_FILE, _LOCK_FILE):  # a vocabulary has values of rows
        (folder / name).unlink(missing_ok=True)


def _clear_earlier_statements() -> None:
    """Remove the rows that statements left whose process was killed, and what failed ones left long ago."""
    for file in _WORK_FOLDER.glob(f"*/{_LOCK_FILE}"):
        # it runs, or another program clears it
        with suppress(LockHeldError, StorageError), FileLock(file, "", protected_thing="the statement", hint=""):
            _remove_rows(file.parent)
    for file in _WORK_FOLDER.glob("*/job.yaml"):
        with suppress(OSError):  # another program removes it
            is_old = time.time() - file.parent.stat().st_mtime > _FAILED_SECONDS
            if is_old and not (file.parent / _LOCK_FILE).exists():
                shutil.rmtree(file.parent, ignore_errors=True)


@contextmanager
def _translate_folder_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"the files of the statement cannot be written: {error.strerror or error}",
            where=str(_WORK_FOLDER.absolute()),
            hint="run edl sql in a folder that you may write",
        ) from error
