"""What a checkpoint holds, from the headers of its shards: no array is read, and NumPy is not needed.

Variables lie whole in one shard; a table's rows are spread over all of them, however many there are.
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
        spec: as declared; without a declaration (strategy Local), as its values say.
        values: of its shape.
        slots: its slot variables by name, of the same shape.
    """

    spec: VariableSpec
    values: StoredArray
    slots: Mapping[str, StoredArray]


@dataclass(frozen=True, slots=True)
class TableShard:
    """The rows of a table in one shard.

    Attributes:
        ids: ``[n]``, in no order.
        values: ``[n, width]``.
        slots: by slot variable, ``[n, …]``.
    """

    ids: StoredArray
    values: StoredArray
    slots: Mapping[str, StoredArray]


@dataclass(frozen=True, slots=True)
class StoredTable:
    """An embedding table: the rows that were ever trained.

    Attributes:
        name: of the table.
        spec: as declared; None if no shard declares it.
        shards: by shard, at least one.
    """

    name: str
    spec: TableSpec | None
    shards: tuple[TableShard, ...]

    @property
    def row_count(self) -> int:
        """Stored rows of all parts."""
        return sum(part.ids.shape[0] for part in self.shards)

    @property
    def width(self) -> int:
        """Elements of a stored row."""
        return self.shards[0].values.shape[1]

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the slot variables, sorted."""
        return tuple(sorted(self.shards[0].slots))

    @property
    def described_initializer(self) -> Mapping[str, Any]:
        """For readers of an export: what the rows are that are not stored, with ``seed``; empty if not declared."""
        return {} if self.spec is None else {**self.spec.initializer, "seed": self.spec.seed}


@dataclass(frozen=True, slots=True)
class CheckpointContents:
    """All of it.

    Attributes:
        variables: by name, sorted.
        tables: by name, sorted.
        other_arrays: arrays of other kinds: what strategy Local keeps of its optimizer and its random generators.
        optimizer: name and hyperparameters; None when the shards do not say (strategy Local).
    """

    variables: tuple[StoredVariable, ...]
    tables: tuple[StoredTable, ...]
    other_arrays: tuple[StoredArray, ...] = ()
    optimizer: Mapping[str, Any] | None = None


def read_checkpoint_contents(shards: Iterable[Path]) -> CheckpointContents:
    """What the shards of one checkpoint hold together.

    Raises:
        StorageError: one cannot be read or is not a shard, they are of two models, or do not fit together.
    """
    shard_arrays = [_ShardArrays.from_header(read_safetensors_header(path)) for path in shards]
    _check_same_model(shard_arrays)
    variables = sorted(
        (one for shard in shard_arrays for one in shard.stored_variables()), key=lambda one: one.spec.name
    )
    for one, other in pairwise(variables):
        if one.spec.name == other.spec.name:
            problem = f"holds variable '{one.spec.name}', and so does {one.values.path.name}"
            raise StorageError(problem, where=str(other.values.path))
    names = sorted({name for shard in shard_arrays for name in shard.rows})
    tables = tuple(_merge_table_shards(name, [shard for shard in shard_arrays if name in shard.rows]) for name in names)
    others = tuple(array for shard in shard_arrays for array in shard.others)
    return CheckpointContents(
        tuple(variables), tables, others, shard_arrays[0].declaration.optimizer if shard_arrays else None
    )


def list_shard_variables(directory: Path, ps_index: int) -> list[str]:
    """The variables and tables in a parameter server's part of the cut in ``directory``, sorted.

    A shard that is not there any more has none.

    Raises:
        StorageError: it cannot be read, or is not in the format.
    """
    path = directory / f"ps-{ps_index}.safetensors"
    try:
        shard = _ShardArrays.from_header(read_safetensors_header(path))
    except StorageError:
        if not path.exists():
            return []
        raise
    return sorted([*shard.dense, *shard.rows])


@dataclass(frozen=True, slots=True)
class _Declared:
    """What is needed here of the declaration in a shard; all of it is empty for a shard without one."""

    dense: tuple[VariableSpec, ...]
    tables: tuple[TableSpec, ...]
    optimizer: Mapping[str, Any] | None
    fingerprint: str

    @classmethod
    def of(cls, header: SafetensorsHeader) -> _Declared:
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

    def is_same_model(self, other: _Declared) -> bool:
        """Each shard has its own dense variables; the rest is common to all."""
        ours = (self.fingerprint, self.optimizer, self.tables)
        return ours == (other.fingerprint, other.optimizer, other.tables)


@dataclass(frozen=True, slots=True)
class _ShardArrays:
    """The arrays of a header, sorted by their names: see :mod:`edl.ps.shard_restore` for these."""

    path: Path
    declaration: _Declared
    dense: dict[str, StoredArray] = field(default_factory=dict)
    slots: dict[str, dict[str, StoredArray]] = field(default_factory=dict)
    rows: dict[str, dict[str, StoredArray]] = field(default_factory=dict)
    others: list[StoredArray] = field(default_factory=list)

    @classmethod
    def from_header(cls, header: SafetensorsHeader) -> _ShardArrays:
        shard = cls(header.path, _Declared.of(header))
        for array in header.arrays.values():
            shard._add_array(array)
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
        """Raises StorageError if a declared variable or the values of a slot variable are not there."""
        declared = {spec.name: spec for spec in self.declaration.dense}
        for name in sorted({*self.slots, *declared}):
            array = self.dense.get(name)
            if array is None or (name in declared and array.shape != declared[name].shape):
                raise StorageError(f"does not hold variable '{name}' as it declares it", where=str(self.path))
        for name, slots in self.slots.items():
            if any(array.shape != self.dense[name].shape for array in slots.values()):
                raise StorageError(f"has slots of another shape than variable '{name}'", where=str(self.path))
        return [
            StoredVariable(declared.get(name, VariableSpec(name, array.shape)), array, self.slots.get(name, {}))
            for name, array in self.dense.items()
        ]

    def table_shard(self, table: str) -> TableShard:
        """Raises StorageError if the arrays of a table do not fit together."""
        arrays = dict(self.rows[table])
        ids, values = arrays.pop("ids", None), arrays.pop("values", None)
        if ids is None or values is None or (ids.dtype, len(ids.shape), len(values.shape)) != ("int64", 1, 2):
            raise StorageError(f"does not hold ids and rows of table '{table}'", where=str(self.path))
        if any(array.shape[:1] != ids.shape for array in (values, *arrays.values())):
            raise StorageError(f"does not hold whole rows of table '{table}'", where=str(self.path))
        arrays.pop("seen", None)
        return TableShard(ids, values, {name.removeprefix("slot/"): array for name, array in arrays.items()})


def _split_row_array_name(rest: str) -> tuple[str, str]:
    """Table, and ``ids``, ``values``, ``seen`` or ``slot/<slot>``, of what follows ``rows/``."""
    table, _, last = rest.rpartition("/")
    if last in ("ids", "values") or (last == "seen" and not table.endswith("/slot")):
        return table, last
    return table.removesuffix("/slot"), f"slot/{last}"


def _merge_table_shards(name: str, shards: list[_ShardArrays]) -> StoredTable:
    parts = tuple(shard.table_shard(name) for shard in shards)
    first = parts[0]
    for shard, part in zip(shards, parts, strict=True):
        if _row_signature(part) != _row_signature(first):
            problem = f"holds rows of table '{name}' of another kind than {shards[0].path.name}"
            raise StorageError(problem, where=str(shard.path))
    spec = next((spec for spec in shards[0].declaration.tables if spec.name == name), None)
    table = StoredTable(name, spec, parts)
    if spec is not None and spec.dim != table.width:
        raise StorageError(f"does not hold rows of table '{name}' as it declares them", where=str(shards[0].path))
    return table


def _row_signature(part: TableShard) -> Mapping[str, object]:
    """What the parts of a table have in common: shape and type of a row, by array."""
    return {name: (array.shape[1:], array.dtype) for name, array in {"": part.values, **part.slots}.items()}


def _check_same_model(shards: list[_ShardArrays]) -> None:
    for shard in shards[1:]:
        if not shard.declaration.is_same_model(shards[0].declaration):
            raise StorageError(f"is of another model than {shards[0].path.name}", where=str(shard.path))
