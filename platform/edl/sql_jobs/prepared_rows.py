"""Writes the rows of a query in the form in which a model takes them: see ``model_inputs``.

A hash of what a row contains decides whether it is for training or for validation, so that the order of the rows does
not matter, and equal rows are on one side. In a table of few different rows, such as one of a few categories, a side
would then lack most of them: there the copies of a row are numbered, and divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from edl.data.sketches import hash_bytes, hash_numbers
from edl.sql_jobs.column_plan import LabelKind
from edl.sql_jobs.model_inputs import NUMBER, TEXT, ModelInputs
from edl.sql_jobs.row_statistics import Rows, count_rows, read_column_batches, to_days, to_text

_SMALL_TABLE = 10_000
"""Rows up to which the share for validation is exact."""
_GROUP_ROWS = 1 << 16
_LEAST_COPIES, _FEW_ROWS = 10, 10_000
"""Copies of each row on average from which they are divided, and different rows up to which they can be."""


@dataclass(frozen=True, slots=True)
class RowForm:
    """What prepared rows are made of.

    Attributes:
        inputs: of the model.
        label: column of the query; None: rows have no label.
        kind: what the model predicts: classes are texts, a number stays one.
    """

    inputs: ModelInputs
    label: str | None = None
    kind: LabelKind | None = None

    @property
    def query_columns(self) -> list[str]:
        """The columns of the query that are read."""
        columns = dict.fromkeys(each.column for each in self.inputs.inputs)
        return list(columns if self.label is None else columns | {self.label: None})

    def schema(self, *, stacked: bool = False) -> Any:
        """Arrow's types of prepared rows; ``stacked``: as ``stack_columns`` returns them."""
        inputs = self.inputs
        types = {NUMBER: pa.float32(), TEXT: pa.string()}
        fields = [(each.name, types[each.dtype]) for each in inputs.inputs]
        if stacked:
            sizes = {name: len(names) for name, names in inputs.matrices().items()}
            lists = {
                each.matrix: pa.list_(types[each.dtype], sizes[each.matrix]) for each in inputs.inputs if each.matrix
            }
            fields = list(
                {each.matrix or each.name: lists.get(each.matrix, types[each.dtype]) for each in inputs.inputs}.items()
            )
        if self.label is not None:
            fields.append((inputs.label, pa.float64() if self.kind is LabelKind.NUMBER else pa.string()))
        return pa.schema(fields)

    def prepare_batch(self, batch: Any) -> Any:
        """A record batch of the query as prepared rows."""
        arrays = [
            _to_number(batch.column(each.column))
            if each.dtype == NUMBER
            else _to_filled_text(batch.column(each.column))
            for each in self.inputs.inputs
        ]
        if self.label is not None:
            arrays.append(self.prepare_labels(batch.column(self.label)))
        return pa.Table.from_arrays(arrays, schema=self.schema())

    def prepare_labels(self, values: Any) -> Any:
        """Labels of the query as prepared rows have them."""
        return to_number(values) if self.kind is LabelKind.NUMBER else to_text(values)

    def prepare(self, rows: Rows) -> Iterator[Any]:
        """Rows of the query as prepared rows, in parts."""
        for batch in read_column_batches(rows, self.query_columns):
            yield self.prepare_batch(batch)


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """Numbers of rows that were written."""

    training: int
    validation: int


def prepare_training(files: Sequence[Path], form: RowForm, folder: Path, share: float) -> PreparedRows:
    """Write ``training`` and ``validation`` below a folder.

    Args:
        files: Parquet of the query.
        form: what is written.
        folder: gets the two folders.
        share: of the rows that are for validation.
    """
    division = _find_division(files, form, share)
    counts = [0, 0]
    schema = form.schema(stacked=True)
    writers = []
    try:
        for name in ("training", "validation"):
            (folder / name).mkdir(parents=True, exist_ok=True)
            writers.append(_open_writer(folder / name, schema))
        for table in form.prepare(files):
            is_validation = division.mark(table)
            for number, chosen in enumerate((~is_validation, is_validation)):
                part = stack_columns(table.filter(pa.array(chosen)), form.inputs)
                counts[number] += part.num_rows
                if part.num_rows:
                    writers[number].write_table(part, row_group_size=_GROUP_ROWS)
    finally:
        for writer in writers:
            writer.close()
    return PreparedRows(*counts)


def mark_validation(rows: Rows, form: RowForm, share: float) -> Any:
    """Which rows are for validation, those that ``prepare_training`` takes: ``[rows]``, bool."""
    division = _find_division(rows, form, share)
    parts = [division.mark(table) for table in form.prepare(rows)]
    return np.concatenate(parts) if parts else np.zeros(0, bool)


def prepare_prediction(files: Sequence[Path], form: RowForm, folder: Path) -> int:
    """Write all rows in their order; returns their number."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    with _open_writer(folder, form.schema(stacked=True)) as writer:
        for table in form.prepare(files):
            writer.write_table(stack_columns(table, form.inputs), row_group_size=_GROUP_ROWS)
            count += table.num_rows
    return count


def _open_writer(folder: Path, schema: Any) -> pq.ParquetWriter:
    # Of numbers, a dictionary and statistics take twice as long as all the rest, and files are larger.
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    path = folder / "part-00000.parquet"
    return pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=texts, write_statistics=False)


def stack_columns(table: Any, inputs: ModelInputs) -> Any:
    """The columns of each matrix as one, with a list of fixed size in each row; others stay as they are."""
    stacked = dict[str, Any]()
    for matrix, names in inputs.matrices().items():
        columns = [table.column(name) for name in names]
        cells = np.stack([column.to_numpy() for column in columns], axis=1) if table.num_rows else np.zeros((0, 1))
        flat = pa.array(cells.reshape(-1), columns[0].type)
        stacked[matrix] = pa.FixedSizeListArray.from_arrays(flat, len(names))
    wanted = _field_names(inputs, table.column_names)
    return pa.table([stacked[name] if name in stacked else table.column(name) for name in wanted], wanted)


def _field_names(inputs: ModelInputs, present: Sequence[str]) -> list[str]:
    """The columns of prepared rows in their order, the label last if it is there."""
    names = dict.fromkeys(each.matrix or each.name for each in inputs.inputs)
    return [*names, *([inputs.label] if inputs.label in present else [])]


def _to_number(array: Any) -> Any:
    """float32; NULL, and what is infinite, is NaN."""
    numbers = pc.fill_null(to_number(array), float("nan")).cast(pa.float32())
    finite = pc.is_finite(numbers)
    return numbers if pc.all(finite).as_py() else pc.if_else(finite, numbers, pa.scalar(float("nan"), pa.float32()))


def to_number(array: Any) -> Any:
    """Values as float64: of a time, days since 1970."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return to_days(array)
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        array = array.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    if pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    return array.cast(pa.float64(), safe=False)


def _to_filled_text(array: Any) -> Any:
    return pc.fill_null(to_text(array), "")


# --------------------------------------------------------------------------------------------------
# Training or validation.


def _hash_rows(table: Any) -> Any:
    """A number from 0 to 2**64 for each row, of its content."""
    hashes = np.zeros(table.num_rows, np.uint64)
    for column in table.columns:
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        if pa.types.is_string(array.type):
            part = hash_bytes(pc.fill_null(array, "").cast(pa.large_binary()))
        else:
            part = hash_numbers(array.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False) + 0.0)
        hashes = hash_numbers(hashes * np.uint64(31) + part)
    return hashes


class _Division:
    """Divides rows, in one pass over them.

    Args:
        limit: the hash below which a row is for validation.
        divides_copies: equal rows are numbered, and have hashes of their own.
    """

    def __init__(self, limit: Any, *, divides_copies: bool) -> None:
        self._limit = limit
        self._divides_copies = divides_copies
        self._copies = dict[int, int]()

    def mark(self, table: Any) -> Any:
        """Which of the next rows are for validation."""
        return self.hash(table) < self._limit

    def hash(self, table: Any) -> Any:
        """Hashes of the next rows."""
        hashes = _hash_rows(table)
        return self._number_copies(hashes) if self._divides_copies and len(hashes) else hashes

    def _number_copies(self, hashes: Any) -> Any:
        values, places, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        numbers = np.empty(len(hashes), np.uint64)
        in_order = np.argsort(places, kind="stable")
        numbers[in_order] = np.arange(len(hashes)) - np.repeat(np.cumsum(counts) - counts, counts)
        before = [self._copies.get(value, 0) for value in values.tolist()]
        numbers += np.array(before, np.uint64)[places]
        self._copies.update(zip(values.tolist(), (before + counts).tolist(), strict=True))
        return hash_numbers(hashes * np.uint64(31) + hash_numbers(numbers))


def _find_division(files: Rows, form: RowForm, share: float) -> _Division:
    rows = count_rows(files)
    divides = _has_few_rows(files, form, min(rows // _LEAST_COPIES, _FEW_ROWS))
    if rows > _SMALL_TABLE:
        return _Division(np.uint64(share * 2**64), divides_copies=divides)
    once = _Division(np.uint64(0), divides_copies=divides)
    parts = [once.hash(table) for table in form.prepare(files)]
    return _Division(_exact_limit(np.concatenate(parts) if parts else [], share), divides_copies=divides)


def _has_few_rows(files: Rows, form: RowForm, most: int) -> bool:
    """Whether there are at most so many different rows. As soon as there are more, no others are read."""
    hashes = np.zeros(0, np.uint64)
    for table in form.prepare(files):
        hashes = np.union1d(hashes, _hash_rows(table))
        if len(hashes) > most:
            return False
    return True


def _exact_limit(hashes: Any, share: float) -> Any:
    """The hash below which a row is for validation, so that the share is as wanted, and neither side is empty."""
    if len(hashes) < 2:
        return np.uint64(0)
    hashes = np.sort(hashes)
    place = min(max(1, round(share * len(hashes))), len(hashes) - 1)
    # Of equal rows that are the first ones, none is below the limit.
    larger = hashes[hashes > hashes[0]]
    return larger[0] if hashes[place] == hashes[0] and len(larger) else hashes[place]
