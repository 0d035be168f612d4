"""Restores a parameter server from a checkpoint that workers of strategy AllReduce wrote.

Such a checkpoint has no declaration: which embeddings are tables is known when a worker declares its model. So a
restored server keeps the place of the checkpoint, and reads its part when the model is declared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edl.api.errors import BadInputError, StorageError
from edl.api.tables import TableSpec
from edl.core.partition import slot_of_row
from edl.numerics.array_types import Floats
from edl.numerics.keras_state import KERAS_STATE_KEY, KerasState, check_same_slots
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.parameter_snapshot import ParameterSnapshot, RowArrays
from edl.ps import shard_restore
from edl.ps.shard_restore import CutSnapshot
from edl.storage.checkpoint_manifest import SkippedCheckpoint, check_shard_bytes, load_manifest
from edl.storage.safetensors_header import StoredArray, read_safetensors_header
from edl.transport.peer_errors import PeerRefusedError


@dataclass(frozen=True, slots=True)
class KerasCheckpoint:
    """A checkpoint of strategy AllReduce, and which part of it this server owns.

    Attributes:
        cut_number: the cut's number.
        version: number of applied updates.
        ps_index: index of this PS.
        slot_owners: the index of the PS that owns each slot of a table.
        state: the meaning of the arrays.
        arrays: the places of the arrays by name.
    """

    cut_number: int
    version: int
    ps_index: int
    slot_owners: tuple[int, ...]
    state: KerasState
    arrays: Mapping[str, StoredArray]

    @property
    def applied_steps(self) -> Mapping[int, int]:
        """No lease of parameter servers was open."""
        return {}

    def convert(self, declaration: ModelDeclaration) -> ParameterSnapshot:
        """The parameters of this server for a model that a worker declares.

        Raises:
            PeerRefusedError: kind ``model``, if the checkpoint belongs to another model, or its optimizer has no such
                state; kind ``storage``, if a file cannot be read.
        """
        try:
            stored = self.state.require_optimizer()
            check_same_slots(stored, declaration.optimizer, was="AllReduce", now="ParameterServer")
            return self._read_snapshot(declaration)
        except BadInputError as error:
            raise PeerRefusedError(error.message, kind="model", hint=error.hint) from error
        except StorageError as error:
            raise PeerRefusedError(str(error), kind="storage") from error

    def _read_snapshot(self, declaration: ModelDeclaration) -> ParameterSnapshot:
        trained = [variable for variable in declaration.variables if not variable.statistic]
        slots = {
            slot: _join([self._read_slot(variable.name, slot, variable.shape) for variable in trained])
            for slot in declaration.optimizer.slot_starts
        }
        values = _join([self._read(f"dense/{variable.name}", variable.shape) for variable in declaration.variables])
        tables = {table.name: self._read_rows(table, declaration) for table in declaration.tables}
        return ParameterSnapshot(declaration, values, slots, tables)

    def _read_rows(self, table: TableSpec, declaration: ModelDeclaration) -> RowArrays:
        shape = (table.rows, table.dim)
        owners = np.asarray(self.slot_owners)[slot_of_row(np.arange(table.rows, dtype=np.uint64))]
        ids = np.flatnonzero(owners == self.ps_index).astype(np.int64)
        slots = {slot: self._read_slot(table.name, slot, shape)[ids] for slot in declaration.optimizer.slot_starts}
        return RowArrays(ids, self._read(f"dense/{table.name}", shape)[ids], slots)

    def _read_slot(self, variable: str, slot: str, shape: Sequence[int]) -> Floats:
        name = self.state.slots.get(variable, {}).get(slot)
        if name is None:
            raise _other_model_error(f"has no {slot} of the variable '{variable}'")
        return self._read(name, shape)

    def _read(self, name: str, shape: Sequence[int]) -> Floats:
        array = self.arrays.get(name)
        if array is None:
            raise _other_model_error(f"has no array '{name}'")
        if array.shape != tuple(shape) or array.dtype != "float32":
            raise _other_model_error(
                f"has the array '{name}' of the shape {list(array.shape)} and type {array.dtype}, and the model of the "
                f"shape {list(shape)} and type float32"
            )
        return _read_array(array)


def load_checkpoint(directory: Path, ps_index: int, slot_owners: Sequence[int]) -> CutSnapshot | KerasCheckpoint:
    """The part of a committed checkpoint that the PS ``ps_index`` owns, whatever strategy wrote it.

    Raises:
        StorageError: a shard is missing or damaged, or there are no shards.
    """
    manifest = load_manifest(directory)
    if isinstance(manifest, SkippedCheckpoint):
        raise StorageError(f"cannot be used: {manifest.reason}", where=str(directory))
    headers = [read_safetensors_header(directory / shard.file) for shard in manifest.shards]
    description = headers[0].metadata.get(KERAS_STATE_KEY) if headers else None
    if description is None:
        return shard_restore.load_owned_part(directory, ps_index, slot_owners)
    for shard in manifest.shards:
        check_shard_bytes(directory, shard)
    try:
        state = KerasState.from_json(description)
    except ValueError as error:
        raise StorageError(str(error), where=str(headers[0].path)) from error
    arrays = {name: array for header in headers for name, array in header.arrays.items()}
    version = int(_read_array(arrays[state.iterations])) if state.iterations in arrays else manifest.version
    return KerasCheckpoint(manifest.cut, version, ps_index, tuple(slot_owners), state, arrays)


def _read_array(array: StoredArray) -> np.ndarray[Any, Any]:
    try:
        flat = np.fromfile(
            array.path,
            np.dtype(array.dtype).newbyteorder("<"),
            int(np.prod(array.shape, dtype=int)),
            offset=array.start,
        )
        return flat.reshape(array.shape)
    except (OSError, ValueError) as error:
        raise StorageError(f"'{array.name}' cannot be read: {error}", where=str(array.path)) from error


def _join(arrays: Sequence[Floats]) -> Floats:
    return np.concatenate([np.empty(0, np.float32), *(array.ravel() for array in arrays)])


def _other_model_error(difference: str) -> PeerRefusedError:
    return PeerRefusedError(
        f"the model differs from that of the checkpoint: the checkpoint of strategy AllReduce {difference}",
        kind="model",
        hint="restore the model that this run started with, or start a new run, without --resume",
    )
