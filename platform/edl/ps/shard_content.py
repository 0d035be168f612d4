"""A cut as the shard of a checkpoint, a piece at a time.

Arrays are named ``dense/<variable>``, ``slot/<slot>/<variable>``, ``rows/<table>/ids``, ``rows/<table>/values`` and
``rows/<table>/slot/<slot>``; variables have their own shapes, so that a shard can be read without EDL. Where rows are
dropped when they are not used, ``rows/<table>/seen`` says which step named each last. Beside them are the strings
``cut``, ``version``, ``applied`` (JSON, lease to through) and ``declaration`` (JSON).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from edl.numerics.array_types import Floats
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.parameter_snapshot import ParameterSnapshot, TableSnapshot
from edl.ps.shard_restore import CutSnapshot


@dataclass(frozen=True, slots=True)
class ShardContent:
    """What the file of a cut is written from.

    Attributes:
        array_shapes: name, dtype and shape of each, in the file's order.
        parts: name and the next values of that array, in the order of the rows; for one use, each before the next one
            is asked for. Variables are views of the snapshot, rows come in pieces.
        meta: strings beside them.
    """

    array_shapes: Sequence[tuple[str, str, tuple[int, ...]]]
    parts: Iterator[tuple[str, Any]]
    meta: Mapping[str, str]


def make_shard_content(cut: CutSnapshot) -> ShardContent:
    """This PS's shard."""
    snapshot = cut.snapshot
    dense = dict(_dense_arrays(snapshot))
    declared = [(name, array.dtype.name, array.shape) for name, array in dense.items()]
    for table, rows in snapshot.tables.items():
        declared += _row_array_shapes(snapshot.declaration, table, rows)
    meta = {
        "cut": str(cut.number),
        "version": str(cut.version),
        "applied": json.dumps(dict(cut.applied)),
        "declaration": snapshot.declaration.to_json(),
    }
    return ShardContent(declared, chain(dense.items(), _row_chunks(snapshot)), meta)


def _dense_arrays(snapshot: ParameterSnapshot) -> Iterator[tuple[str, Floats]]:
    for variable, place in snapshot.declaration.places():
        yield f"dense/{variable.name}", snapshot.dense[place].reshape(variable.shape)
        if not variable.statistic:
            for slot, values in snapshot.slots.items():
                yield f"slot/{slot}/{variable.name}", values[place].reshape(variable.shape)


def _row_array_shapes(
    declaration: ModelDeclaration, table: str, rows: TableSnapshot
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    shape = (len(rows), declaration.table(table).dim)
    yield f"rows/{table}/ids", "int64", shape[:1]
    if rows.has_last_steps:
        yield f"rows/{table}/seen", "uint32", shape[:1]
    yield f"rows/{table}/values", "float32", shape
    for slot in declaration.optimizer.slots:
        yield f"rows/{table}/slot/{slot}", "float32", shape


def _row_chunks(snapshot: ParameterSnapshot) -> Iterator[tuple[str, Any]]:
    for table, rows in snapshot.tables.items():
        for piece in rows.iter_chunks():
            yield f"rows/{table}/ids", piece.ids
            if piece.seen is not None:
                yield f"rows/{table}/seen", piece.seen
            yield f"rows/{table}/values", piece.values
            for slot, values in piece.slots.items():
                yield f"rows/{table}/slot/{slot}", values
