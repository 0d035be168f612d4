"""Arrow columns from values of a driver, for databases whose columns do not have one type.

The type of a column is that of its first values, and is widened: from NULL to any type, from whole numbers to others. A
value that does not fit ends the query with its column and row.
"""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from edl.api.errors import BadInputError

TIMESTAMP = pa.timestamp("us")
TIME = pa.time64("us")
_TYPES: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    decimal.Decimal: pa.float64(),
    str: pa.string(),
    uuid.UUID: pa.string(),
    datetime.date: pa.date32(),
    datetime.datetime: TIMESTAMP,
    datetime.time: TIME,
}
_KIND_NAMES = {
    pa.bool_(): "a boolean",
    pa.int64(): "a whole number",
    pa.float64(): "a number",
    pa.string(): "text",
    pa.date32(): "a date",
    TIMESTAMP: "a time",
    TIME: "a time of day",
}
_SQL_TYPES = {
    pa.bool_(): "BOOLEAN",
    pa.int64(): "INTEGER",
    pa.float64(): "REAL",
    pa.date32(): "DATE",
    TIMESTAMP: "TIMESTAMP",
    TIME: "TIME",
}
_MOST_VALUE = 60
UNUSABLE_HINT = "leave the column out of the SELECT, or convert it with CAST"


class ColumnValues:
    """One column: its type so far, and what becomes of its next values.

    Args:
        name: as the query names it.
        declared: the type that a table's definition gives, if the database tells; it need not hold.
    """

    def __init__(self, name: str, declared: pa.DataType | None = None) -> None:
        self.name = name
        self.declared = declared
        self.type: pa.DataType = pa.null()

    def convert(self, values: Sequence[Any], first_row: int) -> pa.Array:
        """The values as Arrow has them; ``first_row`` counts from 1.

        Raises:
            BadInputError: a value has a type that nothing is made of, or another one than those before.
        """
        kinds = set(map(type, values))
        kinds.discard(type(None))
        unusable = [kind for kind in kinds if kind not in _TYPES]
        if unusable:
            at, value = next((at, value) for at, value in enumerate(values) if type(value) in unusable)
            raise unusable_column(self.name, _type_name(value), first_row + at)
        types = {_TYPES[kind] for kind in kinds}
        if self.declared is not None and types:
            array = self._convert_declared(values, types)
            if array is not None:
                self.type = array.type
                return array
        wanted = self.type
        for each in sorted(types, key=str):
            wider = _widen(wanted, each)
            if wider is None:
                # The first value that does not fit to those before it.
                raise self._misfit(values, first_row)
            wanted = wider
        self.type = wanted
        return _to_array(values, kinds, wanted, self.name, first_row)

    def _convert_declared(self, values: Sequence[Any], types: set[pa.DataType]) -> pa.Array | None:
        """What SQLite keeps as a number or a text, and a table declares to be more; None: the values are not so."""
        declared = self.declared
        if self.type not in (pa.null(), declared):
            return None
        if declared == pa.bool_() and types == {pa.int64()} and set(values) <= {0, 1, None}:
            return pa.array([None if value is None else bool(value) for value in values], declared)
        if declared in (pa.date32(), TIMESTAMP) and types == {pa.string()}:
            try:
                return pa.array(values, pa.string()).cast(declared)
            except pa.ArrowInvalid:
                return None
        return None

    def _misfit(self, values: Sequence[Any], first_row: int) -> BadInputError:
        wanted = self.type
        for at, value in enumerate(values):
            if value is None:
                continue
            wider = _widen(wanted, _TYPES[type(value)])
            if wider is None:
                return misfit_error(self.name, wanted, value, first_row + at)
            wanted = wider
        raise AssertionError("every value fits")


def unusable_column(name: str, kind: str, row: int | None = None) -> BadInputError:
    """The error for a column of a type that no model reads."""
    at = "" if row is None else f" in row {row}"
    return BadInputError(f"column {name} has the type {kind}{at}", where="the query", hint=UNUSABLE_HINT)


def misfit_error(name: str, wanted: pa.DataType, value: object, row: int) -> BadInputError:
    """The error for a value that is no member of its column's type."""
    kind, sql_type = _KIND_NAMES.get(wanted, str(wanted)), _SQL_TYPES.get(wanted, "TEXT")
    return BadInputError(
        f"column {name} changes its type: row {row} has {_shorten(value)}, and rows before have {kind}",
        where="the query",
        hint=f"select CAST(… AS {sql_type}) AS a name, CASE for some values, or leave the rows out with WHERE",
    )


def unreadable_error(name: str, wanted: pa.DataType, value: object, row: int) -> BadInputError:
    """The error for a value that the type of the database has, and that of the files has not."""
    return BadInputError(
        f"column {name} has {_shorten(value)} in row {row}, which is not {_KIND_NAMES.get(wanted, wanted)} here",
        where="the query",
        hint="convert it with CAST, make it NULL with CASE, or leave the rows out with WHERE",
    )


def _shorten(value: object) -> str:
    shown = repr(value)
    return shown[:_MOST_VALUE] + "…" if len(shown) > _MOST_VALUE else shown


def _widen(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that has the values of both; None: there is none."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    numbers = {pa.bool_(): 0, pa.int64(): 1, pa.float64(): 2}
    if one in numbers and other in numbers:
        return max(one, other, key=lambda each: numbers[each])
    if {one, other} == {pa.date32(), TIMESTAMP}:
        return TIMESTAMP
    return None


def _to_array(values: Sequence[Any], kinds: set[type], wanted: pa.DataType, name: str, first_row: int) -> pa.Array:
    if wanted == pa.float64() and kinds - {float}:
        values = [None if value is None else float(value) for value in values]
    elif wanted == pa.int64() and bool in kinds:
        values = [None if value is None else int(value) for value in values]
    elif wanted == pa.string() and kinds - {str}:
        values = [None if value is None else str(value) for value in values]
    elif wanted == TIMESTAMP and datetime.date in kinds:
        values = [_to_datetime(value) for value in values]
    try:
        return pa.array(values, wanted)
    except (OverflowError, pa.ArrowInvalid, UnicodeError) as error:
        for at, value in enumerate(values):
            try:
                pa.array([value], wanted)
            except (OverflowError, pa.ArrowInvalid, UnicodeError):
                raise misfit_error(name, wanted, value, first_row + at) from None
        raise BadInputError(f"column {name} cannot be read: {error}", where="the query", hint=UNUSABLE_HINT) from None


def _to_datetime(value: Any) -> Any:
    if value is None or isinstance(value, datetime.datetime):
        return value
    return datetime.datetime(value.year, value.month, value.day)


def _type_name(value: object) -> str:
    return "blob" if isinstance(value, bytes | memoryview | bytearray) else type(value).__name__


# --------------------------------------------------------------------------------------------------
# Text of a database, as its protocol has it.


def parse_texts(texts: pa.Array, wanted: pa.DataType, name: str, first_row: int) -> pa.Array:
    """Numbers, dates and times from the text in which a server sends them.

    Raises:
        BadInputError: one of them has no such value, as ``infinity`` is no time.
    """
    if texts.type == wanted:
        return texts
    try:
        return _parse_text(texts.cast(pa.string()), wanted)
    except ValueError:
        for at in range(len(texts)):
            try:
                _parse_text(texts.slice(at, 1).cast(pa.string()), wanted)
            except ValueError:
                raise unreadable_error(name, wanted, _decoded(texts[at].as_py()), first_row + at) from None
        raise


def _parse_text(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_time(wanted):  # for which Arrow has no cast
        return pa.array(
            [None if each is None else datetime.time.fromisoformat(each) for each in texts.to_pylist()], wanted
        )
    if pa.types.is_boolean(wanted):
        return pc.equal(texts, "t")
    return texts.cast(wanted)


def _decoded(value: Any) -> Any:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def parse_arrays(texts: pa.Array, wanted: pa.ListType, name: str, first_row: int) -> pa.Array:
    """Lists from PostgreSQL's text of an array of numbers: ``{1,2,NULL}``."""
    broken = pc.match_substring_regex(texts, r"^\{[^{}]*\}$")
    if not pc.all(broken).as_py() and len(texts) > texts.null_count:
        at = broken.to_pylist().index(False)
        raise BadInputError(
            f"column {name} has an array of arrays in row {first_row + at}", where="the query", hint=UNUSABLE_HINT
        )
    inner = pc.utf8_slice_codeunits(texts, 1, -1)
    parts = pc.split_pattern(inner, ",")
    # An empty array is one empty text.
    flat = parts.flatten()
    empty = pc.equal(inner, "")
    if pc.any(empty).as_py():
        cells = [None if row is None else [] if row == [""] else row for row in parts.to_pylist()]
        parts = pa.array(cells, pa.list_(pa.string()))
        flat = parts.flatten()
    flat = pc.if_else(pc.equal(flat, "NULL"), pa.scalar(None, pa.string()), flat)
    values = parse_texts(flat, wanted.value_type, name, first_row)
    return pa.ListArray.from_arrays(parts.offsets, values, mask=parts.is_null() if parts.null_count else None)
