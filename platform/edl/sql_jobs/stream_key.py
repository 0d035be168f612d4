"""The unique key by whose ranges the rows of a query are read: what ``WITH`` names, or the primary key of its table."""

from __future__ import annotations

from typing import Any

import sqlglot
from sqlglot import expressions as exp
from sqlglot.errors import SqlglotError

from edl.data.database import Database
from edl.sql_jobs.statement_parser import StatementError
from edl.sql_jobs.statements import Attribute, SelectQuery, TrainStatement

KEY_SETTING = "stream.key"
_HINT = (
    f"write TO TRAIN … WITH {KEY_SETTING}='id' with a column of the query that has another whole number in each row, "
    "or leave --stream out"
)
_PLAIN_PARTS = frozenset(("expressions", "from", "from_", "where", "order", "hint"))
"""What a SELECT may have if each of its rows is a row of its table, and the same one each time it runs."""


def find_stream_key(statement: TrainStatement, database: str, dialect: str | None) -> str:
    """The column of the result that is unique.

    Args:
        statement: a training.
        database: its address.
        dialect: sqlglot's name of its dialect.

    Raises:
        BadInputError: none is known; the hint says what to write.
        RetryableError: the database is not reachable.
    """
    named = statement.attributes.get(KEY_SETTING)
    if named is not None:
        return _take_name(named)
    place = statement.select.place
    plain = _find_table(statement.select, dialect)
    if plain is None:
        raise StatementError("the query has no unique key: it is more than rows of one table", place, _HINT)
    table, selected = plain
    key = Database(database).run(lambda connection: _primary_key(connection, table))
    shown = ".".join(part for part in table if part)
    if key == "":
        raise StatementError(f"there is no table {shown}", place)
    if key is None:
        raise StatementError(f"the table {shown} has no primary key of one column", place, _HINT)
    for name, column in selected:
        if name is None or name.lower() == key.lower():
            return column or key
    raise StatementError(
        f"{key}, the key of the table {shown}, is not selected", place, f"select {key}, too, or leave --stream out"
    )


def _take_name(attribute: Attribute) -> str:
    if not isinstance(attribute.value, str) or not attribute.value:
        raise StatementError(f"{KEY_SETTING} is the name of a column in quotes", attribute.place)
    return attribute.value


def _find_table(
    select: SelectQuery, dialect: str | None
) -> tuple[tuple[str, str], list[tuple[str | None, str | None]]] | None:
    """Schema and name of the one table whose rows a query has, and its selected columns; None: it is another query.

    A column is its name in the table and in the result; two times None stands for all columns.
    """
    try:
        tree = sqlglot.parse_one(select.text, dialect=dialect)
    except SqlglotError:
        return None
    if not isinstance(tree, exp.Select) or any(value and name not in _PLAIN_PARTS for name, value in tree.args.items()):
        return None
    source = getattr(tree.args.get("from_") or tree.args.get("from"), "this", None)
    if not isinstance(source, exp.Table) or not isinstance(source.this, exp.Identifier):
        return None
    if any(value and name not in ("this", "db", "alias") for name, value in source.args.items()):
        return None
    if any(each.find(exp.AggFunc) for each in tree.expressions):
        return None
    folds = dialect == "postgres"
    columns = list[tuple[str | None, str | None]]()
    for each in tree.expressions:
        inner = each.this if isinstance(each, exp.Alias) else each
        if isinstance(inner, exp.Star) or (isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star)):
            columns.append((None, None))
        elif isinstance(inner, exp.Column):
            shown = each.args["alias"] if isinstance(each, exp.Alias) else inner.this
            columns.append((inner.name, _name(shown, folds=folds)))
    return (_name(source.args.get("db"), folds=folds), _name(source.this, folds=folds)), columns


def _name(identifier: Any, *, folds: bool) -> str:
    """A name as the database has it: PostgreSQL makes those without quotes small."""
    if identifier is None:
        return ""
    name = str(identifier.this)
    return name.lower() if folds and not identifier.args.get("quoted") else name


def _primary_key(connection: Any, table: tuple[str, str]) -> str | None:
    """The column that is the primary key of a table; None: it has none, or several; empty: there is no table."""
    import sqlalchemy as sa

    schema, name = table
    inspector = sa.inspect(connection)
    if not inspector.has_table(name, schema=schema or None):
        return ""
    columns = list(inspector.get_pk_constraint(name, schema=schema or None).get("constrained_columns") or ())
    return str(columns[0]) if len(columns) == 1 else None
