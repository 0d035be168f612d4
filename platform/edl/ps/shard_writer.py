"""Writes checkpoint shards in the background while training continues."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from edl.api.errors import RetryableError, StorageError
from edl.numerics.array_types import Floats
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.parameter_snapshot import ParameterSnapshot, TableSnapshot
from edl.ps.shard_restore import CutSnapshot
from edl.transport.peer_errors import PeerRefusedError

# --------------------------------------------------------------------------------------------------
# The shard of a cut, produced in chunks. Arrays are named ``dense/<variable>``,
# ``slot/<slot>/<variable>``, ``rows/<table>/ids``, ``rows/<table>/values`` and
# ``rows/<table>/slot/<slot>``. Variables keep their shapes, so that a shard can be read without
# EDL. If unused rows are evicted, ``rows/<table>/seen`` has the last step that used each row. The
# metadata are the strings ``cut``, ``version``, ``applied`` (JSON, lease to applied steps) and
# ``declaration`` (JSON).


@dataclass(frozen=True, slots=True)
class ShardContent:
    """The content of a cut's shard file.

    Attributes:
        array_shapes: name, dtype and shape of each array, in the file's order.
        array_chunks: name and next values of an array, in the order of the rows. A chunk is valid until
            the next one is requested; the iterator can be used once. Variables are views of the
            snapshot, rows come in chunks.
        metadata: the strings in the file's header.
    """

    array_shapes: Sequence[tuple[str, str, tuple[int, ...]]]
    array_chunks: Iterator[tuple[str, Any]]
    metadata: Mapping[str, str]


def make_shard_content(cut: CutSnapshot) -> ShardContent:
    """The shard of this PS."""
    snapshot = cut.snapshot
    dense = dict(_dense_arrays(snapshot))
    array_shapes = [(name, array.dtype.name, array.shape) for name, array in dense.items()]
    for table, rows in snapshot.tables.items():
        array_shapes += _row_array_shapes(snapshot.declaration, table, rows)
    meta = {
        "cut": str(cut.cut_number),
        "version": str(cut.version),
        "applied": json.dumps(dict(cut.applied_steps)),
        "declaration": snapshot.declaration.to_json(),
    }
    return ShardContent(array_shapes, chain(dense.items(), _row_chunks(snapshot)), meta)


def _dense_arrays(snapshot: ParameterSnapshot) -> Iterator[tuple[str, Floats]]:
    for variable, place in snapshot.declaration.variable_slices():
        yield f"dense/{variable.name}", snapshot.flat_values[place].reshape(variable.shape)
        if not variable.statistic:
            for slot, values in snapshot.slots.items():
                yield f"slot/{slot}/{variable.name}", values[place].reshape(variable.shape)


def _row_array_shapes(
    declaration: ModelDeclaration, table: str, rows: TableSnapshot
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    shape = (len(rows), declaration.get_table(table).dim)
    yield f"rows/{table}/ids", "int64", shape[:1]
    if rows.has_last_steps:
        yield f"rows/{table}/seen", "uint32", shape[:1]
    yield f"rows/{table}/values", "float32", shape
    for slot in declaration.optimizer.slot_starts:
        yield f"rows/{table}/slot/{slot}", "float32", shape


def _row_chunks(snapshot: ParameterSnapshot) -> Iterator[tuple[str, Any]]:
    for table, rows in snapshot.tables.items():
        for chunk in rows.iter_chunks():
            yield f"rows/{table}/ids", chunk.ids
            if chunk.last_steps is not None:
                yield f"rows/{table}/seen", chunk.last_steps
            yield f"rows/{table}/values", chunk.values
            for slot, values in chunk.slots.items():
                yield f"rows/{table}/slot/{slot}", values


_KEPT_RESULTS = 8
"""Number of cuts whose results are kept to answer repeated requests."""


@dataclass(frozen=True, slots=True)
class SavedShard:
    """The result of writing a shard: file name, size in bytes and crc32 as eight hex digits, or the error."""

    file: str = ""
    size: int = 0
    checksum: str = ""
    error: str = ""


class ShardWriter:
    """Writes the shards of one PS, each on a daemon thread.

    Args:
        ps_index: index of this PS.
        write: writes one cut to a directory; tests pass another function.
    """

    def __init__(self, ps_index: int, write: Callable[[Path, int, CutSnapshot], SavedShard] | None = None) -> None:
        self._ps_index = ps_index
        self._write_cut = write or write_cut_shard
        self._results: dict[int, Future[SavedShard]] = {}
        self._lock = threading.Lock()

    def start_writing(self, directory: Path, cut: CutSnapshot) -> None:
        """Start writing a cut; its snapshot is retained until the shard is written."""
        cut.snapshot.retain()
        result: Future[SavedShard] = Future()
        with self._lock:
            self._results[cut.cut_number] = result
            for number in sorted(self._results)[:-_KEPT_RESULTS]:
                del self._results[number]
        threading.Thread(
            target=self._write_shard, args=(directory, cut, result), name="shard-writer", daemon=True
        ).start()

    def wait_until_saved(self, cut: int, timeout: float) -> SavedShard:
        """Wait until the shard is on disk or has failed.

        Raises:
            PeerRefusedError: kind ``cut``: this process has not started to write a shard of that cut.
            RetryableError: writing takes longer than ``timeout`` seconds.
        """
        with self._lock:
            result = self._results.get(cut)
        if result is None:
            raise PeerRefusedError(f"this PS has not started to write a shard of cut {cut}", kind="cut")
        try:
            return result.result(timeout)
        except TimeoutError as error:
            raise RetryableError(f"the shard of cut {cut} is still being written after {timeout:.0f} s") from error

    def _write_shard(self, directory: Path, cut: CutSnapshot, result: Future[SavedShard]) -> None:
        try:
            with cut.snapshot:
                saved = self._write_cut(directory, self._ps_index, cut)
            result.set_result(saved)
        except StorageError as error:
            # A full disk is expected: the master aborts the cut and tries again later.
            result.set_result(SavedShard(error=str(error)))
        except BaseException as error:
            # A bug: fail the waiting request too, which would otherwise wait until its timeout.
            result.set_exception(error)
            raise


def write_cut_shard(directory: Path, ps_index: int, cut: CutSnapshot) -> SavedShard:
    """Write the shard of the PS ``ps_index`` in chunks; raises StorageError if writing fails."""
    # Imports safetensors, which an idle PS does not need.
    from edl.storage import checkpoint_shards
    from edl.storage.safetensors_writer import ArrayShape

    content = make_shard_content(cut)
    arrays = [ArrayShape(*array) for array in content.array_shapes]
    shard = checkpoint_shards.write_shard_parts(directory, ps_index, arrays, content.array_chunks, content.metadata)
    return SavedShard(shard.file, shard.size, f"{shard.crc32:08x}")
