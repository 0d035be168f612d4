"""What a table of rows may be: the worker that declares one and the parameter server that is told of it both look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edl.core.errors import BadInputError
from edl.spec import initializer as initializers

MAX_ROWS = 2**31 - 1
"""Rows of a table that says how many it has: what Keras' own tables can be indexed with."""
MAX_DIM = 1 << 16
"""Values of one row: with three slot variables it takes a megabyte."""


def check_table(name: str, rows: int, dim: int, initializer: Mapping[str, Any]) -> None:
    """Refuse a table that no parameter server holds.

    Args:
        name: of the table, for people.
        rows: how many ids it has; 0 for no bound.
        dim: values of a row.
        initializer: as in ``edl.spec.initializer``.

    Raises:
        BadInputError: it has too many rows, or too many values in a row, or the initializer is not known.
    """
    if not (0 <= rows <= MAX_ROWS and 0 < dim <= MAX_DIM):
        raise BadInputError(
            f"table '{name}' has {rows} x {dim} values; a table has 1 to {MAX_ROWS} rows, or 0 for no bound, of 1 to "
            f"{MAX_DIM} values",
            hint="for more ids than that, use edl.layers.Embedding without input_dim",
        )
    try:
        initializers.check(initializer)
    except BadInputError as error:
        raise BadInputError(f"table '{name}' ({rows or 'any id'} x {dim}): {error.message}", hint=error.hint) from error
