"""Reads columns of CSV files as values of the types that ``data.schema`` gives them.

pyarrow parses whole blocks of rows. Where it cannot, or might take for a row what ``CsvReader`` does not, the rows are
parsed as text and converted column by column, and those that cannot be converted are corrupt: a cell without a value
where a number belongs, or with another text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from edl.api.errors import BadInputError
from edl.data.csv_reader import ROWS_PER_BLOCK, CsvFile, CsvReader
from edl.data.file_digests import SourceDigests
from edl.data.reader import BlockSizes, Metadata, OnCorrupt, Source
from edl.data.record_columns import ColumnRecords
from edl.data.typed_columns import ARROW_TYPES, report_rows, to_numpy

_BLOCKS_AT_ONCE = 2
"""A call of pyarrow takes as long as some hundred rows."""


class TypedCsvReader:
    """A data set of CSV files of which some columns are read, each with its type. Other than ``CsvReader``'s, records
    are mappings.

    Args:
        rows: reads the files as text, with all columns.
        types: the columns, each with the name of its type: bool, int32, int64, float32, float64 or string.
    """

    def __init__(self, rows: CsvReader, types: Mapping[str, str]) -> None:
        self._rows = rows
        self._types = dict(types)
        # Source, numbers of the first block and after the last one, and their records, if all could be parsed at
        # once. One tuple, replaced as a whole, because threads share it.
        self._last_blocks: tuple[str, int, int, ColumnRecords | None] = ("", 0, 0, None)

    @property
    def metadata(self) -> Metadata:
        """The columns that are read, and their types."""
        return Metadata("csv", tuple(self._types), self._types)

    def sources(self) -> tuple[Source, ...]:
        """Name (the path) and row count of each file.

        Raises:
            BadInputError: a column does not exist.
        """
        sources = self._rows.sources()
        _ = self._places
        return sources

    def source_digests(self) -> SourceDigests:
        """Those of the files."""
        return self._rows.source_digests()

    def blocks(self, source: str) -> BlockSizes:
        """Blocks of 512 rows of one file."""
        rows = self._rows.blocks(source)
        sizes = [sum(rows.records[at : at + _BLOCKS_AT_ONCE]) for at in range(0, len(rows.records), _BLOCKS_AT_ONCE)]
        return BlockSizes(sizes, rows.bytes)

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> ColumnRecords:
        """Rows ``[start, end)`` of one file; see ``Reader.read``. A row with a cell of another type is corrupt."""
        file = self._rows.open_file(source, start, end)
        # Whole blocks are parsed although part of one is asked for: the next range mostly begins in the same one.
        first, after = start // ROWS_PER_BLOCK, -(-end // ROWS_PER_BLOCK)
        begin = first * ROWS_PER_BLOCK
        records = self._read_blocks(file, source, first, after) if start < end else None
        if records is not None:
            return records[start - begin : end - begin]
        return self._read_rows(file, source, start, end, on_corrupt)

    def _read_blocks(self, file: CsvFile, source: str, first: int, after: int) -> ColumnRecords | None:
        """All rows of blocks; None: they must be read one by one."""
        last_source, last_first, last_after, records = self._last_blocks
        if source == last_source and last_first <= first and after <= last_after:
            begin = (first - last_first) * ROWS_PER_BLOCK
            return None if records is None else records[begin : begin + (after - first) * ROWS_PER_BLOCK]
        data = file.read_blocks(first, after)
        count = min(after * ROWS_PER_BLOCK, file.index.row_count) - first * ROWS_PER_BLOCK
        records = self._parse(data, count) if _is_regular(data, self._rows.dialect.separator) else None
        self._last_blocks = (source, first, after, records)
        return records

    def _parse(self, data: bytes, count: int) -> ColumnRecords | None:
        """The columns of ``count`` rows; None: pyarrow reads other rows, or cannot convert a cell."""
        try:
            table = csv.read_csv(
                pa.BufferReader(data),
                csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=list(self._rows.header)),
                csv.ParseOptions(delimiter=self._rows.dialect.separator, newlines_in_values=b'"' in data),
                csv.ConvertOptions(
                    column_types={name: ARROW_TYPES[kind] for name, kind in self._types.items()},
                    include_columns=list(self._types),
                    # "NA" or "null" is a fault in a number and a text in a string, as for ``CsvReader``.
                    null_values=[],
                    strings_can_be_null=False,
                ),
            )
        except pa.ArrowException:
            return None
        # No text is known for which it reads others; the index would then name wrong records.
        if len(table) != count:
            return None
        return ColumnRecords({name: to_numpy(table[name]) for name in self._types})

    def _read_rows(
        self, file: CsvFile, source: str, start: int, end: int, on_corrupt: OnCorrupt | None
    ) -> ColumnRecords:
        rows = file.read_rows(start, end)
        faults = {at: fault for at, row in enumerate(rows) if (fault := self._rows.find_fault(row)) is not None}
        readable = [at for at in range(len(rows)) if at not in faults]
        columns: dict[str, npt.NDArray[Any]] = {}
        for name, place in self._places.items():
            columns[name], bad = _convert([rows[at].cells[place] for at in readable], self._types[name])
            for at, fault in bad.items():
                faults.setdefault(readable[at], f"column {name} {fault}")
        report_rows({start + at: (rows[at].offset, fault) for at, fault in faults.items()}, source, on_corrupt)
        good = np.array([number for number, at in enumerate(readable) if at not in faults], np.int64)
        return ColumnRecords(columns).take(good)

    @cached_property
    def _places(self) -> dict[str, int]:
        """The place of each column in a row."""
        header = self._rows.header
        missing = [name for name in self._types if name not in header]
        if missing:
            raise BadInputError(
                f"found {', '.join(missing)}, no column",
                where="data.schema",
                hint=f"the files have the columns {', '.join(header)}",
            )
        return {name: header.index(name) for name in self._types}


def _is_regular(data: bytes, separator: str) -> bool:
    """Whether pyarrow and ``CsvReader`` must find the same rows: each line ends in LF, and quotes are around cells."""
    if len(separator.encode()) != 1 or (b"\r" in data and data.count(b"\r") != data.count(b"\r\n")):
        return False
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            return False
    return b'"' not in data or _has_regular_quotes(data, separator)


def _has_regular_quotes(data: bytes, separator: str) -> bool:
    """Whether each cell with quotes begins and ends with one, and has them doubled within (RFC 4180)."""
    text = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(text == ord('"'))
    # With an odd number, one stands alone within a cell.
    if len(quotes) % 2:
        return False
    opening, closing = quotes[::2], quotes[1::2]
    around = np.concatenate([np.frombuffer(b"\n", np.uint8), text, np.frombuffer(b"\n", np.uint8)])
    before, behind = around[opening], around[closing + 2]
    # A doubled quote closes one and opens the next at once.
    doubled = opening[1:] == closing[:-1] + 1
    begins = np.isin(before, (ord("\n"), ord(separator)))
    begins[1:] |= doubled
    ends = np.isin(behind, (ord("\n"), ord("\r"), ord(separator)))
    ends[:-1] |= doubled
    return bool(begins.all() and ends.all())


def _convert(texts: Sequence[str], kind: str) -> tuple[npt.NDArray[Any], dict[int, str]]:
    """Cells as values of a type, and by number what is wrong with those that are none, which become 0."""
    array = pa.array(texts, pa.string())
    if kind == "string":
        return to_numpy(array), {}
    trimmed = [text.strip() for text in texts]
    # The whole column at once: only a column with a bad cell pays for a call per cell.
    try:
        return to_numpy(pa.array(trimmed, pa.string()).cast(ARROW_TYPES[kind])), {}
    except pa.ArrowInvalid:
        bad = {}
    for number, text in enumerate(trimmed):
        try:
            pa.scalar(text, pa.string()).cast(ARROW_TYPES[kind])
        except pa.ArrowInvalid:
            bad[number] = f"has '{texts[number]:.40}', which is no {kind}" if text else "has no value"
            trimmed[number] = "0"
    return to_numpy(pa.array(trimmed, pa.string()).cast(ARROW_TYPES[kind])), bad
