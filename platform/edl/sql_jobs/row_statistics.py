"""Statistics of the rows of a query, as the plan of columns needs them."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from edl.data.sketches import FrequentValues
from edl.data.table_scan import scan_table
from edl.data.table_statistics import TableStatistics
from edl.sql_jobs.column_plan import MOST_CLASSES, MOST_ONE_HOT, MOST_WORDS, TEXT_WORDS, ColumnFacts

_VOCABULARY = 2000
"""Words of a text that get a vector."""
_SAMPLED_ROWS = 1 << 16
"""Rows from which the words of texts are taken."""
_BATCH_ROWS, _LEAST_BATCH_ROWS, _BATCH_CELLS = 1 << 16, 1 << 10, 1 << 24
_LEAST_CORRELATION = 1 - 1e-9
"""Correlation of two columns that are the same up to unit and zero."""


class QueriedRows(Protocol):
    """Rows that are in no files, and are read as often as they are needed, in the same order."""

    @property
    def schema(self) -> Any:
        """Arrow's types of the columns."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Record batches with these columns."""

    def summarize(self, columns: Sequence[str], threads: int) -> TableStatistics:
        """Statistics of these columns, those that ``scan_table`` finds for the same rows in files."""


Rows: TypeAlias = Sequence[Path] | QueriedRows
"""Parquet files with the same columns, or what is read like them."""


def collect_facts(files: Rows, label: str, threads: int = 2) -> list[ColumnFacts]:
    """What the plan needs to know of each column, in their order.

    Args:
        files: the rows.
        label: the name of the label's column; another name leaves out what compares columns with it.
        threads: that share the row groups.
    """
    schema = pq.read_schema(files[0]) if isinstance(files, Sequence) else files.schema
    taken = [field.name for field in schema if kind_of(field.type) != "other"]
    statistics = _summarize(files, taken, threads) if taken else TableStatistics()
    rows = count_rows(files)
    facts = [_facts_of(field, statistics, rows) for field in schema]
    texts = [each.name for each in facts if each.kind == "text" and each.distinct > MOST_ONE_HOT]
    words = _count_words(files, texts, threads)
    copies = _find_copies(files, facts, label)
    return [
        _replaced(each, words.get(each.name), copies_label=each.name in copies) if each.count else each
        for each in facts
    ]


def _summarize(files: Rows, columns: Sequence[str], threads: int) -> TableStatistics:
    if isinstance(files, Sequence):
        return scan_table([str(file) for file in files], {"format": "parquet", "columns": columns}, threads)
    return files.summarize(columns, threads)


def _replaced(facts: ColumnFacts, words: tuple[float, tuple[str, ...]] | None, *, copies_label: bool) -> ColumnFacts:
    mean, vocabulary = words or (1.0, ())
    return replace(facts, words=mean, vocabulary=vocabulary, copies_label=copies_label)


def kind_of(kind: Any) -> str:
    """The kind of a column, as ``ColumnFacts`` has it, of its Arrow type."""
    if pa.types.is_dictionary(kind):
        return kind_of(kind.value_type)
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "date"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    # A time of day and a duration are numbers; bytes, lists and structures have no meaning that could be guessed.
    return "number" if pa.types.is_time(kind) or pa.types.is_duration(kind) else "other"


def _facts_of(field: Any, statistics: TableStatistics, rows: int) -> ColumnFacts:
    kind, type_name = kind_of(field.type), str(field.type)
    if pa.types.is_null(field.type):
        return ColumnFacts(field.name, "number", 0, rows, 0, type_name)
    if kind == "other":
        return ColumnFacts(field.name, kind, rows, 0, rows, type_name)
    column = statistics.columns[field.name]
    count, missing = column.count, rows - column.count  # an infinite number is none that can be learnt from
    has_few = column.frequent.error == 0 and column.distinct.estimate <= (
        MOST_CLASSES if kind == "number" else MOST_WORDS
    )
    counted = column.frequent.most_frequent(MOST_WORDS) if has_few else []
    values = tuple((_as_text(value), number) for value, number in counted)
    if kind == "text":
        return ColumnFacts(field.name, kind, count, missing, column.distinct.estimate, type_name, values=values)
    if not count:
        return ColumnFacts(field.name, kind, 0, missing, 0, type_name)
    factor = _days_per_unit(field.type) if kind == "date" else 1.0
    quantiles = column.quantiles.quantiles(np.linspace(0, 1, 1001)) * factor
    logarithms = np.log1p(np.maximum(quantiles, 0))
    return ColumnFacts(
        field.name,
        kind,
        count,
        missing,
        column.distinct.estimate,
        type_name,
        has_time=pa.types.is_timestamp(field.type),
        minimum=float(column.minimum) * factor,
        maximum=float(column.maximum) * factor,
        mean=column.moments.mean * factor,
        deviation=column.moments.deviation * factor or 1.0,
        log_mean=float(logarithms.mean()),
        log_deviation=float(logarithms.std()) or 1.0,
        median=float(quantiles[500]),
        high=float(quantiles[990]),
        values=values,
    )


def _as_text(value: Any) -> str:
    """A value as ``to_text`` writes it."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, bool):
        return str(value).lower()
    # A column of whole numbers with NULLs may come as fractions.
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def to_text(array: Any) -> Any:
    """Values as texts, as vocabularies and classes have them."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_floating(array.type) or pa.types.is_decimal(array.type):
        numbers = array.cast(pa.float64(), safe=False).to_pylist()
        return pa.array([None if value is None else _as_text(value) for value in numbers], pa.string())
    if pa.types.is_boolean(array.type) or pa.types.is_integer(array.type):
        return array.cast(pa.string())
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return array.cast(pa.string())
    return array.cast(pa.string(), safe=False)


def to_days(array: Any) -> Any:
    """Dates and times as days since 1970, with fractions."""
    whole = array.cast(pa.int32() if array.type.bit_width == 32 else pa.int64()).cast(pa.float64())
    return pc.multiply(whole, _days_per_unit(array.type))


def _days_per_unit(kind: Any) -> float:
    if pa.types.is_date32(kind):
        return 1.0
    unit = "ms" if pa.types.is_date64(kind) else kind.unit
    return {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit] / 86400


# --------------------------------------------------------------------------------------------------
# What a second pass over some columns tells.


def count_rows(files: Rows) -> int:
    """The number of rows."""
    return sum(pq.read_metadata(file).num_rows for file in files) if isinstance(files, Sequence) else files.rows


def read_column_batches(files: Rows, columns: Sequence[str]) -> Iterator[Any]:
    """Record batches with these columns; of thousands of columns, with fewer rows."""
    if not isinstance(files, Sequence):
        yield from files.batches(columns)
        return
    rows = max(_LEAST_BATCH_ROWS, min(_BATCH_ROWS, _BATCH_CELLS // max(1, len(columns))))
    for file in files:
        with pq.ParquetFile(file) as opened:
            yield from opened.iter_batches(rows, columns=list(columns))


@dataclass
class _TextWords:
    """Words of a text column.

    Attributes:
        words: number of them in all texts so far.
        texts: number of these.
        frequent: counted as long as the texts are language.
    """

    words: int = 0
    texts: int = 0
    frequent: FrequentValues = field(default_factory=FrequentValues)

    def add(self, texts: Any) -> None:
        """Count the words of texts, some of which may be NULL."""
        texts = texts.drop_null()
        parts = pc.split_pattern_regex(pc.utf8_trim_whitespace(plain_words(texts)), r"\s+")
        self.words += int(pc.sum(pc.list_value_length(parts)).as_py() or 0)
        self.texts += len(texts)
        if self.words >= TEXT_WORDS * self.texts:
            words = parts.flatten()
            self.frequent.add(words.filter(pc.not_equal(words, "")).cast(pa.large_string()))


def _count_words(files: Rows, names: Sequence[str], threads: int) -> Mapping[str, tuple[float, tuple[str, ...]]]:
    """The number of words of each text, on average, and the most frequent words of those that are language."""
    if not names:
        return {}
    counted = {name: _TextWords() for name in names}
    rows = 0
    with ThreadPoolExecutor(threads) as pool:
        for batch in read_column_batches(files, names):
            for _ in pool.map(lambda name, batch=batch: counted[name].add(batch.column(name)), names):
                pass
            rows += batch.num_rows
            if rows >= _SAMPLED_ROWS:
                break
    return {
        name: (each.words / max(1, each.texts), tuple(word for word, _ in each.frequent.most_frequent(_VOCABULARY)))
        for name, each in counted.items()
    }


def plain_words(values: Any) -> Any:
    """Texts as Keras' ``TextVectorization`` sees them: small letters, without ASCII punctuation."""
    marks = "".join(f"\\{mark}" for mark in string.punctuation)
    return pc.replace_substring_regex(pc.utf8_lower(values), f"[{marks}]", "")


def _find_copies(files: Rows, facts: Sequence[ColumnFacts], label: str) -> set[str]:
    """Columns that say the same as the label: one value for each of its values, or the same number up to a factor."""
    target = next((each for each in facts if each.name == label and each.count), None)
    if target is None:
        return set()
    copies = set[str]()
    # Where hardly a value of the label comes twice, other numbers stand beside one each, too.
    if 2 <= target.distinct <= min(MOST_CLASSES, target.count // 2):
        copies = _find_renamed(files, [each.name for each in facts if _may_rename(each, target)], target)
    numbers = [each.name for each in facts if each.kind in ("integer", "number") and each.name != label and each.count]
    if target.kind in ("integer", "number") and target.distinct > 2 and numbers:
        copies |= _find_rescaled(files, numbers, label)
    return copies


def _may_rename(facts: ColumnFacts, target: ColumnFacts) -> bool:
    return facts.name != target.name and facts.distinct == target.distinct and facts.missing == target.missing


def _find_renamed(files: Rows, names: Sequence[str], target: ColumnFacts) -> set[str]:
    """Columns whose values and those of the label determine each other."""
    pairs: dict[str, dict[Any, Any]] = {name: {} for name in names}
    for batch in read_column_batches(files, [target.name, *names]) if names else ():
        for name in list(pairs):
            table = pa.table({"value": batch.column(name), "label": batch.column(target.name)})
            for row in table.group_by(["value", "label"], use_threads=False).aggregate([]).to_pylist():
                if pairs[name].setdefault(row["value"], row["label"]) != row["label"]:
                    del pairs[name]
                    break
        if not pairs:
            break
    return {name for name, labels in pairs.items() if len(set(labels.values())) == len(labels)}


def _find_rescaled(files: Rows, names: Sequence[str], label: str) -> set[str]:
    """Numbers that are a linear function of the label in all rows."""
    left = list(names)
    for batch in read_column_batches(files, [label, *names]):
        if batch.num_rows < 3:
            continue
        wanted = _numbers(batch.column(label))
        for name in list(left):
            values = _numbers(batch.column(name))
            both = np.isfinite(values) & np.isfinite(wanted)
            if both.sum() < 3 or not _is_linear(values[both], wanted[both]):
                left.remove(name)
        if not left:
            break
    return set(left)


def _numbers(array: Any) -> Any:
    return array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def _is_linear(values: Any, wanted: Any) -> bool:
    values, wanted = values - values.mean(), wanted - wanted.mean()
    size = np.sqrt((values @ values) * (wanted @ wanted))
    return bool(size > 0 and abs(values @ wanted) / size > _LEAST_CORRELATION)
