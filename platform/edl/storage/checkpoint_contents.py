"""The content of a checkpoint, from the headers of its shards. No array is read, and NumPy is not needed.

A variable is in one shard. The rows of a table are distributed over all shards, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from edl.api.errors import StorageError
from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.core.strict_json import decode_json_file
from edl.storage.safetensors_header import SafetensorsHeader, StoredArray, read_safetensors_header


@dataclass(frozen=True, slots=True)
class StoredVariable:
    """A dense variable.

    Attributes:
        spec: its declaration; without one (strategy Local), made from the shape of the values.
        values: array of the variable's shape.
        slots: its slot variables by name, of the same shape.
    """

    spec: VariableSpec
    values: StoredArray
    slots: Mapping[str, StoredArray]


@dataclass(frozen=True, slots=True)
class TableShard:
    """The rows of a table in one shard.

    Attributes:
        ids: ``[n]``, unordered.
        values: ``[n, width]``.
        slots: slot variables by name, ``[n, …]``.
    """

    ids: StoredArray
    values: StoredArray
    slots: Mapping[str, StoredArray]


@dataclass(frozen=True, slots=True)
class StoredTable:
    """An embedding table: all rows that were ever trained.

    Attributes:
        name: name of the table.
        spec: its declaration; None if no shard has one.
        shards: the parts of the table in the shards that have one, at least one.
    """

    name: str
    spec: TableSpec | None
    shards: tuple[TableShard, ...]

    @property
    def row_count(self) -> int:
        """Number of stored rows in all shards."""
        return sum(part.ids.shape[0] for part in self.shards)

    @property
    def width(self) -> int:
        """Elements per row."""
        return self.shards[0].values.shape[1]

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the slot variables, sorted."""
        return tuple(sorted(self.shards[0].slots))

    @property
    def described_initializer(self) -> Mapping[str, Any]:
        """The initializer of rows that are not stored, with ``seed``; empty if the table is not declared."""
        return {} if self.spec is None else {**self.spec.initializer, "seed": self.spec.seed}


@dataclass(frozen=True, slots=True)
class CheckpointContents:
    """The content of one checkpoint.

    Attributes:
        variables: dense variables, sorted by name.
        tables: embedding tables, sorted by name.
        other_arrays: arrays of other kinds: with strategy Local, the state of the optimizer and of random generators.
        optimizer: name and hyperparameters; None if the shards do not have them (strategy Local).
    """

    variables: tuple[StoredVariable, ...]
    tables: tuple[StoredTable, ...]
    other_arrays: tuple[StoredArray, ...] = ()
    optimizer: Mapping[str, Any] | None = None


def read_checkpoint_contents(shards: Iterable[Path]) -> CheckpointContents:
    """Read the content of the shards of one checkpoint.

    Raises:
        StorageError: a shard cannot be read or is not one, or the shards belong to different models or overlap.
    """
    shard_arrays = [_ShardArrays.from_header(read_safetensors_header(path)) for path in shards]
    _check_same_model(shard_arrays)
    variables = sorted(
        (variable for shard in shard_arrays for variable in shard.stored_variables()),
        key=lambda variable: variable.spec.name,
    )
    # sorted by name, so equal names are adjacent
    for variable, other in pairwise(variables):
        if variable.spec.name == other.spec.name:
            problem = f"has variable '{variable.spec.name}', and so does {variable.values.path.name}"
            raise StorageError(problem, where=str(other.values.path))
    names = sorted({name for shard in shard_arrays for name in shard.rows})
    tables = tuple(_merge_table_shards(name, [shard for shard in shard_arrays if name in shard.rows]) for name in names)
    others = tuple(array for shard in shard_arrays for array in shard.others)
    return CheckpointContents(
        tuple(variables), tables, others, shard_arrays[0].declaration.optimizer if shard_arrays else None
    )


def list_shard_variables(directory: Path, ps_index: int) -> list[str]:
    """The variables and tables in the shard of one parameter server, sorted.

    A shard that does not exist any more has none.

    Args:
        directory: folder of the cut.
        ps_index: index of the parameter server.

    Raises:
        StorageError: the shard cannot be read, or has another format.
    """
    path = directory / f"ps-{ps_index}.safetensors"
    try:
        shard = _ShardArrays.from_header(read_safetensors_header(path))
    except StorageError:
        if not path.exists():  # the master prunes checkpoints meanwhile
            return []
        raise
    return sorted([*shard.dense, *shard.rows])


@dataclass(frozen=True, slots=True)
class _ShardDeclaration:
    """The needed fields of a shard's declaration; empty for a shard without one."""

    dense: tuple[VariableSpec, ...]
    tables: tuple[TableSpec, ...]
    optimizer: Mapping[str, Any] | None
    fingerprint: str

    @classmethod
    def from_header(cls, header: SafetensorsHeader) -> _ShardDeclaration:
        try:
            value = decode_json_file(header.metadata.get("declaration", "{}"))
            return cls(
                tuple(VariableSpec.from_json(fields) for fields in value.get("dense", [])),
                tuple(TableSpec.from_json(fields) for fields in value.get("tables", [])),
                None if value.get("optimizer") is None else dict(value["optimizer"]),
                str(value.get("fingerprint")),
            )
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise StorageError(f"is not the shard of a checkpoint: {error}", where=str(header.path)) from error

    def is_same_model(self, other: _ShardDeclaration) -> bool:
        """Whether another shard belongs to the same model. Each shard has other dense variables; the rest is equal."""
        ours = (self.fingerprint, self.optimizer, self.tables)
        return ours == (other.fingerprint, other.optimizer, other.tables)


@dataclass(frozen=True, slots=True)
class _ShardArrays:
    """The arrays of a header, grouped by the kind in their names, which :mod:`edl.ps.shard_restore` documents."""

    path: Path
    declaration: _ShardDeclaration
    dense: dict[str, StoredArray] = field(default_factory=dict)
    slots: dict[str, dict[str, StoredArray]] = field(default_factory=dict)
    rows: dict[str, dict[str, StoredArray]] = field(default_factory=dict)
    others: list[StoredArray] = field(default_factory=list)

    @classmethod
    def from_header(cls, header: SafetensorsHeader) -> _ShardArrays:
        shard = cls(header.path, _ShardDeclaration.from_header(header))
        for array in header.arrays.values():
            shard._add_array(array)
        # Of a model with several optimizers: slot/<attribute>/<n>, which are slots of no variable.
        for name in [each for each in shard.slots if each not in shard.dense and each.rpartition("/")[2].isdigit()]:
            shard.others.extend(shard.slots.pop(name).values())
        return shard

    def _add_array(self, array: StoredArray) -> None:
        kind, _, remaining_name = array.name.partition("/")
        slot, _, variable = remaining_name.partition("/")
        if kind == "dense":
            self.dense[remaining_name] = array
        elif kind == "slot" and variable:
            self.slots.setdefault(variable, {})[slot] = array
        elif kind == "rows":
            table, part = _split_row_array_name(remaining_name)
            self.rows.setdefault(table, {})[part] = array
        else:
            self.others.append(array)

    def stored_variables(self) -> list[StoredVariable]:
        """The dense variables; raises StorageError if a declared variable or a slot variable's values are missing."""
        declared = {spec.name: spec for spec in self.declaration.dense}
        # without a declaration (strategy Local), every slot variable still needs its variable
        for name in sorted({*self.slots, *declared}):
            array = self.dense.get(name)
            if array is None or (name in declared and array.shape != declared[name].shape):
                raise StorageError(f"does not have variable '{name}' as it declares it", where=str(self.path))
        for name, slots in self.slots.items():
            if any(array.shape != self.dense[name].shape for array in slots.values()):
                raise StorageError(f"has slots of another shape than variable '{name}'", where=str(self.path))
        return [
            StoredVariable(declared.get(name, VariableSpec(name, array.shape)), array, self.slots.get(name, {}))
            for name, array in self.dense.items()
        ]

    def table_shard(self, table: str) -> TableShard:
        """The rows of a table; raises StorageError if its arrays do not fit together."""
        arrays = dict(self.rows[table])
        ids, values = arrays.pop("ids", None), arrays.pop("values", None)
        if ids is None or values is None or (ids.dtype, len(ids.shape), len(values.shape)) != ("int64", 1, 2):
            raise StorageError(f"does not have ids and rows of table '{table}'", where=str(self.path))
        if any(array.shape[:1] != ids.shape for array in (values, *arrays.values())):
            raise StorageError(f"does not have whole rows of table '{table}'", where=str(self.path))
        arrays.pop("seen", None)  # last step that used each row; only parameter servers need it, to evict rows
        return TableShard(ids, values, {name.removeprefix("slot/"): array for name, array in arrays.items()})


def _split_row_array_name(rest: str) -> tuple[str, str]:
    """Split an array's name after ``rows/`` into the table and ``ids``, ``values``, ``seen`` or ``slot/<slot>``."""
    # from the right, because names of tables contain slashes; a slot variable may be called seen,
    # too
    table, _, last = rest.rpartition("/")
    if last in ("ids", "values") or (last == "seen" and not table.endswith("/slot")):
        return table, last
    return table.removesuffix("/slot"), f"slot/{last}"


def _merge_table_shards(name: str, shards: list[_ShardArrays]) -> StoredTable:
    parts = tuple(shard.table_shard(name) for shard in shards)
    first = parts[0]
    for shard, part in zip(shards, parts, strict=True):
        if _row_signature(part) != _row_signature(first):
            problem = f"has rows of table '{name}' of another shape or type than {shards[0].path.name}"
            raise StorageError(problem, where=str(shard.path))
    spec = next((spec for spec in shards[0].declaration.tables if spec.name == name), None)
    table = StoredTable(name, spec, parts)
    if spec is not None and spec.dim != table.width:
        raise StorageError(f"does not have rows of table '{name}' as it declares them", where=str(shards[0].path))
    return table


def _row_signature(part: TableShard) -> Mapping[str, object]:
    """What all parts of a table must have in common: shape and type of a row, by array."""
    return {name: (array.shape[1:], array.dtype) for name, array in {"": part.values, **part.slots}.items()}


def _check_same_model(shards: list[_ShardArrays]) -> None:
    for shard in shards[1:]:
        if not shard.declaration.is_same_model(shards[0].declaration):
            raise StorageError(f"belongs to another model than {shards[0].path.name}", where=str(shard.path))
