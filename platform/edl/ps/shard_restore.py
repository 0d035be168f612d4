"""Restores a parameter server from checkpoint shards, and reshards: a run may resume with another number of servers.

:mod:`edl.ps.shard_writer` describes the content of a shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edl.api.errors import BadInputError, StorageError
from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.core.partition import owner_of_name, slot_of_row
from edl.core.strict_json import decode_json
from edl.numerics.array_types import Floats
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.parameter_snapshot import ParameterSnapshot, RowArrays, join_rows

ShardArrays = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CutSnapshot:
    """The state of one PS at a cut.

    Attributes:
        cut_number: the cut's number.
        snapshot: the parameters.
        version: number of applied updates.
        applied_steps: number of applied steps of every live lease.
        has_slab_order: whether the flat buffer has the order that a worker declared; a cut merged from
            several shards has not.
    """

    cut_number: int
    snapshot: ParameterSnapshot
    version: int
    applied_steps: Mapping[int, int]
    has_slab_order: bool = True


def cut_from_shard(arrays: ShardArrays, meta: Mapping[str, str]) -> CutSnapshot:
    """The cut stored in a shard.

    Raises:
        StorageError: the shard lacks an array, or an array has another shape than declared.
    """
    try:
        declaration = ModelDeclaration.from_json(meta["declaration"])
        snapshot = ParameterSnapshot(
            declaration,
            _join_flat(
                [_check_shape(arrays[f"dense/{v.name}"], v) for v in declaration.variables], declaration.flat_size
            ),
            {slot: _flat_slot(arrays, slot, declaration) for slot in declaration.optimizer.slot_starts},
            {table.name: _table_rows(arrays, table.name, declaration) for table in declaration.tables},
        )
        applied = {int(lease): int(through) for lease, through in decode_json(meta["applied"]).items()}
        return CutSnapshot(int(meta["cut"]), snapshot, int(meta["version"]), applied)
    except (KeyError, ValueError, TypeError, AttributeError, BadInputError) as error:
        # The file is intact (its checksum was compared), so another program or version wrote it.
        raise StorageError(f"is not the shard of a parameter server: {error}") from error


def load_owned_part(directory: Path, ps_index: int, slot_owners: Sequence[int]) -> CutSnapshot:
    """The part of a committed checkpoint that the PS ``ps_index`` owns, regardless of which PS wrote it.

    Args:
        directory: the checkpoint's directory.
        ps_index: index of this PS.
        slot_owners: the index of the PS that owns each slot.

    Raises:
        StorageError: a shard is missing or damaged, or there are no shards.
    """
    # Imports safetensors, which an idle PS does not need.
    from edl.storage import checkpoint_manifest, checkpoint_shards

    manifest = checkpoint_manifest.load_manifest(directory)
    if isinstance(manifest, checkpoint_manifest.SkippedCheckpoint):
        raise StorageError(f"cannot be used: {manifest.reason}", where=str(directory))
    # A generator, so that not all shards are in memory at once: each is reduced to the owned part.
    shards = (cut_from_shard(*checkpoint_shards.read_shard(directory / shard.file)) for shard in manifest.shards)
    return merge_cuts([select_owned(cut, ps_index, tuple(slot_owners)) for cut in shards])


def select_owned(cut: CutSnapshot, ps_index: int, slot_owners: tuple[int, ...]) -> CutSnapshot:
    """The part of a cut that the PS ``ps_index`` owns, in the same order of variables and rows."""
    snapshot = cut.snapshot
    owned = tuple(v for v in snapshot.declaration.variables if owner_of_name(v.name, slot_owners) == ps_index)
    owners = np.asarray(slot_owners)
    tables = {
        name: rows.select_rows(owners[slot_of_row(rows.ids.astype(np.uint64))] == ps_index)
        for name, rows in ((name, rows.read_all()) for name, rows in snapshot.tables.items())
    }
    return replace(cut, snapshot=replace(snapshot.rearrange(owned), tables=tables))


def merge_cuts(parts: Sequence[CutSnapshot]) -> CutSnapshot:
    """Merge cuts with disjoint variables and rows; the order is kept if one cut has all variables.

    Raises:
        StorageError: there are no parts, or they belong to two models.
    """
    if not parts:
        raise StorageError("the checkpoint has no shards")
    snapshots = [part.snapshot for part in parts]
    declaration = _common_declaration(snapshots)
    merged_snapshot = ParameterSnapshot(
        declaration,
        np.concatenate(
            [s.flat_values[: s.declaration.trained_size] for s in snapshots]
            + [s.flat_values[s.declaration.trained_size :] for s in snapshots]
        ),
        {slot: np.concatenate([s.slots[slot] for s in snapshots]) for slot in declaration.optimizer.slot_starts},
        {table.name: join_rows([s.tables[table.name].read_all() for s in snapshots]) for table in declaration.tables},
    )
    # With the variables of one shard only, the order is the one that a worker declared.
    ordered = sum(bool(s.declaration.variables) for s in snapshots) <= 1
    # A PS that was restored after a lease was granted may have a lower number of its steps than the
    # others, never a higher one.
    applied = {
        lease: max(part.applied_steps.get(lease, 0) for part in parts) for part in parts for lease in part.applied_steps
    }
    version = max(part.version for part in parts)
    return replace(parts[0], snapshot=merged_snapshot, version=version, applied_steps=applied, has_slab_order=ordered)


def _common_declaration(snapshots: Sequence[ParameterSnapshot]) -> ModelDeclaration:
    """The merged declaration: trained variables first, in the order of the parts."""
    first = snapshots[0].declaration
    for declaration in (snapshot.declaration for snapshot in snapshots):
        if difference := first.describe_difference(replace(declaration, variables=first.variables)):
            raise StorageError(f"the checkpoint's shards belong to two models: {difference}")
    variables = (variable for snapshot in snapshots for variable in snapshot.declaration.variables)
    return replace(first, variables=tuple(sorted(variables, key=lambda variable: variable.statistic)))


def _check_shape(array: Floats, variable: VariableSpec) -> Floats:
    if array.shape != variable.shape:
        raise ValueError(
            f"variable '{variable.name}' has the shape {list(array.shape)}; declared is {list(variable.shape)}"
        )
    return array


def _join_flat(arrays: Sequence[Floats], size: int) -> Floats:
    flat = np.concatenate([np.empty(0, np.float32), *(np.ravel(array) for array in arrays)])
    if flat.dtype != np.float32 or len(flat) != size:
        raise ValueError(f"there are {len(flat)} values of type {flat.dtype}; declared are {size} of type float32")
    return flat


def _flat_slot(arrays: ShardArrays, slot: str, declaration: ModelDeclaration) -> Floats:
    names = [variable.name for variable in declaration.variables if not variable.statistic]
    return _join_flat(
        [_slot_array(arrays, "slot/", slot, f"/{name}", declaration) for name in names], declaration.trained_size
    )


def _slot_array(arrays: ShardArrays, head: str, slot: str, tail: str, declaration: ModelDeclaration) -> Floats:
    """A slot variable's array, under its current or its former name."""
    former_name = head + declaration.optimizer.former_slot_names.get(slot, slot) + tail
    array: Floats = arrays[former_name if former_name in arrays else head + slot + tail]
    return array


def _table_rows(arrays: ShardArrays, table: str, declaration: ModelDeclaration) -> RowArrays:
    slots = {
        slot: _slot_array(arrays, f"rows/{table}/slot/", slot, "", declaration)
        for slot in declaration.optimizer.slot_starts
    }
    rows = RowArrays(
        arrays[f"rows/{table}/ids"], arrays[f"rows/{table}/values"], slots, arrays.get(f"rows/{table}/seen")
    )
    if rows.ids.ndim != 1:
        raise ValueError(f"the ids of table '{table}' have the shape {list(rows.ids.shape)}, not [n]")
    shape = (len(rows.ids), declaration.get_table(table).dim)
    steps = () if rows.last_steps is None else (rows.last_steps,)
    if any(a.shape != shape for a in (rows.values, *slots.values())) or any(a.shape != shape[:1] for a in steps):
        raise ValueError(f"the rows of table '{table}' do not have the shape {list(shape)}")
    _check_rows(rows, declaration.get_table(table))
    return rows


def _check_rows(rows: RowArrays, table: TableSpec) -> None:
    """Refuse rows that a table could not load or would misinterpret."""
    _check_dtype(rows.ids, "int64", table)
    for values in (rows.values, *rows.slots.values()):
        _check_dtype(values, "float32", table)
    if table.rows and len(rows.ids) and not (rows.ids.min() >= 0 and rows.ids.max() < table.rows):
        raise ValueError(
            f"table '{table.name}' has ids {rows.ids.min()} to {rows.ids.max()}; declared are {table.rows} rows"
        )


def _check_dtype(array: np.ndarray, expected_dtype: str, table: TableSpec) -> None:
    if array.dtype != expected_dtype:
        raise ValueError(f"the rows of table '{table.name}' have the type {array.dtype}, not {expected_dtype}")
