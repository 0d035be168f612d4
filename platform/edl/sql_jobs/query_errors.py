"""Errors of a query, with the place in its text where the database gives one."""

from __future__ import annotations

import re
from typing import Any

from edl.api.errors import BadInputError, EdlError, RetryableError
from edl.data.database import Database

TIMED_OUT_STATES = ("57014",)
"""PostgreSQL's state of a statement that was cancelled: ``statement_timeout``."""
_TIMED_OUT_NUMBERS = (1969, 3024)
_MOST_MESSAGE = 500
_LINE_MARK = re.compile(r"(?:^|\n)LINE (\d+): (.*)\n( *)\^", re.S)
_CUT = "..."
_INTERRUPTED = re.compile(r"interrupted$|INTERRUPT Error")
_REST = re.compile(r"near '(.*)' at line \d+$", re.S)
_NAMED = re.compile(
    r"""no such (?:column|table|function): (\S+)|near "(.+)": syntax error"""  # SQLite
    r"""|Unknown column '(.+?)' in|Table '(.+?)' doesn't exist"""  # MySQL
)


class QueryError(BadInputError):
    """The database refuses a query.

    Args:
        offset: characters of the query before the place of the error; None: the database names no place.
        query: its text, for line and column, which count from 1.
    """

    def __init__(self, message: str, *, query: str, offset: int | None = None, hint: str | None = None) -> None:
        self.offset = offset
        self.line = self.column = None
        if offset is not None:
            before = query[:offset]
            self.line, self.column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        where = "the query" if offset is None else f"the query, line {self.line}, column {self.column}"
        super().__init__(message, where=where, hint=hint)


def translate_query_error(error: Exception, database: Database, query: str) -> EdlError | None:
    """The error of EDL for one of a driver while it ran a query; None: the connection was lost, not the query wrong."""
    cause: Any = getattr(error, "orig", None) or error
    state, number = str(getattr(cause, "sqlstate", None) or ""), _number(cause)
    if state in TIMED_OUT_STATES or number in _TIMED_OUT_NUMBERS or _INTERRUPTED.match(str(cause)):
        return QueryError(
            "the database did not answer in the time that was set",
            query=query,
            hint="allow more time (--query-timeout), or select less",
        )
    translated = database.translate(error)
    if isinstance(translated, RetryableError):
        return None
    reason = shorten_reason(cause)
    offset = _find_offset(cause, query)
    return QueryError(database.hide_secrets(reason), query=query, offset=offset, hint=f"database: {database.address}")


def _find_named(message: str, query: str) -> int | None:
    """Where the query has what a message names, if it is there once."""
    rest = _REST.search(message)
    if rest is not None:  # the query from there on, at most 80 characters
        return query.find(rest[1]) if query.count(rest[1]) == 1 else None
    named = _NAMED.search(message)
    if named is None:
        return None
    name = next(filter(None, named.groups()))
    for word in (name, name.rpartition(".")[2]):
        offsets = [match.start() for match in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", query)]
        if offsets:
            return offsets[0] if len(offsets) == 1 else None
    return None


def _number(cause: Any) -> int:
    first = cause.args[0] if cause.args else 0
    return first if isinstance(first, int) else 0


def shorten_reason(cause: Any) -> str:
    """The database's own message in one line, without the excerpt of the query."""
    diagnostic: Any = getattr(cause, "diag", None)
    text = getattr(diagnostic, "message_primary", None)
    for more in (getattr(diagnostic, f"message_{name}", None) for name in ("detail", "hint")):
        text = f"{text} ({more})" if text and more else text
    if not text and _number(cause) and len(cause.args) > 1:
        text = str(cause.args[1])
    text = text or _LINE_MARK.split(str(cause))[0]
    line = " ".join(text.split()) or type(cause).__name__
    return line if len(line) <= _MOST_MESSAGE else line[:_MOST_MESSAGE] + "…"


def _find_offset(cause: Any, query: str) -> int | None:
    position = getattr(getattr(cause, "diag", None), "statement_position", None)
    if position:
        # Of the statement that was sent, which may begin with words of its own.
        return max(0, min(int(position) - 1 - getattr(cause, "edl_before", 0), len(query)))
    # DuckDB prints the line, cut at both ends, and a mark below it.
    mark = _LINE_MARK.search(str(cause))
    lines = query.split("\n")
    if mark is None or not 1 <= int(mark[1]) <= len(lines):
        return _find_named(str(cause.args[-1]) if cause.args else "", query)
    number, excerpt = int(mark[1]), mark[2].split("\n")[0]
    column = len(mark[3]) - len(f"LINE {number}: ")
    if excerpt.startswith(_CUT):
        shown = excerpt.removeprefix(_CUT).removesuffix(_CUT)
        column += lines[number - 1].find(shown) - len(_CUT)
    before = sum(len(line) + 1 for line in lines[: number - 1])
    return before + max(0, min(column, len(lines[number - 1])))
