"""Exports a checkpoint as one file for other programs: ``.npz`` or ``.safetensors``.

Dense variables keep their names. A table ``T`` becomes ``T/ids`` (ascending) and ``T/rows``. A slot variable ``s``, if
slots are exported, becomes ``<variable>/slot/s`` or ``T/slot/s``. The arrays do not depend on the number of shards.
Arrays are copied piece by piece; of a table, only the ids are in memory as a whole.
"""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from edl.api.errors import StorageError
from edl.storage.checkpoint_contents import CheckpointContents, StoredTable
from edl.storage.durable_files import remove_left_temporaries, replace_file, translate_os_errors
from edl.storage.safetensors_header import DTYPE_CODES, StoredArray, encode_safetensors_header
from edl.storage.safetensors_writer import AnyArray, array_bytes, write_byte_stream

# --------------------------------------------------------------------------------------------------
# Statistics of stored arrays. They are read piece by piece, so memory does not grow with the array.


PIECE_ELEMENTS = 1 << 20
"""Elements that are processed at a time."""


@dataclass(frozen=True, slots=True)
class ArrayStatistics:
    """Statistics of the values of one or several arrays.

    Attributes:
        count: number of values.
        minimum, mean, maximum: of the finite values; None if there is none.
        nan_count: number of NaN values.
        infinite_count: number of infinite values.
    """

    count: int
    minimum: float | None
    mean: float | None
    maximum: float | None
    nan_count: int
    infinite_count: int


def map_stored_array(array: StoredArray) -> AnyArray:
    """A stored array, mapped from its file, so that only the parts that are used are read.

    bfloat16, which NumPy does not have, is read whole and widened to float32.

    Raises:
        StorageError: the file does not exist any more.
    """
    if not array.nbytes:  # mmap refuses a length of 0
        return np.empty(array.shape, _read_dtype(array))
    is_widened = array.dtype == "bfloat16"
    dtype = np.dtype("uint16" if is_widened else array.dtype).newbyteorder("<")
    with translate_os_errors(array.path, "read a checkpoint"):
        stored = np.memmap(array.path, dtype, mode="r", offset=array.start, shape=array.shape)
    # The bits of a bfloat16 are the upper half of those of the float32 with the same value.
    return (stored.astype(np.uint32) << 16).view(np.float32) if is_widened else stored


def _read_dtype(array: StoredArray) -> str:
    return "float32" if array.dtype == "bfloat16" else array.dtype


def compute_statistics(
    arrays: Iterable[StoredArray], on_read: Callable[[int], None] = lambda _: None
) -> ArrayStatistics:
    """Statistics of all values of ``arrays`` together.

    Args:
        arrays: arrays of any shape and type.
        on_read: called with the number of bytes after each piece.

    Raises:
        StorageError: a file does not exist any more.
    """
    count = nan = infinite = 0
    total, low, high = 0.0, np.inf, -np.inf
    for piece in (piece for array in arrays for piece in _iter_pieces(array)):
        # float64, so that sums of millions of small float32 values stay exact enough
        values = piece.astype(np.float64)
        finite = values[np.isfinite(values)]
        missing = int(np.isnan(values).sum())
        count, nan, infinite = count + values.size, nan + missing, infinite + values.size - finite.size - missing
        if finite.size:
            total, low, high = total + float(finite.sum()), min(low, finite.min()), max(high, finite.max())
        on_read(piece.nbytes)
    known = count - nan - infinite
    if not known:
        return ArrayStatistics(count, None, None, None, nan, infinite)
    return ArrayStatistics(count, float(low), total / known, float(high), nan, infinite)


def _iter_pieces(array: StoredArray) -> Iterator[AnyArray]:
    flat = map_stored_array(array).reshape(-1)
    for start in range(0, flat.size, PIECE_ELEMENTS):
        yield flat[start : start + PIECE_ELEMENTS]


_FIXED_DATE = (1980, 1, 1, 0, 0, 0)  # so that equal states give equal files


@dataclass(frozen=True, slots=True)
class ExportColumn:
    """An array of the output file; ``iter_pieces`` yields its values piece by piece."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    iter_pieces: Callable[[], Iterator[AnyArray]]

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return prod(self.shape) * DTYPE_CODES[self.dtype][1]


def export_columns(contents: CheckpointContents, *, include_slots: bool) -> list[ExportColumn]:
    """All arrays of the output file, in its order.

    Args:
        contents: the checkpoint.
        include_slots: export the optimizer's slot variables, too, and with strategy Local the rest of the training
            state.

    Raises:
        StorageError: an id is in two shards, or two arrays would have the same name.
    """
    all_columns = [_variable_column(variable.spec.name, variable.values) for variable in contents.variables]
    all_columns += [column for table in contents.tables for column in _table_columns(table, slots=include_slots)]
    if include_slots:
        for variable in contents.variables:
            all_columns += [
                _variable_column(f"{variable.spec.name}/slot/{slot}", array) for slot, array in variable.slots.items()
            ]
        all_columns += [_variable_column(array.name, array) for array in contents.other_arrays]
    duplicate_names = [name for name, many in Counter(column.name for column in all_columns).items() if many > 1]
    if duplicate_names:
        raise StorageError(f"two arrays would be called '{duplicate_names[0]}'", hint="Read the shards themselves.")
    return all_columns


def write_export(
    path: Path, columns: Sequence[ExportColumn], strings: Mapping[str, str], on_write: Callable[[int], None]
) -> None:
    """Write a ``.npz`` or a ``.safetensors`` file, by the suffix of ``path``. A complete file replaces it atomically.

    Args:
        path: the file; an existing one is replaced.
        columns: its arrays.
        strings: metadata; only ``.safetensors`` stores it.
        on_write: called with the number of bytes after each write.

    Raises:
        StorageError: the file cannot be written (the disk is full), or a shard cannot be read. No partial file is left.
    """
    remove_left_temporaries(path)
    with translate_os_errors(path, "write the export"), replace_file(path) as temporary:
        if path.suffix == ".npz":
            _write_npz(temporary, columns, on_write)
        else:
            head = encode_safetensors_header([(column.name, column.dtype, column.shape) for column in columns], strings)
            write_byte_stream(temporary, _iter_file_parts(head, columns, on_write))


def export_metadata(contents: CheckpointContents) -> dict[str, str]:
    """Metadata for readers of the file: the optimizer, and the initializers of rows that are not stored."""
    tables = {
        table.name: {
            "vocabulary": None if table.spec is None else table.spec.rows,
            "width": table.width,
            "initializer": table.described_initializer,
        }
        for table in contents.tables
    }
    return {"optimizer": json.dumps(contents.optimizer), "tables": json.dumps(tables)}


def _iter_file_parts(
    head: memoryview, columns: Iterable[ExportColumn], on_write: Callable[[int], None]
) -> Iterator[memoryview]:
    yield head
    for column in columns:
        for piece in column.iter_pieces():
            yield array_bytes(piece)
            on_write(piece.nbytes)


def _write_npz(path: Path, columns: Iterable[ExportColumn], on_write: Callable[[int], None]) -> None:
    with path.open("wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for column in columns:
            with archive.open(zipfile.ZipInfo(f"{column.name}.npy", _FIXED_DATE), "w", force_zip64=True) as member:
                _write_npy(member, column, on_write)


def _write_npy(member: IO[bytes], column: ExportColumn, on_write: Callable[[int], None]) -> None:
    descr = np.dtype(column.dtype).newbyteorder("<").str
    np.lib.format.write_array_header_1_0(member, {"descr": descr, "fortran_order": False, "shape": column.shape})
    for piece in column.iter_pieces():
        member.write(array_bytes(piece))
        on_write(piece.nbytes)


def _variable_column(name: str, array: StoredArray) -> ExportColumn:
    return ExportColumn(name, _read_dtype(array), array.shape, partial(_iter_pieces, array))


def _table_columns(table: StoredTable, *, slots: bool) -> Iterator[ExportColumn]:
    ids = np.concatenate([np.asarray(map_stored_array(part.ids)) for part in table.shards])
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    if (again := ids[1:][ids[1:] == ids[:-1]]).size:
        raise StorageError(
            f"row {again[0]} of table '{table.name}' is stored twice", where=str(table.shards[0].ids.path.parent)
        )
    yield ExportColumn(f"{table.name}/ids", "int64", ids.shape, lambda: iter([ids]))
    yield _ordered_rows_column(f"{table.name}/rows", [part.values for part in table.shards], order)
    for slot in table.slots if slots else ():
        yield _ordered_rows_column(f"{table.name}/slot/{slot}", [part.slots[slot] for part in table.shards], order)


def _ordered_rows_column(name: str, parts: Sequence[StoredArray], order: NDArray[np.intp]) -> ExportColumn:
    """The rows of all parts in ``order``, whose indexes count through the parts."""
    shape = (len(order), *parts[0].shape[1:])
    step = max(1, PIECE_ELEMENTS // max(1, prod(shape[1:])))
    begins = np.cumsum([0, *(part.shape[0] for part in parts)])

    def pieces() -> Iterator[AnyArray]:
        sources = [map_stored_array(part) for part in parts]
        for start in range(0, len(order), step):
            wanted = order[start : start + step]
            piece = np.empty((len(wanted), *shape[1:]), np.dtype(parts[0].dtype).newbyteorder("<"))
            owners = np.searchsorted(begins, wanted, side="right") - 1
            for index, source in enumerate(sources):
                is_owned = owners == index
                piece[is_owned] = source[wanted[is_owned] - begins[index]]
            yield piece

    return ExportColumn(name, parts[0].dtype, shape, pieces)
