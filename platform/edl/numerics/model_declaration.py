"""A worker's declaration to a parameter server: variables, tables, optimizer, model fingerprint.

The first declaration of a job wins and every later one must be equal: updates of different models
or of different optimizers must not be mixed. A checkpoint shard contains the declaration as JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from edl.api.errors import BadInputError
from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.core.strict_json import decode_json
from edl.numerics import initializers
from edl.numerics.optimizer_spec import OptimizerSpec

# --------------------------------------------------------------------------------------------------
# Limits of a table, checked by the worker that declares it and by the parameter server.


MAX_TABLE_ROWS = 2**31 - 1
"""Maximum rows of a bounded table: Keras' own tables cannot be indexed with larger ids."""
MAX_ROW_VALUES = 1 << 16
"""Maximum values of a row. With three slot variables such a row takes a megabyte."""


def check_table_shape(table: TableSpec) -> None:
    """Refuse a table that no parameter server can hold.

    Raises:
        BadInputError: the table has too many rows, a row has too many values, or the initializer is
            unknown.
    """
    if not (0 <= table.rows <= MAX_TABLE_ROWS and 0 < table.dim <= MAX_ROW_VALUES):
        raise BadInputError(
            f"table '{table.name}' is {table.rows} x {table.dim}; a table must have 1 to {MAX_TABLE_ROWS} rows (0: no "
            f"bound) of 1 to {MAX_ROW_VALUES} values",
            hint="for more ids than that, use edl.layers.Embedding without input_dim",
        )
    try:
        initializers.check_initializer(table.initializer)
    except BadInputError as error:
        raise BadInputError(f"{table.described}: {error.message}", hint=error.hint) from error


MAX_VARIABLE_VALUES = 1 << 32
"""Maximum values of one dense variable: 16 GiB, the limit of a declaration."""
MAX_VARIABLE_RANK = 32
"""Maximum number of dimensions: also the limit of NumPy 1."""


@dataclass(frozen=True)
class ModelDeclaration:
    """The complete declaration.

    Attributes:
        variables: the variables that this PS owns, in the order of the slab: trained variables
            before statistics.
        tables: all served tables, in the order in which their rows follow the slab in a push.
        optimizer: updates the trained variables and the rows.
        fingerprint: fingerprint of the whole model, equal on all PS.

    Raises:
        BadInputError: no PS can hold a variable or table, a name occurs twice, or a statistic is
            declared before a trained variable.
    """

    variables: tuple[VariableSpec, ...]
    tables: tuple[TableSpec, ...]
    optimizer: OptimizerSpec
    fingerprint: str

    def __post_init__(self) -> None:
        for variable in self.variables:
            _check_shape(variable)
        for table in self.tables:
            check_table_shape(table)
        for names in ([v.name for v in self.variables], [t.name for t in self.tables]):
            if len(set(names)) != len(names):
                raise BadInputError(f"a name is declared twice: {sorted(names)}")
        # The optimizer updates the leading part of the slab; statistics follow it (trained_size).
        for before, after in pairwise(self.variables):
            if before.statistic and not after.statistic:
                raise BadInputError(
                    f"statistic '{before.name}' is declared before the trained variable '{after.name}'; statistics "
                    "must come last"
                )

    @cached_property
    def flat_size(self) -> int:
        """Elements of the slab."""
        return sum(variable.size for variable in self.variables)

    @cached_property
    def trained_size(self) -> int:
        """The number of leading elements of the flat buffer that the optimizer updates."""
        return sum(variable.size for variable in self.variables if not variable.statistic)

    def variable_slices(self) -> Iterator[tuple[VariableSpec, slice]]:
        """Every dense variable with its slice of the slab."""
        start = 0
        for variable in self.variables:
            yield variable, slice(start, start + variable.size)
            start += variable.size

    def get_table(self, name: str) -> TableSpec:
        """The table with this name. Raises BadInputError if there is none."""
        table = self._tables_by_name.get(name)
        if table is None:
            raise BadInputError(f"no table '{name}' is declared", hint=f"declared: {[t.name for t in self.tables]}")
        return table

    @cached_property
    def _tables_by_name(self) -> Mapping[str, TableSpec]:
        return {table.name: table for table in self.tables}

    def describe_difference(self, other: ModelDeclaration) -> str | None:
        """How ``other`` differs from this declaration, or None. The order of variables matters."""
        if self.optimizer != other.optimizer:
            return (
                f"the worker's optimizer is {_describe_optimizer(other.optimizer)}, the parameter server's is"
                f" {_describe_optimizer(self.optimizer)}"
            )
        if (self.fingerprint, set(self.variables), self.tables) != (
            other.fingerprint,
            set(other.variables),
            other.tables,
        ):
            return "the worker's model differs from that of the parameter server: " + (
                _first_difference("table", _comparable_fields(other.tables), _comparable_fields(self.tables))
                or _first_difference(
                    "variable", _comparable_fields(other.variables), _comparable_fields(self.variables)
                )
                or f"its fingerprint is {other.fingerprint}, that of the parameter server {self.fingerprint}"
            )
        if self.variables == other.variables:
            return None
        return "the worker's variables are in a different order than those of the parameter server"

    def equals_ignoring_order(self, other: ModelDeclaration) -> bool:
        """Whether the declarations are equal except for the order of the dense variables."""
        return (
            set(self.variables) == set(other.variables)
            and self.describe_difference(replace(other, variables=self.variables)) is None
        )

    def to_json(self) -> str:
        """A JSON text that ``from_json`` accepts."""
        return json.dumps(
            {
                "dense": [variable.to_json() for variable in self.variables],
                "tables": [table.to_json() for table in self.tables],
                "optimizer": self.optimizer.to_json(),
                "fingerprint": self.fingerprint,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> ModelDeclaration:
        """Parse the declaration of a checkpoint."""
        value = decode_json(text)
        return cls(
            tuple(VariableSpec.from_json(fields) for fields in value["dense"]),
            tuple(TableSpec.from_json(fields) for fields in value["tables"]),
            OptimizerSpec.from_json(value["optimizer"]),
            value["fingerprint"],
        )


def _check_shape(variable: VariableSpec) -> None:
    # A length of 0 must not hide a huge one: [0, 2^62] has no values, but no such array can be
    # created.
    values = math.prod(max(1, length) for length in variable.shape[:MAX_VARIABLE_RANK])
    if (
        len(variable.shape) > MAX_VARIABLE_RANK
        or any(length < 0 for length in variable.shape)
        or values > MAX_VARIABLE_VALUES
    ):
        raise BadInputError(
            f"variable '{variable.name}' has the shape {list(variable.shape[:MAX_VARIABLE_RANK])}",
            hint=f"a variable has at most {MAX_VARIABLE_RANK} dimensions and {MAX_VARIABLE_VALUES} values",
        )


def _comparable_fields(items: Sequence[VariableSpec | TableSpec]) -> Mapping[str, tuple[object, ...]]:
    """By name, the fields that must be equal in a compatible declaration.

    The shape comes first, because error messages describe a variable or table by its shape.
    """
    return {
        one.name: (
            (list(one.shape), one.statistic)
            if isinstance(one, VariableSpec)
            else ([one.rows, one.dim], dict(one.initializer), one.seed)
        )
        for one in items
    }


def _first_difference(
    kind: str, other_fields: Mapping[str, tuple[object, ...]], own_fields: Mapping[str, tuple[object, ...]]
) -> str | None:
    """The first variable or table that is missing or different in one of two models."""
    for name in sorted(other_fields.keys() | own_fields.keys()):
        if name not in own_fields:
            return f"{kind} '{name}' {other_fields[name][0]} is not on the parameter server"
        if name not in other_fields:
            return f"{kind} '{name}' {own_fields[name][0]} is only on the parameter server"
        if other_fields[name] != own_fields[name]:
            position = next(
                i for i, pair in enumerate(zip(other_fields[name], own_fields[name], strict=True)) if pair[0] != pair[1]
            )
            return f"{kind} '{name}' is {other_fields[name][position]}, not {own_fields[name][position]}"
    return None


def _describe_optimizer(optimizer: OptimizerSpec) -> str:
    return f"{optimizer.name} {dict(optimizer.hyperparameters)}"
