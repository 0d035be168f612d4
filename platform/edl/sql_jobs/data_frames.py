"""Statements from Python: ``edl.sql``. What a statement returns becomes a dataframe of pandas."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from edl.api.errors import BadInputError
from edl.jobfile.database_address import DATABASE_VARIABLE, address_to_store
from edl.sql_jobs.model_registry import ModelRegistry, describe_model
from edl.sql_jobs.statement_parser import parse_with_texts
from edl.sql_jobs.statement_runner import (
    DropResult,
    ExplainResult,
    MetricsResult,
    ModelsResult,
    Observer,
    Result,
    ShowTrainResult,
    StatementRunner,
    TrainResult,
    check_stream_value,
    dialect_of,
)
from edl.sql_jobs.undefined_metrics import Metrics

if TYPE_CHECKING:
    import pandas as pd

FRAME_HINT = "pip install 'edl-platform[train,sql,pandas]'"


class RowCollector(Observer):
    """Keeps the rows of a query, or those with predictions."""

    wants_rows = True

    def __init__(self) -> None:
        self.batches = list[pa.RecordBatch]()

    def row_batch(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)


def run_to_frame(
    statements: str,
    database: str | None,
    *,
    replace: bool,
    models: str | Path | None,
    export: str | Path | None,
    query_timeout: float | None,
    stream: str = "",
) -> pd.DataFrame:
    """What ``edl.sql`` does; its docstring has the arguments."""
    require_pandas()
    check_stream_value(stream, submit=False)
    database = address_to_store(database or os.environ.get(DATABASE_VARIABLE))
    parsed = parse_with_texts(statements, dialect_of(database))
    if not parsed:
        raise BadInputError("has no statement", where="the text", hint='write edl.sql("SELECT …")')
    runner = StatementRunner(
        database,
        ModelRegistry(None if models is None else Path(models)),
        replaces=replace,
        export=None if export is None else Path(export),
        query_seconds=query_timeout,
        stream=stream,
    )
    runner.check([statement for statement, _ in parsed])  # before the first one runs
    for statement, text in parsed:
        runner.observer = collector = RowCollector()
        result = runner.run(statement, text)
    return result_frame(result, collector.batches)


def require_pandas() -> None:
    """Say what to install.

    Raises:
        BadInputError: pandas is not installed.
    """
    try:
        import pandas  # noqa: F401
    except ImportError as error:
        raise BadInputError(f"edl.sql needs the package {error.name}", hint=FRAME_HINT) from error


def result_frame(result: Result, batches: Sequence[pa.RecordBatch]) -> pd.DataFrame:
    """A result as a dataframe: rows of a query and of predictions, otherwise metrics or a list."""
    import pandas as pd

    if isinstance(result, TrainResult | MetricsResult):
        metrics = result.metrics if isinstance(result, MetricsResult) else result.model.metrics
        return pd.DataFrame([_as_numbers(metrics)])
    if isinstance(result, ExplainResult):
        return pd.DataFrame(
            [(each.column, each.mean, each.deviation) for each in result.importance],
            columns=["column", "importance", "deviation"],
        )
    if isinstance(result, ModelsResult):
        described = [_without_texts(describe_model(each)) | _as_numbers(each.metrics) for each in result.models]
        return pd.DataFrame(
            described, columns=None if described else ["model", "version", "label", "estimator", "rows"]
        )
    if isinstance(result, ShowTrainResult):
        return pd.DataFrame(list(result.model.plan), columns=["column", "becomes", "because"])
    if isinstance(result, DropResult):
        return pd.DataFrame({"model": result.name, "version": list(result.versions)})
    if not batches:
        return pd.DataFrame(columns=list(getattr(result, "names", ())))
    frame: pd.DataFrame = pa.Table.from_batches(batches).to_pandas(date_as_object=False)
    return frame


def _as_numbers(metrics: Metrics) -> dict[str, float]:
    """What is undefined is NaN, so that columns stay numbers."""
    return {name: math.nan if value is None else value for name, value in metrics.items()}


def _without_texts(described: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in described.items() if name != "metrics"}
