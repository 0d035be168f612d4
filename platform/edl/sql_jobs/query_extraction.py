"""Runs a query once and keeps its rows as Parquet files: ranges over them are exact, whatever the database does later.

All rows are of one snapshot. The folder appears when it is complete. A lost connection begins again, from the first
row.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from edl.api.errors import BadInputError, EdlError, StorageError
from edl.data.database import Database
from edl.sql_jobs.parquet_parts import PartWriter
from edl.sql_jobs.query_errors import translate_query_error
from edl.sql_jobs.row_batches import read_query_batches
from edl.storage.durable_files import rename_durably, sync_directory, temporary_path

OnProgress = Callable[[int], object]


@dataclass(frozen=True)
class ExtractedColumn:
    """A column of a result.

    Args:
        name: as the query names it.
        type: ``int64``, ``float64``, ``bool``, ``string``, ``date32``, ``timestamp[us]`` (UTC), ``time64[us]``, or a
            list of one of the first two.
        nulls: rows without a value. A column with none at all is ``float64``.
    """

    name: str
    type: pa.DataType
    nulls: int


@dataclass(frozen=True)
class ExtractedRows:
    """The rows of a query, as files.

    Args:
        columns: in the order of the query.
        rows: number of them.
        files: Parquet files, in the order of their rows.
        digest: SHA-256 of names, types and values in this order.
        seconds: how long the database, and writing the files, took.
        database: its address.
    """

    columns: tuple[ExtractedColumn, ...]
    rows: int
    files: tuple[Path, ...]
    digest: str
    seconds: float
    database: str


def extract_query(
    database: str,
    query: str,
    folder: Path,
    *,
    on_progress: OnProgress | None = None,
    statement_seconds: float | None = None,
) -> ExtractedRows:
    """Run a SELECT, and write its rows into a new folder.

    Args:
        database: its address, without a password.
        query: passed on as it is.
        folder: is made, and appears when it is complete.
        on_progress: told the number of rows so far, after each batch. It falls when a lost connection begins again.
        statement_seconds: what the query may take in the database; None: no limit.

    Raises:
        BadInputError: the query, its result or the address cannot be used; a ``QueryError`` may name the place.
        RetryableError: the database cannot be reached, or was lost several times.
        StorageError: the files cannot be written.
    """
    if folder.exists():
        raise BadInputError("is there already", where=str(folder), hint="name a folder that does not exist")
    began = time.monotonic()
    source = Database(database)
    temporary = temporary_path(folder)

    def extract(connection: Any) -> tuple[PartWriter, tuple[ExtractedColumn, ...], str]:
        with _translate_storage_errors(folder):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        writer = PartWriter(temporary)
        try:
            for batch in _translated_batches(source, connection, query, statement_seconds):
                with _translate_storage_errors(folder):
                    writer.write(batch)
                if on_progress is not None:
                    on_progress(writer.rows)
            with _translate_storage_errors(folder):
                schema, nulls, digest = writer.finish()
        except BaseException:
            writer.close()
            # Rows that nobody wants are not read to the end.
            connection.invalidate()
            raise
        columns = tuple(
            ExtractedColumn(field.name, field.type, count) for field, count in zip(schema, nulls, strict=True)
        )
        return writer, columns, digest

    try:
        writer, columns, digest = source.run(extract)
        with _translate_storage_errors(folder):
            sync_directory(temporary)
            rename_durably(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    files = tuple(folder / path.name for path in writer.files)
    return ExtractedRows(columns, writer.rows, files, digest, time.monotonic() - began, database)


@contextmanager
def _translate_storage_errors(folder: Path) -> Iterator[None]:
    """What the file system refuses is no matter of the database, and the query is not run again for it."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"the rows cannot be written: {error.strerror or error}", where=str(folder)) from error


def _translated_batches(source: Database, connection: Any, query: str, statement_seconds: float | None) -> Any:
    """The batches of a query; what the database says about it has the place in the query."""
    driver_error = connection.engine.dialect.loaded_dbapi.Error
    try:
        yield from read_query_batches(connection, query, statement_seconds)
    except EdlError:
        raise
    except driver_error as error:
        translated = translate_query_error(error, source, query)
        if translated is None:
            raise
        raise translated from None
