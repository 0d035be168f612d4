"""Records of a table as one array for each column, and records of any kind by their numbers.

A reader may return its records as a list, as a NumPy array (records first), or as :class:`ColumnRecords`. ``feed`` then
gets single records, arrays, or mappings from a column's name to its value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class RaggedColumn:
    """A column whose cells are lists of different lengths.

    Args:
        values: the items of all cells, one cell after another: an array, or another such column for lists of lists.
        bounds: ``[records + 1]``, int64: cell ``i`` is ``values[bounds[i]:bounds[i + 1]]``.
    """

    values: Any
    bounds: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all items, and of the bounds of lists of lists."""
        inner = self.values.bounds.nbytes if isinstance(self.values, RaggedColumn) else 0
        return int(self.values.nbytes) + inner

    def cell(self, record: int) -> Any:
        """The items of one record's cell: an array; a list of arrays for lists of lists."""
        items = _slice(self.values, self.bounds[record], self.bounds[record + 1])
        return [items.cell(item) for item in range(len(items))] if isinstance(items, RaggedColumn) else items

    def slice(self, start: int, end: int) -> RaggedColumn:
        """The cells of records ``[start, end)``."""
        bounds = self.bounds[start : end + 1]
        return RaggedColumn(_slice(self.values, bounds[0], bounds[-1]), bounds - bounds[0])

    def take(self, records: npt.NDArray[np.int64]) -> RaggedColumn:
        """The cells of these records, in this order."""
        begins = self.bounds[records]
        lengths = self.bounds[records + 1] - begins
        bounds = np.concatenate(([0], np.cumsum(lengths)))
        # Number of each item: its place within its cell, from where the cell begins.
        items = np.arange(bounds[-1]) + np.repeat(begins - bounds[:-1], lengths)
        values = self.values.take(items) if isinstance(self.values, RaggedColumn) else self.values[items]
        return RaggedColumn(values, bounds)


Column: TypeAlias = npt.NDArray[Any] | RaggedColumn


@dataclass(frozen=True, slots=True)
class ColumnRecords(Sequence[Mapping[str, Any]]):
    """Records as columns; one record is a mapping from each column's name to its cell.

    Args:
        columns: at least one column; all have the same number of records.
    """

    columns: Mapping[str, Column]

    def __post_init__(self) -> None:
        sizes = {name: len(column) for name, column in self.columns.items()}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"columns need the same number of records: {sizes}")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return (self[record] for record in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> ColumnRecords: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | ColumnRecords:
        if isinstance(index, slice):
            start, end, step = index.indices(len(self))
            if step != 1:
                return self.take(np.arange(start, end, step))
            return ColumnRecords({name: _slice(column, start, end) for name, column in self.columns.items()})
        at = range(len(self))[index]
        return {
            name: column.cell(at) if isinstance(column, RaggedColumn) else column[at]
            for name, column in self.columns.items()
        }

    def take(self, records: npt.NDArray[np.int64]) -> ColumnRecords:
        """The records with these numbers, in this order."""
        return ColumnRecords(
            {
                name: column.take(records) if isinstance(column, RaggedColumn) else column[records]
                for name, column in self.columns.items()
            }
        )


def _slice(column: Any, start: int, end: int) -> Any:
    return column.slice(start, end) if isinstance(column, RaggedColumn) else column[start:end]


def take_records(records: Sequence[Any], numbers: npt.NDArray[np.int64]) -> Sequence[Any]:
    """The records with these numbers, in this order, in the form in which they are."""
    if isinstance(records, ColumnRecords):
        return records.take(numbers)
    if isinstance(records, np.ndarray):
        return records[numbers]
    return [records[number] for number in numbers.tolist()]


def join_records(parts: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """All records, one part after another, in the form of the parts; a list if the forms differ."""
    filled = [part for part in parts if len(part)]
    if len(filled) == 1:
        return filled[0]
    if not filled:
        return parts[0] if len(parts) == 1 else []
    if all(isinstance(part, ColumnRecords) for part in filled):
        names = filled[0].columns  # type: ignore[attr-defined]
        return ColumnRecords({name: _join([part.columns[name] for part in filled]) for name in names})  # type: ignore[attr-defined]
    if all(isinstance(part, np.ndarray) for part in filled):
        return np.concatenate(filled)  # type: ignore[return-value,unused-ignore]
    return [record for part in filled for record in part]


def _join(columns: Sequence[Column]) -> Column:
    ragged = [column for column in columns if isinstance(column, RaggedColumn)]
    if len(ragged) != len(columns):
        return np.concatenate([column for column in columns if not isinstance(column, RaggedColumn)])
    starts = np.cumsum([0, *(len(column.values) for column in ragged)])
    bounds = [column.bounds[1:] + start for column, start in zip(ragged, starts.tolist(), strict=False)]
    return RaggedColumn(_join([column.values for column in ragged]), np.concatenate([[0], *bounds]))
