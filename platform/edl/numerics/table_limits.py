"""What a table of rows may be: the worker that declares one and the parameter server that is told of it both look."""

from __future__ import annotations

from edl.api.errors import BadInputError
from edl.api.tables import TableSpec
from edl.numerics import initializers as initializers

MAX_TABLE_ROWS = 2**31 - 1
"""Rows of a table that says how many it has: what Keras' own tables can be indexed with."""
MAX_ROW_VALUES = 1 << 16
"""Values of one row: with three slot variables it takes a megabyte."""


def check_table_shape(table: TableSpec) -> None:
    """Refuse a table that no parameter server holds.

    Raises:
        BadInputError: it has too many rows, or too many values in a row, or the initializer is not known.
    """
    if not (0 <= table.rows <= MAX_TABLE_ROWS and 0 < table.dim <= MAX_ROW_VALUES):
        raise BadInputError(
            f"table '{table.name}' has {table.rows} x {table.dim} values; a table has 1 to {MAX_TABLE_ROWS} rows, or 0"
            f" for no bound, of 1 to {MAX_ROW_VALUES} values",
            hint="for more ids than that, use edl.layers.Embedding without input_dim",
        )
    try:
        initializers.check_initializer(table.initializer)
    except BadInputError as error:
        raise BadInputError(f"{table.described}: {error.message}", hint=error.hint) from error
