"""What ``edl sql`` prints: the plan before a training, its progress, and results as tables and plots."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from edl.reporting.terminal_text import to_single_line
from edl.reporting.text_table import StatusLine, align_columns
from edl.sql_jobs.column_plan import ColumnPlan, ColumnUse, LabelKind, list_names
from edl.sql_jobs.estimators import ESTIMATORS
from edl.sql_jobs.later_trainings import CLEAR_GAIN, REFIT_JOB_FILE
from edl.sql_jobs.model_registry import ModelDescription, describe_model
from edl.sql_jobs.permutation_importance import SCORES
from edl.sql_jobs.prepared_rows import PreparedRows
from edl.sql_jobs.statement_runner import (
    STREAM_INCONSISTENT,
    STREAM_SNAPSHOT,
    DropResult,
    ExplainResult,
    MetricsResult,
    ModelsResult,
    Observer,
    PredictResult,
    Result,
    RowsResult,
    ShowTrainResult,
    TrainResult,
)
from edl.sql_jobs.training_settings import TrainingSettings
from edl.sql_jobs.undefined_metrics import Metrics, format_metric, undefined_lines

STREAM_TEXTS = {
    STREAM_SNAPSHOT: "snapshot: the rows stayed in the database, and were read in one state of it",
    STREAM_INCONSISTENT: "inconsistent: the rows stayed in the database, and may be of several states of it",
}
_MOST_COLUMNS = 40
"""Columns of a plan that are printed one by one."""
_MANY_LAYERS = 1000
"""From which a training spends more time on the layers of its columns than on its rows."""
_JOINED_USES = (ColumnUse.NUMBER, ColumnUse.LOG_NUMBER, ColumnUse.BOOLEAN, ColumnUse.DATE)
"""Uses whose columns are one layer together, unless each is a vector of its own."""
_PLOT_WIDTH, _PLOT_HEIGHT, _BAR = 60, 10, 40
_MOST_CELL = 40
_PROGRESS_SECONDS = 0.2


class TerminalObserver(Observer):
    """Prints the plan, and progress in one line that is replaced on a terminal."""

    def __init__(self) -> None:
        self._line = StatusLine()
        self._is_terminal = sys.stderr.isatty()
        self._next = 0.0
        self._rows = 0
        self._training = "training"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._show("")

    def extracted(self, rows: int) -> None:
        self._rows = rows
        self._show(f"reading the query: {rows:,} rows")

    def streamed(self, key: str, *, is_consistent: bool) -> None:
        self._show("")
        if is_consistent:
            print(f"The rows stay in the database, which is read by ranges of {key} in one snapshot.", flush=True)
            return
        print(
            f"warning: the rows stay in the database, which is read by ranges of {key} without a snapshot "
            "(--stream=inconsistent): what others write meanwhile may be read or not",
            flush=True,
        )

    def planned(self, plan: ColumnPlan, settings: TrainingSettings, rows: PreparedRows) -> None:
        self._show("")
        print("\n".join(plan_lines(plan, settings, rows)), flush=True)

    def training(self, text: str) -> None:
        self._training = text

    def job_event(self, event: Mapping[str, Any]) -> None:
        if event.get("event") == "status" and event.get("phase") == "Training":
            loss = event.get("loss")
            text = f"{self._training}: epoch {event['epoch']} of {event['epochs']}, step {event['step']:,}"
            self._show(text + (f", loss {loss:.4g}" if loss is not None else ""))
        elif event.get("event") == "status" and event.get("phase") == "Predicting":
            self._show(f"predicting: {event['records_done']:,} of {event['records_total']:,} rows")
        elif event.get("event") == "evaluation_ended":
            metrics = ", ".join(f"{name} {format_metric(value, 4)}" for name, value in event["metrics"].items())
            self._show(f"step {event['step']:,}: {metrics}")
        elif event.get("event") == "warning":
            self._show("")
            print(f"warning: {to_single_line(str(event.get('message', '')))}", file=sys.stderr)

    def _show(self, text: str) -> None:
        """Replace the line of progress; the empty text removes it."""
        if not self._is_shown() or (text and time.monotonic() < self._next):
            return
        self._next = time.monotonic() + _PROGRESS_SECONDS
        self._replace_line(text)

    def _is_shown(self) -> bool:
        return self._is_terminal

    def _replace_line(self, text: str) -> None:
        if text:
            self._line.show_text(text, permanent=False)
        else:
            self._line.clear()


def plan_lines(plan: ColumnPlan, settings: TrainingSettings, rows: PreparedRows) -> list[str]:
    """The plan of a training as a table, with the reason of each decision."""
    label = plan.label
    lines = [
        f"{rows.training:,} rows to train on, {rows.validation:,} for validation (chosen by a hash of the row)",
        f"label {label.name}: {label.kind}, because {label.reason}",
        f"model {settings.estimator}: {settings.reason}",
        *_strategy_lines(settings),
        *_later_lines(settings, rows),
        *(f"{name} has no effect: {reason}" for name, reason in settings.without_effect.items()),
        "",
    ]
    # What is dropped first, where not all can be shown.
    order = sorted(range(len(plan.features)), key=lambda at: plan.features[at].use is not ColumnUse.DROPPED)
    shown = [plan.features[at] for at in sorted(order[:_MOST_COLUMNS])]
    table = [("column", "type", "becomes", "because")]
    for each in shown:
        part = f" ({each.part})" if each.part else ""
        table.append((each.name, each.facts.type_name, f"{each.use}{part}", each.reason))
    lines += align_columns(table)
    if len(plan.features) > len(shown):
        lines.append(f"and {len(plan.features) - len(shown):,} more columns; --export writes all of them")
    joins = settings.estimator in ESTIMATORS and settings.estimator != "deepfm"
    layers = sum(not joins or each.use not in _JOINED_USES or each.ids is not None for each in plan.used)
    if layers > _MANY_LAYERS:
        lines.append(
            f"warning: {layers:,} columns have layers of their own, which takes minutes to build and to export; name "
            "fewer in the SELECT"
        )
    return [*lines, ""]


def _strategy_lines(settings: TrainingSettings) -> list[str]:
    """Why the job is not one process, if the plan decides that."""
    if settings.strategy == "Local":
        return []
    return [
        f"strategy {settings.strategy}: the vectors of categories have {settings.vector_numbers:,} numbers "
        "(WITH strategy.name='Local': one process trains)"
    ]


def _later_lines(settings: TrainingSettings, rows: PreparedRows) -> list[str]:
    """What trains after the first training of a small table, or why nothing does."""
    if not settings.refits:
        return [f"no training on all rows afterwards: {settings.refit_reason}"] if settings.refit_reason else []
    compared = (
        [
            "a linear model trains, too; the network is kept if it makes the log-likelihood of the validation rows "
            f"clearly higher (by {CLEAR_GAIN:g}, and ln of how often it was evaluated)"
        ]
        if settings.compares
        else []
    )
    return [
        *compared,
        f"when it is measured, the model trains again on all {rows.training + rows.validation:,} rows "
        "(WITH validation.refit=false: it does not)",
    ]


def _measured_lines(model: ModelDescription) -> list[str]:
    """What was chosen, and of which rows and which training the metrics are."""
    # Models of earlier versions do not say how many rows it were.
    rows = f" on {_count_rows(model.validation_rows)}" if model.validation_rows else ""
    lines = list[str]()
    if model.refit_epochs:
        again = f"before the model was trained again on all rows, for {model.refit_epochs:,} epochs"
        lines.append(f"measured{rows}, {again}" if rows else f"measured {again}")
    elif rows:
        lines.append(f"measured{rows} that it was not trained on")
    if model.unmeasured_classes:
        names = list_names([repr(each) for each in model.unmeasured_classes])
        lines.append(f"none of these rows is {names}: the metrics say nothing of that")
    return [*lines, *([f"chosen: {model.choice}"] if model.choice else [])]


def print_result(result: Result) -> None:
    """Print what a statement returned."""
    print("\n".join(result_lines(result)), flush=True)


def result_lines(result: Result) -> list[str]:
    """What a statement returned, as text."""
    if isinstance(result, TrainResult):
        lines = [*plot_history(result.model.history), *metric_lines(result.model.metrics)]
        lines += [*_measured_lines(result.model), ""]
        lines.append(f"The model is {result.model.name}@{result.model.version} in {result.model.folder}")
        if result.folder is not None:
            again = f" && edl run {REFIT_JOB_FILE}" if result.model.refit_epochs else ""
            lines.append(f"It trains again with: cd {result.folder} && edl run job.yaml{again}")
        return lines
    if isinstance(result, MetricsResult):
        lines = [
            f"{result.model.name}@{result.model.version} on {_count_rows(result.rows)}",
            *metric_lines(result.metrics),
        ]
        return [*lines, *([f"written to {result.table}"] if result.table else [])]
    if isinstance(result, PredictResult):
        name = f"{result.model.name}@{result.model.version}"
        return [f"{_count_rows(result.rows)} with predictions of {name} in {result.table}, column {result.column}"]
    if isinstance(result, ExplainResult):
        return explain_lines(result)
    if isinstance(result, ModelsResult):
        return _models_lines(result)
    if isinstance(result, ShowTrainResult):
        return show_train_lines(result)
    if isinstance(result, DropResult):
        return [f"dropped {result.name}, version {', '.join(map(str, result.versions))}"]
    return rows_lines(result)


def _count_rows(rows: int) -> str:
    return f"{rows:,} row{'' if rows == 1 else 's'}"


def metric_lines(metrics: Metrics) -> list[str]:
    """Metrics as a table, and why some of them are undefined."""
    rows = [(name, format_metric(value, 5)) for name, value in metrics.items()]
    return [*align_columns([("metric", "value"), *rows], {1}), *undefined_lines(metrics)]


def plot_history(history: Sequence[tuple[int, Metrics]]) -> list[str]:
    """The loss of the validation rows by step, as a plot of characters."""
    points = [(step, loss) for step, metrics in history if (loss := metrics.get("loss")) is not None]
    if len(points) < 2:
        return []
    least, most = min(loss for _, loss in points), max(loss for _, loss in points)
    first, last = points[0][0], points[-1][0]
    grid = [[" "] * _PLOT_WIDTH for _ in range(_PLOT_HEIGHT)]
    for step, loss in points:
        column = round((step - first) / max(1, last - first) * (_PLOT_WIDTH - 1))
        row = round((most - loss) / ((most - least) or 1) * (_PLOT_HEIGHT - 1))
        grid[row][column] = "*"
    labels = {0: f"{most:.4g}", _PLOT_HEIGHT - 1: f"{least:.4g}"}
    width = max(map(len, labels.values()))
    lines = [f"{labels.get(at, ''):>{width}} |{''.join(row).rstrip()}" for at, row in enumerate(grid)]
    axis = f"step {first:,}".ljust(_PLOT_WIDTH - len(f"{last:,}")) + f"{last:,}"
    return ["validation loss", *lines, f"{'':>{width}}  {axis}", ""]


def explain_lines(result: ExplainResult) -> list[str]:
    """Importance as a table with bars."""
    score = SCORES[LabelKind[result.model.label_kind]]
    most = max((each.mean for each in result.importance), default=0) or 1
    table = [("column", f"{score} lost", "deviation", "")]
    for each in result.importance:
        bar = "#" * max(0, round(each.mean / most * _BAR))
        table.append((each.column, f"{each.mean:.4f}", f"{each.deviation:.4f}", bar))
    lines = [f"{result.model.name}@{result.model.version} on {result.rows:,} rows, each column shuffled"]
    return [*lines, *align_columns(table, {1, 2}), *([f"written to {result.table}"] if result.table else [])]


def _models_lines(result: ModelsResult) -> list[str]:
    if not result.models:
        return ["there are no models"]
    rows = [describe_model(each) for each in result.models]
    return align_columns([tuple(rows[0]), *(tuple(map(str, each.values())) for each in rows)], {1, 4})


def show_train_lines(result: ShowTrainResult) -> list[str]:
    """How a model was trained."""
    model = result.model
    facts = [
        ("model", f"{model.name}@{model.version}"),
        ("trained", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(model.created))),
        ("database", model.database),
        ("rows", f"{model.rows:,}"),
        *([("stream", STREAM_TEXTS[model.stream])] if model.stream else []),
        ("digest", model.digest),
        ("estimator", model.estimator),
        ("folder", str(model.folder)),
    ]
    lines = [*model.statement.splitlines(), "", *align_columns(facts), "", *metric_lines(model.metrics)]
    lines += [*_measured_lines(model), ""]
    return [*lines, *align_columns([("column", "becomes", "because"), *map(tuple, model.plan)])]


def rows_lines(result: RowsResult) -> list[str]:
    """Rows of a query as a table."""
    if not result.total:
        return ["no rows"]
    table = [result.names, *(tuple(_cell(value) for value in row) for row in result.rows)]
    more = (
        [f"{result.total:,} rows, of which {len(result.rows):,} are shown"] if result.total > len(result.rows) else []
    )
    return [*align_columns(table), *more]


def _cell(value: object) -> str:
    text = "NULL" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _MOST_CELL else f"{text[: _MOST_CELL - 1]}…"
