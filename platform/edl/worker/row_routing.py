"""Which rows go to which parameter server, and where in a batch they belong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from edl.keras.flat_buffer import Floats, Ids
from edl.numerics import aligned_memory
from edl.transport import edl_pb2 as pb

_ALL_ROWS = slice(None)


@dataclass(frozen=True, slots=True)
class RowRoute:
    """Some rows of a table that one PS owns: which of a batch, and how many. All of them are a slice: no copy."""

    index: slice | npt.NDArray[np.int64]
    count: int


RoutesByTable: TypeAlias = Mapping[str, RowRoute]
"""By table; of one PS."""


def route_rows(
    ids: Mapping[str, Ids], parts: Sequence[int], owners: Callable[[Ids], Ids]
) -> dict[int, dict[str, RowRoute]]:
    """The routes to every PS that owns one of the ids.

    Args:
        ids: by table.
        parts: all PS.
        owners: the PS of each id.
    """
    if len(parts) == 1:
        whole = {table: RowRoute(_ALL_ROWS, len(wanted)) for table, wanted in ids.items() if len(wanted)}
        return {parts[0]: whole} if whole else {}
    found: dict[int, dict[str, RowRoute]] = {}
    for table, wanted in ids.items():
        owner = owners(wanted)
        for part in parts:
            index = np.flatnonzero(owner == part)
            if len(index):
                found.setdefault(part, {})[table] = RowRoute(index, len(index))
    return found


def table_headers(where: RoutesByTable) -> list[pb.TableRows]:
    """What a frame says of the rows in it."""
    return [pb.TableRows(name=table, count=route.count) for table, route in where.items()]


def allocate_rows(where: RoutesByTable, dims: Mapping[str, int]) -> Floats:
    """Memory for the rows of one PS, table after table."""
    return aligned_memory.allocate_aligned(sum(route.count * dims[table] for table, route in where.items()))


def as_wire_buffer(array: Floats | Ids) -> memoryview:
    """An array as it goes on the wire; copied if it is not contiguous."""
    return np.ascontiguousarray(array).data


def scatter_rows(values: dict[str, Floats], where: RoutesByTable, dims: Mapping[str, int], flat: Floats) -> None:
    """Put the rows that one PS sent where they belong; a whole table's are taken as they are.

    Args:
        values: by table, ``[n, dim]``; changed.
        where: what ``flat`` holds.
        dims: length of a row by table.
        flat: rows, table after table; kept.
    """
    at = 0
    for table, route in where.items():
        size = route.count * dims[table]
        rows = flat[at : at + size].reshape(route.count, dims[table])
        if isinstance(route.index, slice):
            values[table] = rows
        else:
            values[table][route.index] = rows
        at += size
