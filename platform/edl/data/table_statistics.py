"""Statistics of the columns of a table: one pass, bounded memory, partial results that merge.

``TableStatistics.to_json`` documents the result, which ``edl data stats --json`` prints and ``edl.layers`` reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from edl.api.errors import BadInputError
from edl.data.sketches import (
    TEXT_BYTES,
    DistinctSketch,
    FrequentValues,
    Moments,
    QuantileSketch,
    hash_bytes,
    hash_numbers,
)

VERSION = 1
QUANTILE_STEPS = 1000
HISTOGRAM_BINS = 40


@dataclass
class ColumnStatistics:
    """What is known of one column.

    Args:
        name: of the column.
        type_name: Arrow's name of its type; of a list, its items are the values.
        kind: ``number`` (also times), ``boolean`` or ``text`` (also bytes).
    """

    name: str
    type_name: str
    kind: str
    count: int = 0
    missing: int = 0
    infinite: int = 0
    minimum: Any = None
    maximum: Any = None
    moments: Moments = field(default_factory=Moments)
    quantiles: QuantileSketch = field(default_factory=QuantileSketch)
    distinct: DistinctSketch = field(default_factory=DistinctSketch)
    frequent: FrequentValues = field(default_factory=FrequentValues)

    @classmethod
    def of_field(cls, name: str, kind: Any) -> ColumnStatistics:
        """Statistics of no value yet, for a column of an Arrow type."""
        plain = plain_type(kind)
        frequent = FrequentValues(needs_all=pa.types.is_floating(plain))
        group = {pa.bool_(): "boolean", pa.large_binary(): "text"}.get(plain, "number")
        return cls(name, str(kind), group, frequent=frequent)

    def add(self, array: Any) -> None:
        """Add an Arrow array of the column's type."""
        values = _plain_values(array)
        self.missing += values.null_count + _missing_lists(array)
        values = values.drop_null()
        if self.kind == "number" and pa.types.is_floating(values.type):
            numbers = values.to_numpy(zero_copy_only=False)
            if not (is_finite := np.isfinite(numbers)).all():
                self.missing += int(np.isnan(numbers).sum())
                self.infinite += int(np.isinf(numbers).sum())
                values = values.filter(pa.array(is_finite))
        if len(values):
            self._add_present(values)

    def _add_present(self, values: Any) -> None:
        self.count += len(values)
        extremes = pc.min_max(values).as_py()
        self._extend(extremes["min"], extremes["max"])
        if self.kind == "text":
            self.distinct.add(hash_bytes(values))
            longest = pc.max(pc.binary_length(values)).as_py()
            self.frequent.add(pc.binary_slice(values, 0, TEXT_BYTES) if longest > TEXT_BYTES else values)
            return
        if self.kind == "boolean":
            numbers = values.cast(pa.int8()).to_numpy().astype(np.float64)
            self.distinct.add(hash_numbers(np.unique(numbers)))
        else:
            array = values.to_numpy(zero_copy_only=False)
            numbers = array.astype(np.float64)
            # 0.0 and -0.0 are one value.
            self.distinct.add(hash_numbers(array + 0.0 if array.dtype.kind == "f" else array))
        self.moments.add(numbers)
        self.quantiles.add(numbers)
        self.frequent.add(values)

    def merge(self, other: ColumnStatistics) -> None:
        """Add the statistics of another part of the data."""
        self.count += other.count
        self.missing += other.missing
        self.infinite += other.infinite
        if other.count:
            self._extend(other.minimum, other.maximum)
        self.moments.merge(other.moments)
        self.quantiles.merge(other.quantiles)
        self.distinct.merge(other.distinct)
        self.frequent.merge(other.frequent)

    def _extend(self, least: Any, greatest: Any) -> None:
        # Not longer than needed: a column may hold whole documents.
        least, greatest = (item[:TEXT_BYTES] if isinstance(item, bytes) else item for item in (least, greatest))
        self.minimum = least if self.minimum is None else min(self.minimum, least)
        self.maximum = greatest if self.maximum is None else max(self.maximum, greatest)

    def to_json(self, top: int) -> dict[str, Any]:
        """See ``TableStatistics.to_json``."""
        entry: dict[str, Any] = {
            "name": self.name,
            "type": self.type_name,
            "kind": self.kind,
            "count": self.count,
            "missing": self.missing,
            "min": _json_value(self.minimum),
            "max": _json_value(self.maximum),
            "distinct": self.distinct.estimate,
            "distinct_error": self.distinct.error,
            "top": [[_json_value(value), count] for value, count in self.frequent.most_frequent(top)],
            "top_error": self.frequent.error,
        }
        if self.kind != "text":
            entry |= {"infinite": self.infinite, "mean": None, "std": None, "quantiles": [], "quantile_error": 0.0}
        if self.kind != "text" and self.count:
            shares = np.linspace(0, 1, QUANTILE_STEPS + 1)
            values = self.quantiles.quantiles(shares)
            values[0], values[-1] = self.minimum, self.maximum
            entry |= {
                "mean": self.moments.mean,
                "std": self.moments.deviation,
                "quantiles": values.tolist(),
                "quantile_error": self.quantiles.rank_error / self.count,
                "histogram": self._histogram(),
            }
        return entry

    def _histogram(self) -> dict[str, list[Any]]:
        least, greatest = float(self.minimum), float(self.maximum)
        if not np.isfinite(greatest - least) or least == greatest:
            return {"edges": [least, greatest], "counts": [self.count]}
        edges = np.linspace(least, greatest, HISTOGRAM_BINS + 1)
        cumulated = self.quantiles.counts_below(edges)
        cumulated[0], cumulated[-1] = 0, self.count
        return {"edges": edges.tolist(), "counts": np.diff(cumulated).tolist()}


_MOST_PLACES = 10
"""Damaged places that are named; all of their records are counted."""


@dataclass
class TableStatistics:
    """Statistics of all columns of a part of a table."""

    records: int = 0
    corrupt_records: int = 0
    columns: dict[str, ColumnStatistics] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)

    def add_damage(self, place: str, records: int) -> None:
        """Count records that cannot be read, and note the place if it is one of the first."""
        self.corrupt_records += records
        self.damaged = [*self.damaged, place][:_MOST_PLACES]

    def add(self, batch: Any) -> None:
        """Add an Arrow record batch or table; all have the same columns."""
        self.records += batch.num_rows
        for entry, column in zip(batch.schema, batch.columns, strict=True):
            if entry.name not in self.columns:
                self.columns[entry.name] = ColumnStatistics.of_field(entry.name, entry.type)
            self._check_type(entry.name, str(entry.type))
            for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
                self.columns[entry.name].add(chunk)

    def merge(self, other: TableStatistics) -> None:
        """Add the statistics of another part."""
        self.records += other.records
        self.corrupt_records += other.corrupt_records
        self.damaged = [*self.damaged, *other.damaged][:_MOST_PLACES]
        for name, column in other.columns.items():
            if name in self.columns:
                self._check_type(name, column.type_name)
                self.columns[name].merge(column)
            else:
                self.columns[name] = column

    def _check_type(self, name: str, type_name: str) -> None:
        expected = self.columns[name].type_name
        if type_name != expected:
            raise BadInputError(
                f"column {name} is {expected} in one part of the data and {type_name} in another",
                hint="write the column with one type, or name the other columns",
            )

    def to_json(self, top: int) -> dict[str, Any]:
        """The result as JSON values.

        ``version``, ``records``, ``corrupt_records``, ``damaged`` (the first ten places) and ``columns``: a list of
        ``name``, ``type`` (Arrow's), ``kind``
        (``number``, ``boolean``, ``text``), ``count`` (values that are there), ``missing`` (null, NaN, an empty cell),
        ``min``, ``max``, ``distinct`` with its relative ``distinct_error`` (95 of 100 estimates are closer), ``top``
        (value and count, most frequent first; at least this count, at most ``top_error`` more). Numbers and booleans
        also have ``infinite`` (in none of the others), ``mean``, ``std`` (of the population), ``quantiles`` (1001
        values at the shares 0, 0.001 to 1) with ``quantile_error`` (a bound of the share by which a rank is wrong) and
        ``histogram`` (``edges``, and ``counts`` with the error of quantiles).
        """
        columns = [column.to_json(top) for column in self.columns.values()]
        return {
            "version": VERSION,
            "records": self.records,
            "corrupt_records": self.corrupt_records,
            "damaged": self.damaged,
            "columns": columns,
        }


def _json_value(value: Any) -> Any:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


# --------------------------------------------------------------------------------------------------
# Arrow's types as the few that are summarized.


def plain_type(kind: Any) -> Any:
    """``int64``, ``float64``, ``bool`` or ``large_binary``.

    Raises:
        ValueError: values of this type are none of these.
    """
    if pa.types.is_dictionary(kind) or _is_list(kind):
        return plain_type(kind.value_type)
    if pa.types.is_boolean(kind):
        return pa.bool_()
    if pa.types.is_uint64(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return pa.float64()
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        return pa.int64()
    if pa.types.is_fixed_size_binary(kind) or str(kind) in ("string", "large_string", "binary", "large_binary"):
        return pa.large_binary()
    raise ValueError(f"no numbers, text or times: {kind}")


def _plain_values(array: Any) -> Any:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if _is_list(array.type):
        return _plain_values(array.flatten())
    kind = array.type
    if pa.types.is_temporal(kind):
        array = array.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    return array.cast(plain_type(kind), safe=False)


def _missing_lists(array: Any) -> int:
    return int(array.null_count) if _is_list(array.type) else 0


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
