"""What a statement becomes: a folder with rows in the form of a model, a Keras module and a job file.

A laptop trains such a folder by ``edl run``, a cluster as the data and the model of a job.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from edl.api.errors import BadInputError, EdlError
from edl.core.short_list import format_short_list
from edl.data.database import Database
from edl.sql_jobs.column_overrides import override_columns
from edl.sql_jobs.column_plan import (
    CLASS_WEIGHT,
    ColumnPlan,
    LabelKind,
    check_features,
    find_column,
    list_names,
    plan_columns,
)
from edl.sql_jobs.estimators import ESTIMATORS, choose_estimator
from edl.sql_jobs.job_document import dump_job, job_document
from edl.sql_jobs.job_settings import METRICS_SETTING, find_metrics, find_validation_query
from edl.sql_jobs.later_trainings import ANNEALED_MODULE, REFIT_JOB_FILE, write_annealed
from edl.sql_jobs.model_inputs import ModelInputs, choose_inputs
from edl.sql_jobs.model_module import VOCABULARY_FILE, write_module
from edl.sql_jobs.model_registry import MODEL_FILE, ModelDescription
from edl.sql_jobs.permutation_importance import MOST_COLUMNS, PermutedRows, write_permutations
from edl.sql_jobs.prediction_output import class_probabilities, predicted_values
from edl.sql_jobs.prepared_rows import PreparedRows, RowForm, mark_validation, prepare_prediction, prepare_training
from edl.sql_jobs.query_errors import QueryError
from edl.sql_jobs.query_extraction import ExtractedColumn, ExtractedRows, OnProgress, extract_query
from edl.sql_jobs.row_statistics import collect_facts, kind_of, read_column_batches, to_text
from edl.sql_jobs.row_stream import STREAM_MODULE, RowOrigin, StreamedRows, survey_rows, write_stream
from edl.sql_jobs.statement_parser import StatementError
from edl.sql_jobs.statements import (
    Attribute,
    ColumnName,
    EvaluateStatement,
    ExplainStatement,
    PredictStatement,
    SelectQuery,
    TableName,
    TextPosition,
    TrainStatement,
)
from edl.sql_jobs.table_writer import TableExistsError, check_table, write_table
from edl.sql_jobs.training_settings import TrainingSettings, choose_settings
from edl.sql_jobs.undefined_metrics import Metrics, find_different, mark_undefined, read_labels
from edl.sql_jobs.user_module import COLUMNS_MODULE, find_user_module

LEAST_ROWS = 2
_MOST_SEARCHED_ROWS = 100_000
"""In a database, of which the labels of the validation rows are looked at."""
_PROBABILITIES = "predict.probabilities"
_MODULE_FILES = ("model.py", "job.yaml", VOCABULARY_FILE, f"{ANNEALED_MODULE}.py", REFIT_JOB_FILE)
_KIND_GROUPS = {"number": "a number", "integer": "a number", "boolean": "a number", "text": "text", "date": "a time"}


@dataclass(frozen=True, slots=True)
class PreparedTraining:
    """A folder that can be trained.

    Attributes:
        plan: of the columns.
        settings: of the statement.
        counts: of rows.
        document: the job file.
        model: its description, without version, metrics and history.
        labels_differ: not all validation rows have the same label.
    """

    plan: ColumnPlan
    settings: TrainingSettings
    counts: PreparedRows
    document: Mapping[str, Any]
    model: ModelDescription
    labels_differ: bool

    def mark_undefined(self, metrics: Metrics) -> dict[str, float | None]:
        """Metrics of the validation rows, with None for those that have no value."""
        return mark_undefined(metrics, self.plan.label.kind, labels_differ=self.labels_differ)


def prepare_train(
    statement: TrainStatement,
    text: str,
    rows: ExtractedRows | StreamedRows,
    database: str,
    folder: Path,
    *,
    query_seconds: float | None = None,
    refit_obstacle: str = "",
) -> PreparedTraining:
    """Plan a model for the rows, and write module, job file and data. Extracted rows are removed.

    Args:
        statement: what is wanted.
        text: of the statement, which is stored with the model.
        rows: of its query, in the folder ``rows`` or still in the database. Of these, no data are written but what
            workers need to read them.
        database: its address, which is stored with the model.
        folder: gets the files.
        query_seconds: what ``validation.select`` may take in the database; None: no limit.
        refit_obstacle: see ``choose_settings``.

    Raises:
        BadInputError: the statement does not fit the rows; names the place in it.
    """
    estimator, reason = choose_estimator(statement)
    check_rows(rows, statement.select, LEAST_ROWS)
    label = _find_label_column(statement.label, rows)
    files = rows.files if isinstance(rows, ExtractedRows) else rows
    weights = statement.attributes.get(CLASS_WEIGHT)
    plan = plan_columns(collect_facts(files, label), statement.label, weights, partial(_quote_name, rows))
    plan = override_columns(plan, statement.columns, estimator)
    check_features(plan, statement.label)
    settings = choose_settings(statement, estimator, reason, plan, refit_obstacle)
    inputs = choose_inputs(plan, may_be_wide=estimator in ESTIMATORS)
    model = _describe_model(statement, text, rows, database, label, estimator, plan, inputs)
    data = _TrainingData(folder, model, settings.validation_share)
    validation = find_validation_query(statement)
    if isinstance(rows, StreamedRows):
        divided = data.write_streamed(rows)
    elif validation is None:
        divided = data.write_extracted(rows)
    else:
        selected = extract_rows(database, validation, folder / "more", query_seconds=query_seconds)
        divided = data.write_selected(rows, selected, validation)
    counts = divided.counts
    shutil.rmtree(folder / "rows", ignore_errors=True)
    document = job_document(statement.into.name, plan, settings, inputs.label, counts.training)
    texts = write_module(plan, inputs, estimator, settings.optimizer, settings.patience, statement.select.text)
    texts["job.yaml"] = dump_job(document)
    module = find_user_module(statement, ESTIMATORS) if estimator not in ESTIMATORS else None
    if module is not None:
        texts = {**module.files(), **texts}
    for name, content in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    different = find_different(divided.validation_labels, max(2, len(model.classes)))
    unmeasured = [each for each in model.classes if each not in different]
    model = replace(model, validation_rows=counts.validation, unmeasured_classes=unmeasured)
    return PreparedTraining(plan, settings, counts, document, model, len(different) > 1)


def _find_label_column(label: ColumnName, rows: ExtractedRows | StreamedRows) -> str:
    """The column that the statement names: capital letters do not matter where this is unambiguous."""
    names = {column.name for column in rows.columns}
    alike = [name for name in names if name.lower() == label.name.lower()]
    return label.name if label.name in names or len(alike) != 1 else alike[0]


@dataclass(frozen=True, slots=True)
class _DividedRows:
    """What a training learns from, as written.

    Attributes:
        counts: of rows.
        validation_labels: in parts; of very many rows in a database, each class once.
    """

    counts: PreparedRows
    validation_labels: Iterator[Any]


@dataclass(frozen=True, slots=True)
class _TrainingData:
    """Writes what a training learns from, in one of three ways.

    Attributes:
        folder: of the job.
        model: which is to be trained.
        validation_share: of the rows; where validation rows have no query of their own.
    """

    folder: Path
    model: ModelDescription
    validation_share: float

    def write_streamed(self, rows: StreamedRows) -> _DividedRows:
        """Write what workers need to read the rows from the database."""
        form = self._form
        marks = mark_validation(rows, form, self.validation_share)
        counts = write_stream(self.folder, rows, form, marks)
        if rows.rows > _MOST_SEARCHED_ROWS:
            return _DividedRows(counts, iter([pa.array(self.model.classes or (0, 1))]))
        return _DividedRows(counts, _read_marked_labels(rows, form, marks))

    def write_extracted(self, rows: ExtractedRows) -> _DividedRows:
        """Divide the rows, and write them."""
        counts = prepare_training(rows.files, self._form, self.folder / "data", self.validation_share)
        return _DividedRows(counts, self._read_validation_labels())

    def write_selected(self, rows: ExtractedRows, selected: ExtractedRows, validation: SelectQuery) -> _DividedRows:
        """Write the rows, and those of ``validation.select``, which are removed.

        Raises:
            BadInputError: there are no rows for validation, or not with the columns or the classes of the others.
        """
        check_rows(selected, validation, 1)
        selected_label = find_label(self.model, selected, None, validation)
        check_model_columns(self.model, selected, validation.place)
        data = self.folder / "data"
        counts = PreparedRows(
            prepare_prediction(rows.files, self._form, data / "training"),
            prepare_prediction(selected.files, replace(self._form, label=selected_label), data / "validation"),
        )
        shutil.rmtree(self.folder / "more")
        return _DividedRows(counts, self._read_validation_labels())

    @property
    def _form(self) -> RowForm:
        return _row_form(self.model, self.model.label)

    def _read_validation_labels(self) -> Iterator[Any]:
        return read_labels(self.folder / "data" / "validation", self.model.model_inputs.label)


def _row_form(model: ModelDescription, label: str) -> RowForm:
    """The form that a model takes, with a column of the query as the label."""
    return RowForm(model.model_inputs, label, LabelKind[model.label_kind])


def _read_marked_labels(rows: StreamedRows, form: RowForm, marks: Any) -> Iterator[Any]:
    """The labels of the marked rows, as prepared rows have them."""
    assert form.label is not None
    start = 0
    for batch in rows.batches([form.label]):
        values = batch.column(form.label)
        marked = values.filter(pa.array(marks[start : start + len(values)]))
        start += len(values)
        yield form.prepare_labels(marked)


def write_job(folder: Path, name: str, document: Mapping[str, Any], rate: float, epochs: int) -> None:
    """Write a job file of a later training, and the module that its model is in.

    Args:
        folder: with ``model.py``.
        name: of the job file.
        document: its content.
        rate: learning rate at the beginning.
        epochs: after which it would be zero.
    """
    module = (folder / "model.py").read_text(encoding="utf-8")
    (folder / f"{ANNEALED_MODULE}.py").write_text(write_annealed(module, rate, epochs), encoding="utf-8")
    (folder / name).write_text(dump_job(document), encoding="utf-8")


def _describe_model(
    statement: TrainStatement,
    text: str,
    rows: ExtractedRows | StreamedRows,
    database: str,
    label: str,
    estimator: str,
    plan: ColumnPlan,
    inputs: ModelInputs,
) -> ModelDescription:
    return ModelDescription(
        name=statement.into.name,
        version=0,
        created=time.time(),
        statement=text,
        estimator=estimator,
        database=database,
        digest=rows.digest,
        rows=rows.rows,
        label=label,
        label_type=plan.label.facts.type_name,
        label_kind=plan.label.kind.name,
        classes=plan.label.classes,
        columns={column.name: str(column.type) for column in rows.columns},
        inputs=inputs.inputs,
        prepared_label=inputs.label,
        metrics={},
        history=[],
        plan=[(each.name, str(each.use), each.reason) for each in plan.features],
    )


def model_files(folder: Path, exported: Path) -> list[Path]:
    """The files of a trained model that a registry keeps."""
    files = [exported / MODEL_FILE, exported / "saved_model", *(folder / name for name in _MODULE_FILES)]
    return [*(file for file in files if file.exists()), *_module_files(folder)]


def _module_files(folder: Path) -> list[Path]:
    """Modules of the user beside ``edl_columns.py``, and their packages."""
    if not (folder / f"{COLUMNS_MODULE}.py").exists():
        return []
    packages = [path for path in folder.iterdir() if path.is_dir() and any(path.rglob("*.py"))]
    own = (*_MODULE_FILES, f"{STREAM_MODULE}.py")
    return [*(path for path in folder.glob("*.py") if path.name not in own), *packages]


def prepare_evaluate(statement: EvaluateStatement, model: ModelDescription, rows: ExtractedRows, folder: Path) -> None:
    """Write the rows with their label in the form that a model takes, and its module.

    Raises:
        BadInputError: the rows are not those that the model wants.
    """
    check_rows(rows, statement.select, 1)
    label = find_label(model, rows, statement.label, statement.select)
    check_model_columns(model, rows, statement.select.place)
    copy_model(model, folder)
    prepare_prediction(rows.files, _row_form(model, label), folder / "data")


def prepare_predict(statement: PredictStatement, model: ModelDescription, rows: ExtractedRows, folder: Path) -> None:
    """Write the rows in the form that a model takes, and its module.

    Raises:
        BadInputError: the rows are not those that the model wants.
    """
    check_rows(rows, statement.select, 1)
    check_model_columns(model, rows, statement.select.place)
    copy_model(model, folder)
    prepare_prediction(rows.files, RowForm(model.model_inputs), folder / "data")


def prepare_explain(
    statement: ExplainStatement, model: ModelDescription, rows: ExtractedRows, folder: Path
) -> PermutedRows:
    """Write shuffled copies of the rows in the form that a model takes, and its module.

    Raises:
        BadInputError: the rows are not those that the model wants.
    """
    inputs = model.model_inputs
    if len(columns := {each.column for each in inputs.inputs}) > MOST_COLUMNS:
        raise StatementError(
            f"{model.name}@{model.version} has {len(columns):,} columns, "
            f"and TO EXPLAIN shuffles {MOST_COLUMNS:,} at most",
            statement.model.place,
            "train a model of fewer columns",
        )
    check_rows(rows, statement.select, LEAST_ROWS)
    label = find_label(model, rows, None, statement.select)
    check_model_columns(model, rows, statement.select.place)
    copy_model(model, folder)
    form = replace(_row_form(model, label), inputs=inputs.one_by_one())
    prepare_prediction(rows.files, form, folder / "all")
    if form.kind is LabelKind.NUMBER and len(find_different(read_labels(folder / "all", inputs.label))) < 2:
        raise StatementError(
            f"the label {label} has one value in these rows",
            statement.select.place,
            "choose rows with different values: R2, which says how much columns matter, is undefined without",
        )
    permuted = write_permutations(folder / "all", inputs, folder / "data")
    shutil.rmtree(folder / "all")
    return permuted


def copy_model(model: ModelDescription, folder: Path) -> None:
    """Copy the module of a model, without its weights."""
    for name in _MODULE_FILES:
        if (model.folder / name).exists():
            shutil.copy2(model.folder / name, folder / name)
    for file in _module_files(model.folder):
        if file.is_dir():
            shutil.copytree(file, folder / file.name)
        else:
            shutil.copy2(file, folder / file.name)


# --------------------------------------------------------------------------------------------------
# Rows of a query, and tables of results.


def extract_rows(
    database: str,
    select: SelectQuery,
    folder: Path,
    *,
    on_progress: OnProgress | None = None,
    query_seconds: float | None = None,
) -> ExtractedRows:
    """The rows of a query in ``rows`` of a folder.

    Raises:
        EdlError: see ``extract_query``; with the place in the whole text of the statements.
    """
    with _at_query(select):
        return extract_query(
            database, select.text, folder / "rows", on_progress=on_progress, statement_seconds=query_seconds
        )


def stream_rows(origin: RowOrigin, select: SelectQuery, on_progress: OnProgress | None = None) -> StreamedRows:
    """The rows of a query, which stay in the database.

    Raises:
        EdlError: see ``survey_rows``; with the place in the whole text of the statements.
    """
    with _at_query(select):
        return survey_rows(origin, on_progress)


@contextmanager
def _at_query(select: SelectQuery) -> Iterator[None]:
    """Errors about a query name its place in the whole text of the statements."""
    try:
        yield
    except BadInputError as error:
        if not str(error.where).startswith("the query"):
            raise
        raise _at_place(error, select) from error


def _at_place(error: BadInputError, select: SelectQuery) -> EdlError:
    """An error of the query with its place in the whole text of the statements."""
    place = select.place
    if not isinstance(error, QueryError):
        # Of the query as a whole, or of one of its columns.
        is_predicate = error.message.startswith(("is ", "has "))
        return StatementError(f"the query {error.message}" if is_predicate else error.message, place, error.hint)
    if error.line is not None and error.column is not None:
        column = error.column + (place.column - 1 if error.line == 1 else 0)
        place = TextPosition(place.line + error.line - 1, column)
    return StatementError(error.message, place, error.hint)


def check_rows(rows: ExtractedRows | StreamedRows, select: SelectQuery, least: int) -> None:
    """Refuse a query with fewer rows than ``least``.

    Raises:
        BadInputError: see above.
    """
    if rows.rows < least:
        what = "no rows" if not rows.rows else "one row only"
        raise StatementError(f"the query has {what}", select.place, "check its WHERE and its tables")


def find_label(model: ModelDescription, rows: ExtractedRows, named: ColumnName | None, select: SelectQuery) -> str:
    """The column with the label: the one that is named, or that of the training.

    Raises:
        BadInputError: there is none, or it has NULLs, or classes that the model does not know.
    """
    wanted = named or ColumnName(model.label, select.place)
    label = find_column({each.name: each for each in rows.columns}, wanted)
    if label.nulls:
        raise StatementError(
            f"the label {label.name} has {label.nulls:,} NULLs",
            wanted.place,
            f"add WHERE {_quote_name(rows, label.name)} IS NOT NULL to the query",
        )
    unknown = _unknown_classes(model, rows, label.name)
    if unknown:
        raise StatementError(
            f"the label {label.name} has {list_names([repr(each) for each in unknown])}, "
            f"which {'are no classes' if len(unknown) > 1 else 'is no class'} of the model",
            wanted.place,
            f"it predicts {list_names([repr(each) for each in model.classes])}; leave other rows out with WHERE",
        )
    return label.name


def _quote_name(rows: ExtractedRows | StreamedRows, name: str) -> str:
    """The name of a column as a query of their database must write it."""
    return Database(rows.database if isinstance(rows, ExtractedRows) else rows.origin.database).quote_name(name)


def _unknown_classes(model: ModelDescription, rows: ExtractedRows, label: str) -> list[str]:
    """Values of a label without NULLs that a model does not predict, in their order."""
    if not model.classes:
        return []
    known, unknown = pa.array(model.classes, pa.string()), set[str]()
    for batch in read_column_batches(rows.files, [label]):
        values = pc.unique(batch.column(label))
        texts = to_text(values)
        unknown.update(texts.filter(pc.invert(pc.is_in(texts, known))).to_pylist())
    return sorted(unknown)


def refuse_attributes(attributes: Mapping[str, Attribute]) -> None:
    """Refuse ``WITH`` where nothing is trained.

    Raises:
        BadInputError: there is a setting.
    """
    for name, attribute in attributes.items():
        raise StatementError(
            f"there is no setting {name} here",
            attribute.place,
            "WITH belongs to TO TRAIN, TO EVALUATE and TO PREDICT; leave it out",
        )


def take_probabilities(
    statement: PredictStatement, model: ModelDescription | None = None, *, ignores_case: bool = False
) -> bool:
    """Whether a prediction has the probability of each class, too.

    Args:
        statement: with ``predict.probabilities``, or without.
        model: if it is known already.
        ignores_case: see ``with_predictions``.

    Raises:
        BadInputError: there is another setting, the model predicts no classes, or two of them would have one column.
    """
    wanted = False
    for name, attribute in statement.attributes.items():
        if name != _PROBABILITIES:
            near = f"there is {_PROBABILITIES}=true"
            raise StatementError(f"there is no setting {name} here", attribute.place, near)
        if not isinstance(attribute.value, bool):
            raise StatementError(f"{_PROBABILITIES} is true or false", attribute.place)
        if attribute.value and model is not None and not model.classes:
            raise StatementError(f"{model.name}@{model.version} predicts a number, no classes", attribute.place)
        classes = model.classes if attribute.value and ignores_case and model is not None else ()
        alike = [each for each in classes if [other.lower() for other in classes].count(each.lower()) > 1]
        if alike:
            raise StatementError(
                f"the classes {list_names([repr(each) for each in alike])} differ only in capital letters, and so "
                "would columns, which this database takes for one",
                attribute.place,
                f"leave out {_PROBABILITIES}",
            )
        wanted = attribute.value
    return wanted


def take_metrics(statement: EvaluateStatement, model: ModelDescription | None = None) -> tuple[str, ...]:
    """The metrics that an evaluation names, as ``find_metrics`` returns them; empty: all.

    Args:
        statement: with ``validation.metrics``, or without.
        model: if it is known already.

    Raises:
        BadInputError: there is another setting, or no such metric for the label of the model.
    """
    metrics: tuple[str, ...] = ()
    for name, attribute in statement.attributes.items():
        if name != METRICS_SETTING:
            near = f"there is {METRICS_SETTING}='accuracy'"
            raise StatementError(f"there is no setting {name} here", attribute.place, near)
        if model is not None:
            metrics = find_metrics(attribute, LabelKind[model.label_kind])
    return metrics


def measured_on(folder: Path, model: ModelDescription) -> Callable[[Metrics], dict[str, float | None]]:
    """Marks, in metrics of a model on the prepared rows of a folder, those that have no value on them as None."""
    labels = find_different(read_labels(folder, model.prepared_label))
    return partial(mark_undefined, kind=LabelKind[model.label_kind], labels_differ=len(labels) != 1)


def named_metrics(metrics: Metrics, names: Sequence[str]) -> dict[str, float | None]:
    """The loss and the metrics of these names; without names, all."""
    return {name: value for name, value in metrics.items() if not names or name.replace("_", "") in ("loss", *names)}


def with_predictions(
    files: Sequence[Path],
    outputs: Callable[[int], Any],
    model: ModelDescription,
    column: str,
    *,
    probabilities: bool = False,
    ignores_case: bool = True,
) -> Iterator[Any]:
    """The rows of a query with a column of predictions, in place of one of this name.

    Args:
        files: Parquet of the rows.
        outputs: of the model, for the next so many rows.
        model: that predicted.
        column: gets the class, or the number.
        probabilities: a column for each class has its probability.
        ignores_case: the database takes names for the same that differ only in capital letters.
    """

    def fold(name: str) -> str:
        return name.lower() if ignores_case else name

    for file in files:
        for batch in pq.ParquetFile(file).iter_batches():
            given = outputs(batch.num_rows)
            columns = {column: predicted_values(given, model)}
            if probabilities:
                columns |= {f"{column}_{name}": values for name, values in class_probabilities(given, model)}
            replaced = {fold(name) for name in columns}
            kept = {name: batch.column(name) for name in batch.schema.names if fold(name) not in replaced} | columns
            yield pa.RecordBatch.from_arrays(list(kept.values()), list(kept))


def metrics_table(metrics: Metrics) -> list[Any]:
    """Metrics as batches of a table with one row. What is undefined is NULL."""
    columns = {name: pa.array([value], pa.float64()) for name, value in metrics.items()}
    batches: list[Any] = pa.table(columns).to_batches()
    return batches


def check_target(database: str, table: TableName, *, replaces: bool) -> None:
    """Refuse a table that exists or cannot be written, before hours of work and not after them.

    Raises:
        BadInputError: see above; names its place in the statement.
        RetryableError: the database is not reachable, or another program has locked it.
    """
    with _at_table(table):
        check_table(database, table.parts, replace=replaces)


def write_result(database: str, table: TableName, batches: Iterable[Any], *, replaces: bool) -> None:
    """Write a table of results.

    Raises:
        BadInputError: it cannot be written; names the place of the table in the statement.
    """
    with _at_table(table):
        write_table(database, table.parts, batches, replace=replaces)


@contextmanager
def _at_table(table: TableName) -> Iterator[None]:
    """Errors about a table name its place in the statement."""
    try:
        yield
    except BadInputError as error:
        hint = f"{error.hint} (--replace)" if isinstance(error, TableExistsError) else error.hint
        raise StatementError(f"{table}: {error.message}", table.place, hint) from error


# --------------------------------------------------------------------------------------------------
# Whether a query has the columns that a model wants; names those that changed.


def check_model_columns(model: ModelDescription, rows: ExtractedRows, place: TextPosition) -> None:
    """Refuse rows that lack a column of the model, or have it with another kind of type.

    Args:
        model: with its inputs.
        rows: of the query.
        place: of the query.

    Raises:
        BadInputError: see above.
    """
    columns = {each.name: each for each in rows.columns}
    faults = list[str]()
    for name, kind in {each.column: each.kind for each in model.inputs}.items():
        if name not in columns:
            faults.append(f"{name} is missing{_guess_new_name(name, columns, model.columns)}")
            continue
        now = kind_of(columns[name].type)
        if _KIND_GROUPS.get(now) != _KIND_GROUPS.get(kind) and not _has_only_nulls(columns[name], rows.rows):
            faults.append(
                f"{name} was {_KIND_GROUPS.get(kind, kind)} ({model.columns.get(name)}), and is {columns[name].type}"
            )
    if faults:
        whose = f"{model.name}@{model.version}" if model.version else "the model"
        raise StatementError(
            f"the columns are not those that {whose} wants: {format_short_list(faults, 10, separator='; ')}",
            place,
            f"it takes {list_names(list(dict.fromkeys(each.column for each in model.inputs)))}",
        )


def _guess_new_name(name: str, columns: Mapping[str, Any], known: Mapping[str, str]) -> str:
    """What a column may be called now: one that the model has not seen."""
    near = get_close_matches(name, [each for each in columns if each not in known], 1)
    return f" (is it {near[0]} now?)" if near else ""


def _has_only_nulls(column: ExtractedColumn, rows: int) -> bool:
    """Whether a column has no values, and so no type of its own."""
    return str(column.type) in ("double", "null") and column.nulls == rows
