"""Metrics that have no value on some rows: the AUC where all labels are of one class, R2 where all are one number.

Keras returns 0 for them, which reads as a very bad model. Here such a value is None: NULL in a table, NaN in a
dataframe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.compute as pc
import pyarrow.parquet as pq

from edl.sql_jobs.column_plan import LabelKind

Metrics: TypeAlias = Mapping[str, float | None]
_NEEDS_LABELS = {LabelKind.BINARY: "auc", LabelKind.NUMBER: "r2"}
"""The metric that needs two different labels."""
_REASONS = {"auc": "all measured rows are of one class", "r2": "all measured rows have one value"}


def read_labels(folder: Path, label: str) -> Iterator[Any]:
    """The labels of prepared rows, a part at a time."""
    for file in sorted(folder.glob("*.parquet")):
        with pq.ParquetFile(file) as opened:
            for batch in opened.iter_batches(columns=[label]):
                yield batch.column(0)


def find_different(labels: Iterable[Any], most: int = 2) -> set[Any]:
    """Different values. When so many are found, no others are read."""
    values = set[Any]()
    for part in labels:
        values.update(pc.unique(part).to_pylist())
        if len(values) >= most:
            break
    return values


def mark_undefined(metrics: Metrics, kind: LabelKind, *, labels_differ: bool) -> dict[str, float | None]:
    """Metrics with None for the one that needs two different labels, if there are none."""
    name = None if labels_differ else _NEEDS_LABELS.get(kind)
    return {each: None if each == name else value for each, value in metrics.items()}


def format_metric(value: float | None, digits: int) -> str:
    """A value for people."""
    return "undefined" if value is None else f"{value:.{digits}g}"


def undefined_lines(metrics: Metrics) -> list[str]:
    """Why metrics are undefined."""
    return [f"{name} is undefined: {_REASONS[name]}" for name, value in metrics.items() if value is None]
