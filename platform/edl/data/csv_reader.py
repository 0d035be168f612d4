"""CSV data sets: a record is a row, as a list of cells (text)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from edl.api.errors import BadInputError
from edl.data.csv_file import CsvDialect, CsvFile
from edl.data.reader import BlockSizes, CorruptRange, CorruptRecordError, Metadata, OnCorrupt, Source
from edl.data.reader_options import ReaderOptions


class CsvReader:
    """A data set of CSV files with the same columns: the reader port.

    Args:
        files: the files.
        dialect: how they are written.
        columns: with a header, the columns to give and their order; without one, the name of each column.
    """

    def __init__(self, files: Sequence[Path], dialect: CsvDialect | None = None, columns: Sequence[str] = ()) -> None:
        self._dialect = dialect or CsvDialect()
        self._files = {str(file): CsvFile(file, self._dialect) for file in files}
        self._columns = tuple(columns)

    @classmethod
    def from_options(cls, files: Sequence[Path], options: Mapping[str, object]) -> CsvReader:
        """With the options of ``data.reader``: ``sep`` (``,``), ``header`` (true) and ``columns`` (all)."""
        chosen = ReaderOptions(options, allowed=("sep", "header", "columns"))
        default = "\t" if all(file.suffix.lower() == ".tsv" for file in files) else ","
        dialect = CsvDialect(chosen.get_character("sep", default), chosen.get_boolean("header", default=True))
        return cls(files, dialect, chosen.names("columns"))

    @cached_property
    def metadata(self) -> Metadata:
        """The columns; a cell is always text."""
        names = self._columns or self._common_header
        return Metadata("csv", names, dict.fromkeys(names, "string"))

    def sources(self) -> tuple[Source, ...]:
        """Name (the path) and row count of each file."""
        _ = self._column_positions  # files that do not fit together are refused before any is counted in
        return tuple(Source(name, file.index.rows) for name, file in self._files.items())

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> list[list[str]]:
        """Rows ``[start, end)`` of one file; see the port. A row is corrupt if its cells are not one for a column."""
        file = self._source_file(source)
        if not 0 <= start <= end <= file.index.rows:
            raise BadInputError(f"rows {start} to {end} of {file.index.rows} were asked for", where=source)
        found = []
        for number, row in enumerate(file.rows(start, end), start):
            fault = row.fault or self._cell_count_error(row.cells)
            if fault is None:
                found.append(self._select_columns(row.cells))
            elif on_corrupt is None:
                raise CorruptRecordError(CorruptRange(source, number, number + 1, None, row.offset, fault))
            else:
                on_corrupt(CorruptRange(source, number, number + 1, None, row.offset, fault))
        return found

    def blocks(self, source: str) -> BlockSizes:
        """Pieces of one file of 256 rows."""
        return self._source_file(source).blocks()

    def _source_file(self, source: str) -> CsvFile:
        file = self._files.get(source)
        if file is None:
            raise BadInputError("no such source in this data set", where=source)
        return file

    def _cell_count_error(self, cells: Sequence[str]) -> str | None:
        expected = len(self._common_header)
        return None if len(cells) == expected else f"{len(cells)} of {expected} cells"

    def _select_columns(self, cells: list[str]) -> list[str]:
        picked = self._column_positions
        return cells if picked is None else [cells[position] for position in picked]

    @cached_property
    def _common_header(self) -> tuple[str, ...]:
        """What the files' first rows say, which must be the same in all (empty files without a header fit any)."""
        headers = {name: file.index.header for name, file in self._files.items() if file.index.header}
        first, header = next(iter(headers.items()), ("", ()))
        for name, other in headers.items():
            if other != header:
                raise BadInputError(
                    f"columns {', '.join(other)} differ from {', '.join(header)} in {first}",
                    where=name,
                    hint="all files of a data set must have the same columns in the same order",
                )
        return header

    @cached_property
    def _column_positions(self) -> list[int] | None:
        """Positions of the chosen columns; None means all, as they are."""
        header = self._common_header
        if not self._dialect.header:
            if self._columns and header and len(self._columns) != len(header):
                raise self._column_error(f"{len(self._columns)} names for {len(header)} columns")
            return None
        missing = [name for name in self._columns if name not in header]
        if missing:
            raise self._column_error(f"no column {', '.join(missing)}")
        return [header.index(name) for name in self._columns] or None

    def _column_error(self, what: str) -> BadInputError:
        return BadInputError(
            what, where="data.reader.columns", hint=f"the files have the columns {', '.join(self._common_header)}"
        )
