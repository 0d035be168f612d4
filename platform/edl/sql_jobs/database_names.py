"""Names of tables and columns of a database, for completion."""

from __future__ import annotations

from typing import Any

from edl.api.errors import EdlError
from edl.data.database import Database


class DatabaseNames:
    """The names of a database, read when they are asked for. One that cannot be read has none.

    Args:
        address: without a password; None: there is no database.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._tables: list[str] | None = None
        self._columns: dict[str, list[str]] = {}

    def tables(self) -> list[str]:
        """Tables and views."""
        if self._tables is None:
            self._tables = self._read(lambda names: [*names.get_table_names(), *names.get_view_names()])
        return self._tables

    def columns(self, table: str) -> list[str]:
        """The columns of a table; none if there is no such table."""
        if table not in self._columns and table in self.tables():
            self._columns[table] = self._read(lambda names: [each["name"] for each in names.get_columns(table)])
        return self._columns.get(table, [])

    def forget(self) -> None:
        """Read the names anew: a statement may have made a table."""
        self._tables = None
        self._columns.clear()

    def _read(self, take: Any) -> list[str]:
        import sqlalchemy as sa

        if self._address is None:
            return []
        try:
            database = Database(self._address)
            with database.connect() as connection:
                names = [str(name) for name in take(sa.inspect(connection))]
            # DuckDB writes a file through no connection while another one reads it.
            database.engine.dispose()
        except EdlError:
            return []  # the statement itself will say what is wrong
        return names
