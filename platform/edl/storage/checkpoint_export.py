"""A checkpoint as one file for other programs: ``.npz`` or ``.safetensors``, whatever number of shards it came from.

Dense variables have their own names; a table ``T`` is ``T/ids`` (ascending) and ``T/rows``; with slots, a slot variable
``s`` is ``<variable>/slot/s`` and ``T/slot/s``. The same state gives the same arrays, however it was spread. Arrays are
copied a piece at a time; of a table, only the ids are in memory as a whole.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from edl.api.errors import StorageError
from edl.storage.array_statistics import PIECE, mapped
from edl.storage.checkpoint_contents import Contents, Table
from edl.storage.durable_files import publish, removed_on_error, translated
from edl.storage.safetensors_file import stream
from edl.storage.safetensors_header import DTYPES, StoredArray, header_of
from edl.storage.safetensors_writer import Array, bytes_of

_DATE = (1980, 1, 1, 0, 0, 0)  # the same state gives the same file


@dataclass(frozen=True, slots=True)
class Column:
    """An array of the file that is to be written, and its values a piece at a time."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[Array]]

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return prod(self.shape) * DTYPES[self.dtype][1]


def columns(contents: Contents, *, slots: bool) -> list[Column]:
    """All arrays of the file, in its order.

    Args:
        contents: of the checkpoint.
        slots: slot variables too, and what else training needs (strategy Local).

    Raises:
        StorageError: an id is in two shards, or two arrays would have the same name.
    """
    found = [_whole(variable.spec.name, variable.values) for variable in contents.variables]
    found += [column for table in contents.tables for column in _of_table(table, slots=slots)]
    if slots:
        for variable in contents.variables:
            found += [_whole(f"{variable.spec.name}/slot/{slot}", array) for slot, array in variable.slots.items()]
        found += [_whole(array.name, array) for array in contents.others]
    twice = [name for name, many in Counter(column.name for column in found).items() if many > 1]
    if twice:
        raise StorageError(f"two arrays would be called '{twice[0]}'", hint="Read the shards themselves.")
    return found


def write(path: Path, found: Sequence[Column], strings: Mapping[str, str], on_write: Callable[[int], None]) -> None:
    """Write a ``.npz`` or a ``.safetensors``, whichever the name ends in; it has its name when it is complete.

    Args:
        path: of the file; replaced if it is there.
        found: its arrays.
        strings: kept beside them, which only a ``.safetensors`` can.
        on_write: told the bytes of each piece that was written.

    Raises:
        StorageError: it cannot be written (the disk is full), or a shard cannot be read; nothing of it is left.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with translated(path, "write the export"), removed_on_error(temporary):
        if path.suffix == ".npz":
            _write_npz(temporary, found, on_write)
        else:
            head = header_of([(column.name, column.dtype, column.shape) for column in found], strings)
            stream(temporary, _parts(head, found, on_write))
        publish(temporary, path)


def described(contents: Contents) -> dict[str, str]:
    """What a reader of the file may want to know beside the arrays: the optimizer, and how missing rows begin."""
    tables = {
        table.name: {
            "vocabulary": None if table.spec is None else table.spec.rows,
            "width": table.width,
            "initializer": table.described_initializer,
        }
        for table in contents.tables
    }
    return {"optimizer": json.dumps(contents.optimizer), "tables": json.dumps(tables)}


def _parts(head: memoryview, found: Iterable[Column], on_write: Callable[[int], None]) -> Iterator[memoryview]:
    yield head
    for column in found:
        for piece in column.pieces():
            yield bytes_of(piece)
            on_write(piece.nbytes)


def _write_npz(path: Path, found: Iterable[Column], on_write: Callable[[int], None]) -> None:
    with path.open("wb") as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for column in found:
                with archive.open(zipfile.ZipInfo(f"{column.name}.npy", _DATE), "w", force_zip64=True) as member:
                    _write_npy(member, column, on_write)
        file.flush()
        os.fsync(file.fileno())


def _write_npy(member: IO[bytes], column: Column, on_write: Callable[[int], None]) -> None:
    descr = np.dtype(column.dtype).newbyteorder("<").str
    np.lib.format.write_array_header_1_0(member, {"descr": descr, "fortran_order": False, "shape": column.shape})
    for piece in column.pieces():
        member.write(bytes_of(piece))
        on_write(piece.nbytes)


def _whole(name: str, array: StoredArray) -> Column:
    def pieces() -> Iterator[Array]:
        flat = mapped(array).reshape(-1)
        for start in range(0, flat.size, PIECE):
            yield flat[start : start + PIECE]

    return Column(name, array.dtype, array.shape, pieces)


def _of_table(table: Table, *, slots: bool) -> Iterator[Column]:
    ids = np.concatenate([np.asarray(mapped(part.ids)) for part in table.parts])
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    if (again := ids[1:][ids[1:] == ids[:-1]]).size:
        raise StorageError(
            f"row {again[0]} of table '{table.name}' is stored twice", where=str(table.parts[0].ids.path.parent)
        )
    yield Column(f"{table.name}/ids", "int64", ids.shape, lambda: iter([ids]))
    yield _rows(f"{table.name}/rows", [part.values for part in table.parts], order)
    for slot in table.slots if slots else ():
        yield _rows(f"{table.name}/slot/{slot}", [part.slots[slot] for part in table.parts], order)


def _rows(name: str, parts: Sequence[StoredArray], order: NDArray[np.intp]) -> Column:
    """The rows of all parts in ``order``, which counts them through."""
    shape = (len(order), *parts[0].shape[1:])
    step = max(1, PIECE // max(1, prod(shape[1:])))
    begins = np.cumsum([0, *(part.shape[0] for part in parts)])

    def pieces() -> Iterator[Array]:
        sources = [mapped(part) for part in parts]
        for start in range(0, len(order), step):
            wanted = order[start : start + step]
            piece = np.empty((len(wanted), *shape[1:]), np.dtype(parts[0].dtype).newbyteorder("<"))
            owners = np.searchsorted(begins, wanted, side="right") - 1
            for index, source in enumerate(sources):
                mine = owners == index
                piece[mine] = source[wanted[mine] - begins[index]]
            yield piece

    return Column(name, parts[0].dtype, shape, pieces)
