"""Reads names of JSON lines as columns of the types that ``data.schema`` gives them.

pyarrow parses all lines of a range at once. Where it cannot, each line is parsed alone, and one without a value of the
type is corrupt.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

from edl.data.block_file import BlockFileReader
from edl.data.file_digests import SourceDigests
from edl.data.reader import BlockSizes, CorruptRange, Metadata, OnCorrupt, Source
from edl.data.record_columns import ColumnRecords
from edl.data.text_format import NO_JSON_OBJECT
from edl.data.typed_columns import ARROW_TYPES, report_rows, to_numpy


class TypedJsonReader:
    """A data set of files of JSON lines, of which some names are read, each with its type.

    Args:
        lines: reads the files as lines.
        types: the names, each with that of its type: bool, int32, int64, float32, float64 or string.
    """

    def __init__(self, lines: BlockFileReader, types: Mapping[str, str]) -> None:
        self._lines = lines
        self._types = dict(types)
        self._schema = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in self._types.items()])

    @property
    def metadata(self) -> Metadata:
        """The columns that are read, and their types."""
        return Metadata("jsonl", tuple(self._types), self._types)

    def sources(self) -> tuple[Source, ...]:
        """Name (the path) and line count of each file."""
        return self._lines.sources()

    def source_digests(self) -> SourceDigests:
        """Those of the files."""
        return self._lines.source_digests()

    def blocks(self, source: str) -> BlockSizes:
        """Blocks of about 256 KiB of one file."""
        return self._lines.blocks(source)

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> ColumnRecords:
        """Lines ``[start, end)`` of one file; see ``Reader.read``. A line with a value of another type is corrupt."""
        bad: list[CorruptRange] = []
        lines = self._lines.read(source, start, end, None if on_corrupt is None else bad.append)
        records = self._parse(lines)
        if records is not None and not bad:
            return records
        damaged = {corrupt.start: (corrupt.offset, corrupt.reason) for corrupt in bad}
        numbers = [number for number in range(start, end) if number not in damaged]
        rows = [self._parse_line(line) for line in lines]
        faults = {
            number: (self._lines.record_offset(source, number), row)
            for number, row in zip(numbers, rows, strict=True)
            if isinstance(row, str)
        }
        report_rows({**damaged, **faults}, source, on_corrupt)
        good = [row for row in rows if not isinstance(row, str)]
        columns = zip(*good, strict=True) if good else [()] * len(self._types)
        return ColumnRecords(
            {
                name: to_numpy(pa.array(column, ARROW_TYPES[kind]))
                for (name, kind), column in zip(self._types.items(), columns, strict=True)
            }
        )

    def _parse(self, lines: Sequence[bytes]) -> ColumnRecords | None:
        """The columns of the lines; None: a value is missing, or of another type."""
        data = b"\n".join(lines)
        # One block for all: pyarrow fails at a line that is longer than its block.
        try:
            table = arrow_json.read_json(
                pa.BufferReader(data),
                arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
                arrow_json.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior="ignore"),
            )
        except pa.ArrowException:
            return None
        if len(table) != len(lines) or any(table[name].null_count for name in self._types):
            return None
        return ColumnRecords({name: to_numpy(table[name]) for name in self._types})

    def _parse_line(self, line: bytes) -> list[Any] | str:
        """The values of a line, or why it is refused: a feature is NULL, is missing or has another type."""
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return NO_JSON_OBJECT
        if not isinstance(record, dict):
            return NO_JSON_OBJECT
        values = []
        for name, kind in self._types.items():
            value = record.get(name)
            if value is None:
                return f"no value of {name}"
            converted = _convert(value, kind)
            if converted is None:
                more = f": {_NESTED}" if isinstance(value, list | dict) else ""
                return f"{name} is {json.dumps(value):.40}, which is no {kind}{more}"
            values.append(converted)
        return values


_NESTED = (
    "data.schema takes single values of JSON lines. Lists of numbers or text are read from Parquet "
    "(edl data convert --to parquet), all else by a feed in the model module"
)


def _convert(value: Any, kind: str) -> Any:
    """A value of JSON as one of a type; None: it is none."""
    if kind == "string":
        # As the text of CSV would be: classes may be numbers.
        if isinstance(value, str):
            return value if _is_encodable(value) else None
        return json.dumps(value) if isinstance(value, bool | int) else None
    if kind == "bool" or isinstance(value, bool):
        return value if kind == "bool" and isinstance(value, bool) else None
    if kind.startswith("float"):
        try:
            return float(value) if isinstance(value, int | float) else None
        except OverflowError:  # a whole number of more than 308 digits, which pyarrow reads as infinite, too
            return math.inf if value > 0 else -math.inf
    # 1.0 is no integer here: pyarrow refuses it as well, and a row must not depend on which way it was read.
    limits = np.iinfo(kind)
    return value if isinstance(value, int) and limits.min <= value <= limits.max else None


def _is_encodable(text: str) -> bool:
    """Whether a text of JSON has UTF-8. Half of a pair of surrogates, such as the escape ``\\ud800``, has none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
