"""A state of a database that the processes of a job share: they read ranges of it, and what is written is not seen.

One connection holds it, in a transaction that is open as long as the snapshot is used. Only PostgreSQL lets other
connections read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from edl.api.errors import BadInputError, RetryableError
from edl.data.database import Database


class ExportedSnapshot:
    """A snapshot that is held.

    Args:
        name: for ``data.reader.snapshot``; empty: there is none, and ranges may be of several states.
    """

    def __init__(self, name: str, database: Database, connection: Any) -> None:
        self.name = name
        self._database, self._connection = database, connection

    @property
    def is_consistent(self) -> bool:
        """Whether all ranges are of one state."""
        return bool(self.name)

    def check(self) -> None:
        """Make sure that it is still held.

        Raises:
            RetryableError: the connection was lost, and with it the snapshot.
        """
        if self._connection is None:
            return
        try:
            self._connection.exec_driver_sql("SELECT 1")
        except self._database.errors as error:
            reason = self._database.translate(error).message
            raise RetryableError(
                f"the snapshot is gone: {reason}", where=self._database.address, hint="begin again with a new one"
            ) from None


@contextmanager
def export_snapshot(database: str, *, allow_inconsistent: bool = False) -> Iterator[ExportedSnapshot]:
    """A snapshot of now, which is held until the block ends.

    Args:
        database: its address, without a password.
        allow_inconsistent: for databases that cannot share one, go without.

    Raises:
        BadInputError: the database cannot share a snapshot.
        RetryableError: it is not reachable.
    """
    source = Database(database)
    engine = source.engine
    if engine.dialect.name != "postgresql":
        if not allow_inconsistent:
            raise BadInputError(
                f"{engine.dialect.name} cannot let several connections read one state",
                where=database,
                hint="leave --stream out, so that the rows are read once, or accept rows of several states with "
                "--stream=inconsistent",
            )
        yield ExportedSnapshot("", source, None)
        return
    try:
        connection = engine.connect()
        # A transaction that waits is what this is for.
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout TO 0")
        name = str(connection.exec_driver_sql("SELECT pg_export_snapshot()").scalar_one())
    except source.errors as error:
        raise source.translate(error) from None
    try:
        yield ExportedSnapshot(name, source, connection)
    finally:
        with suppress(Exception):  # it may be lost
            connection.close()
