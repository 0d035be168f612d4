"""How much each column matters to a model: what its score loses when the values of the column are shuffled.

All shuffled copies of the rows are predicted by one job. Breiman, *Random Forests*, 2001.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from edl.sql_jobs.column_plan import LabelKind
from edl.sql_jobs.model_inputs import ModelInputs
from edl.sql_jobs.model_registry import ModelDescription
from edl.sql_jobs.prepared_rows import stack_columns

_MOST_ROWS = 2000
_MOST_CELLS = 2_000_000
"""Rows of all copies together, times the columns of each."""
MOST_COLUMNS = 1000
"""Columns that are shuffled one by one: with more, the copies have billions of cells."""
_REPEATS = 3
_LABELS_FILE, _COLUMNS_FILE = "labels.parquet", "columns.json"
SCORES = {LabelKind.BINARY: "accuracy", LabelKind.CLASSES: "accuracy", LabelKind.NUMBER: "r2"}


@dataclass(frozen=True, slots=True)
class ColumnImportance:
    """A column: by how much shuffling it lowers the score, on average, and the deviation of the repetitions."""

    column: str
    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class PermutedRows:
    """What was written: the rows as they are, then for each column so many copies with this column shuffled."""

    rows: int
    columns: Sequence[str]
    repeats: int
    labels: Any

    def save(self, folder: Path) -> None:
        """Write into a new folder what the copies do not say themselves."""
        folder.mkdir()
        pq.write_table(pa.table({"label": self.labels.tolist()}), folder / _LABELS_FILE)
        text = json.dumps({"columns": list(self.columns), "repeats": self.repeats}, ensure_ascii=False)
        (folder / _COLUMNS_FILE).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> PermutedRows:
        """Read what ``save`` wrote."""
        content = json.loads((folder / _COLUMNS_FILE).read_text(encoding="utf-8"))
        labels = pq.read_table(folder / _LABELS_FILE)["label"].to_numpy()
        return cls(len(labels), content["columns"], content["repeats"], labels)


def write_permutations(source: Path, inputs: ModelInputs, folder: Path, seed: int = 0) -> PermutedRows:
    """Write a sample of prepared rows, and its shuffled copies.

    Args:
        source: rows with an input for each column.
        inputs: of the model; if it takes matrices, the copies have these.
        folder: gets the copies.
        seed: of the shuffling.
    """
    table = pq.read_table(source)
    columns = list(dict.fromkeys(each.column for each in inputs.inputs))
    rng = np.random.default_rng(seed)
    most = min(_MOST_ROWS, max(100, _MOST_CELLS // (_REPEATS * len(columns) * len(inputs.inputs))))
    if table.num_rows > most:
        table = table.take(pa.array(np.sort(rng.choice(table.num_rows, most, replace=False))))
    labels = table[inputs.label].to_numpy()
    rows = table.select([each.name for each in inputs.inputs])
    folder.mkdir(parents=True)
    written = stack_columns(rows, inputs)
    with pq.ParquetWriter(folder / "part-00000.parquet", written.schema, compression="zstd") as writer:
        writer.write_table(written)
        for column in columns:
            for _ in range(_REPEATS):
                shuffled = rows
                order = pa.array(rng.permutation(rows.num_rows))
                for at, each in enumerate(inputs.inputs):
                    if each.column == column:
                        shuffled = shuffled.set_column(at, each.name, rows.column(at).take(order))
                writer.write_table(stack_columns(shuffled, inputs))
    return PermutedRows(rows.num_rows, columns, _REPEATS, labels)


def importance_table(importance: Sequence[ColumnImportance]) -> list[Any]:
    """Importance as batches of a table."""
    columns = {
        "column": [each.column for each in importance],
        "importance": [each.mean for each in importance],
        "deviation": [each.deviation for each in importance],
    }
    batches: list[Any] = pa.table(columns).to_batches()
    return batches


def score_permutations(
    permuted: PermutedRows, outputs: Callable[[int], Any], model: ModelDescription
) -> list[ColumnImportance]:
    """The importance of each column, the largest first."""
    full = _score(outputs(permuted.rows), permuted.labels, model)
    importances = []
    for column in permuted.columns:
        losses = [full - _score(outputs(permuted.rows), permuted.labels, model) for _ in range(permuted.repeats)]
        importances.append(ColumnImportance(column, float(np.mean(losses)), float(np.std(losses))))
    return sorted(importances, key=lambda each: -each.mean)


def _score(outputs: Any, labels: Any, model: ModelDescription) -> float:
    """Accuracy of classes, R2 of a number."""
    if LabelKind[model.label_kind] is LabelKind.NUMBER:
        wanted = labels.astype(float)
        spread = float(((wanted - wanted.mean()) ** 2).sum()) or 1.0
        return 1 - float(((wanted - outputs[:, 0]) ** 2).sum()) / spread
    numbers = (outputs[:, 0] >= 0.5).astype(int) if outputs.shape[1] == 1 else outputs.argmax(1)
    return float((np.array(model.classes, object)[numbers] == labels).mean())
