"""What is in a checkpoint: read from its shards, and shown to people and to programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edl.ops.checkpoint_lookup import parse_created
from edl.reporting.text_table import align_columns, wrap_labelled
from edl.reporting.unit_formats import format_age, format_bytes
from edl.storage.checkpoint_contents import CheckpointContents, StoredTable
from edl.storage.checkpoint_manifest import CheckpointManifest

if TYPE_CHECKING:
    from edl.storage.checkpoint_export import ArrayStatistics

_STATISTICS_COLUMNS = ("MIN", "MEAN", "MAX", "NAN")


@dataclass(frozen=True, slots=True)
class CheckpointInspection:
    """A checkpoint and what its values are like.

    Attributes:
        manifest: of the checkpoint.
        contents: of its shards.
        variables: the statistics of each variable, by name.
        tables: those of all rows of each table, by name.
    """

    manifest: CheckpointManifest
    contents: CheckpointContents
    variables: Mapping[str, ArrayStatistics]
    tables: Mapping[str, ArrayStatistics]


def inspect_checkpoint(
    manifest: CheckpointManifest, contents: CheckpointContents, on_read: Callable[[int], None]
) -> CheckpointInspection:
    """Look at all values, which takes NumPy.

    Raises:
        StorageError: a file is gone.
    """
    from edl.storage.checkpoint_export import compute_statistics

    variables = {each.spec.name: compute_statistics([each.values], on_read) for each in contents.variables}
    tables = {each.name: compute_statistics([part.values for part in each.shards], on_read) for each in contents.tables}
    return CheckpointInspection(manifest, contents, variables, tables)


def bytes_to_read(contents: CheckpointContents) -> int:
    """Bytes that ``inspect_checkpoint`` looks at."""
    parts = [part.values for each in contents.tables for part in each.shards]
    return sum(array.nbytes for array in (*(each.values for each in contents.variables), *parts))


def inspection_json(inspection: CheckpointInspection) -> dict[str, Any]:
    """For programs."""
    manifest, contents = inspection.manifest, inspection.contents
    return {
        "checkpoint": manifest.cut,
        "path": str(manifest.directory),
        "created": manifest.created,
        "version": manifest.version,
        "shards": [shard.file for shard in manifest.shards],
        "size": sum(shard.size for shard in manifest.shards),
        "optimizer": contents.optimizer,
        "ledger": manifest.ledger,
        "variables": [
            {
                "name": each.spec.name,
                "shape": list(each.spec.shape),
                "dtype": each.values.dtype,
                "statistic": each.spec.statistic,
                "slots": sorted(each.slots),
                **_statistics_json(inspection.variables[each.spec.name]),
            }
            for each in contents.variables
        ],
        "tables": [
            {
                "name": each.name,
                "rows": each.row_count,
                "vocabulary": None if each.spec is None else each.spec.rows,
                "width": each.width,
                "dtype": each.shards[0].values.dtype,
                "slots": list(each.slots),
                "initializer": each.described_initializer,
                **_statistics_json(inspection.tables[each.name]),
            }
            for each in contents.tables
        ],
        "others": [{"name": a.name, "shape": list(a.shape), "dtype": a.dtype} for a in contents.other_arrays],
    }


def inspection_lines(inspection: CheckpointInspection, run: str, width: int) -> Iterator[str]:
    """For people; facts are within ``width`` characters, tables may be wider."""
    yield f"Checkpoint {inspection.manifest.cut} of {run}, {inspection.manifest.directory}"
    for name, text in _fact_rows(inspection, time.time()):
        yield from wrap_labelled(name, text, width)
    if inspection.contents.variables:
        yield ""
        yield from _variable_lines(inspection)
    if inspection.contents.tables:
        yield ""
        yield from align_columns(
            [["TABLE", "ROWS", "OF", "WIDTH", "DTYPE", "SLOTS", *_STATISTICS_COLUMNS], *_table_rows(inspection)],
            right=(1, 2, 3, *range(6, 10)),
        )
    if inspection.contents.other_arrays:
        many = len(inspection.contents.other_arrays)
        yield f"\nand {many} arrays of strategy Local: its optimizer's variables (slot/…), random generators (state/…)."


def pluralize(count: int, noun: str) -> str:
    """``1 row``, ``2 rows``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _fact_rows(inspection: CheckpointInspection, now: float) -> Iterator[tuple[str, str]]:
    manifest = inspection.manifest
    taken = parse_created(manifest.created)
    ago = "" if taken is None else f" ({format_age(now - taken)} ago)"
    created = manifest.created.replace("T", " ").replace("+00:00", " UTC")
    yield "taken", f"{created or 'at an unknown time'}{ago}"
    size = format_bytes(sum(shard.size for shard in manifest.shards))
    yield "files", f"{pluralize(len(manifest.shards), 'shard')}, {size}, intact"
    try:
        yield "position", ", ".join(_position_parts(manifest))
    except (ValueError, TypeError):  # right checksum, but no ledger of a master
        yield "position", f"unknown: {manifest.ledger}"
    yield "optimizer", _optimizer_text(inspection.contents)


def _position_parts(manifest: CheckpointManifest) -> Iterator[str]:
    ledger = manifest.ledger if isinstance(manifest.ledger, dict) else {}
    yield f"step {ledger.get('done_steps', manifest.version):,}"
    records = ledger.get("done_records", ledger.get("records_done"))
    if records is not None:
        yield f"{records:,} records done"
    left = sum(end - start for _, _, start, end in ledger.get("returned", ()))
    if "epoch" in ledger:
        within = left or ledger.get("index")
        yield f"in epoch {ledger['epoch'] + 1}" if within else f"{pluralize(ledger['epoch'], 'epoch')} done"
    if left:
        yield f"{left:,} records returned, to be trained again"
    if ledger.get("quarantined"):
        yield f"{pluralize(len(ledger['quarantined']), 'range')} quarantined"


def _optimizer_text(contents: CheckpointContents) -> str:
    if contents.optimizer is None:
        return "unknown: a Keras optimizer (strategy Local)"
    hyperparameters = dict(contents.optimizer.get("hyperparameters") or {})
    settings = [
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in hyperparameters.items()
    ]
    slots = sorted(
        {name for each in contents.variables for name in each.slots}.union(*(t.slots for t in contents.tables))
    )
    text = f"{contents.optimizer.get('name')}" + (f" ({', '.join(settings)})" if settings else "")
    return f"{text}, slots {', '.join(slots)}" if slots else f"{text}, no slots"


def _variable_lines(inspection: CheckpointInspection) -> Sequence[str]:
    rows = []
    for each in inspection.contents.variables:
        shape = "x".join(map(str, each.spec.shape)) or "scalar"
        kind = "statistic" if each.spec.statistic else "trained"
        rows.append(
            [each.spec.name, shape, each.values.dtype, kind, *_statistics_cells(inspection.variables[each.spec.name])]
        )
    return align_columns([["VARIABLE", "SHAPE", "DTYPE", "KIND", *_STATISTICS_COLUMNS], *rows], right=range(4, 8))


def _table_rows(inspection: CheckpointInspection) -> Iterator[list[str]]:
    for each in inspection.contents.tables:
        kind = [str(each.width), each.shards[0].values.dtype, ", ".join(each.slots) or "-"]
        yield [
            each.name,
            f"{each.row_count:,}",
            _vocabulary_text(each),
            *kind,
            *_statistics_cells(inspection.tables[each.name]),
        ]


def _vocabulary_text(table: StoredTable) -> str:
    return "-" if table.spec is None else f"{table.spec.rows:,}"


def _statistics_cells(found: ArrayStatistics) -> list[str]:
    values = ["-" if value is None else f"{value:.4g}" for value in (found.minimum, found.mean, found.maximum)]
    return [
        *values,
        f"{found.nan_count:,}" + (f" and {found.infinite_count:,} infinite" if found.infinite_count else ""),
    ]


def _statistics_json(found: ArrayStatistics) -> dict[str, Any]:
    return {
        "min": found.minimum,
        "mean": found.mean,
        "max": found.maximum,
        "nan": found.nan_count,
        "infinite": found.infinite_count,
    }
