"""``edl checkpoint``: list, inspect and export the checkpoints of a run."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edl.api.errors import BadInputError
from edl.api.exit_codes import BAD_INPUT_EXIT
from edl.cli.train_extra import needing_train_extra
from edl.ops.checkpoint_lookup import (
    checkpoint_table,
    choose_checkpoint,
    find_checkpoints,
    list_checkpoints,
    newest_usable,
    parse_created,
    storage_errors_as_bad_input,
)
from edl.reporting.text_table import align_columns, wrap_labelled
from edl.reporting.unit_formats import format_age, format_bytes, pluralize
from edl.storage.checkpoint_contents import CheckpointContents, StoredTable, read_checkpoint_contents
from edl.storage.checkpoint_manifest import CheckpointManifest

if TYPE_CHECKING:
    from edl.storage.checkpoint_export import ArrayStatistics
    from edl.storage.checkpoint_manifest import SkippedCheckpoint


_STATISTICS_COLUMNS = ("MIN", "MEAN", "MAX", "NAN")


@dataclass(frozen=True, slots=True)
class CheckpointInspection:
    """A checkpoint and the statistics of its values.

    Attributes:
        manifest: the checkpoint's manifest.
        contents: the contents of its shards.
        variable_statistics: the statistics of each variable, by name.
        table_statistics: the statistics over all rows of each table, by name.
    """

    manifest: CheckpointManifest
    contents: CheckpointContents
    variable_statistics: Mapping[str, ArrayStatistics]
    table_statistics: Mapping[str, ArrayStatistics]


def inspect_checkpoint(
    manifest: CheckpointManifest, contents: CheckpointContents, on_read: Callable[[int], None]
) -> CheckpointInspection:
    """Read all values and compute their statistics. Needs NumPy.

    Raises:
        StorageError: a file does not exist any more.
    """
    from edl.storage.checkpoint_export import compute_statistics

    variables = {each.spec.name: compute_statistics([each.values], on_read) for each in contents.variables}
    tables = {each.name: compute_statistics([part.values for part in each.shards], on_read) for each in contents.tables}
    return CheckpointInspection(manifest, contents, variables, tables)


def bytes_to_read(contents: CheckpointContents) -> int:
    """Number of bytes that ``inspect_checkpoint`` reads."""
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
                **_statistics_json(inspection.variable_statistics[each.spec.name]),
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
                **_statistics_json(inspection.table_statistics[each.name]),
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
        yield ""
        yield from align_columns([["OTHER ARRAYS", "COUNT", "WHAT THEY ARE"], *_other_rows(inspection)], right=(1,))


_OTHER_ARRAYS = {
    "slot": "variables of the Keras optimizer: its slot variables, learning rate and number of updates",
    "state": "states of random generators, such as that of Dropout, and variables that are not float32",
    "carried": "what the model hands on to the next minibatch: states of stateful layers, tf.Variables of train_step()",
    "best": "the best weights so far, which EarlyStopping(restore_best_weights=True) keeps",
}
"""What arrays are that belong to no variable and no table, by the first part of their names."""


def _other_rows(inspection: CheckpointInspection) -> Iterator[list[str]]:
    counts = Counter(each.name.partition("/")[0] for each in inspection.contents.other_arrays)
    for kind, count in sorted(counts.items()):
        yield [f"{kind}/…", f"{count:,}", _OTHER_ARRAYS.get(kind, "of another version of EDL")]


def _fact_rows(inspection: CheckpointInspection, now: float) -> Iterator[tuple[str, str]]:
    manifest = inspection.manifest
    created_at = parse_created(manifest.created)
    ago = "" if created_at is None else f" ({format_age(now - created_at)} ago)"
    created = manifest.created.replace("T", " ").replace("+00:00", " UTC")
    yield "taken", f"{created or 'at an unknown time'}{ago}"
    size = format_bytes(sum(shard.size for shard in manifest.shards))
    yield "files", f"{pluralize(len(manifest.shards), 'shard')}, {size}, intact"
    try:
        yield "position", ", ".join(_position_parts(manifest))
    except (ValueError, TypeError):  # the checksum is right, but no master wrote this ledger
        yield "position", f"unknown: {manifest.ledger}"
    yield "optimizer", _optimizer_text(inspection.contents)


def _position_parts(manifest: CheckpointManifest) -> Iterator[str]:
    ledger = manifest.ledger if isinstance(manifest.ledger, dict) else {}
    yield f"step {manifest.step:,}"
    records = ledger.get("done_records", ledger.get("records_done"))
    if records is not None:
        yield f"{records:,} records done"
    left = sum(end - start for _, _, start, end in ledger.get("returned", ()))
    if "epoch" in ledger:
        position = left or ledger.get("index")
        yield f"in epoch {ledger['epoch'] + 1}" if position else f"{pluralize(ledger['epoch'], 'epoch')} done"
    if left:
        yield f"{left:,} records returned, to be trained again"
    if ledger.get("quarantined"):
        yield f"{pluralize(len(ledger['quarantined']), 'range')} quarantined"


def _optimizer_text(contents: CheckpointContents) -> str:
    if contents.optimizer is None:
        return "Keras' own, as variables (strategies Local and AllReduce)"
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
            [
                each.spec.name,
                shape,
                each.values.dtype,
                kind,
                *_statistics_cells(inspection.variable_statistics[each.spec.name]),
            ]
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
            *_statistics_cells(inspection.table_statistics[each.name]),
        ]


def _vocabulary_text(table: StoredTable) -> str:
    return "-" if table.spec is None else f"{table.spec.rows:,}"


def _statistics_cells(statistics: ArrayStatistics) -> list[str]:
    values = [
        "-" if value is None else f"{value:.4g}" for value in (statistics.minimum, statistics.mean, statistics.maximum)
    ]
    return [
        *values,
        f"{statistics.nan_count:,}"
        + (f" and {statistics.infinite_count:,} infinite" if statistics.infinite_count else ""),
    ]


def _statistics_json(statistics: ArrayStatistics) -> dict[str, Any]:
    return {
        "min": statistics.minimum,
        "mean": statistics.mean,
        "max": statistics.maximum,
        "nan": statistics.nan_count,
        "infinite": statistics.infinite_count,
    }


app = typer.Typer(
    help="List, inspect and export the checkpoints of a run.",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
)

RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A job of ./.edl (mnist: its newest run; mnist/r3), a job file, or the path of a run, of its checkpoints "
        "or of one.",
        show_default=False,
    ),
]
NumberOption = Annotated[
    int | None,
    typer.Option(
        "--checkpoint", "-c", metavar="N", min=0, help="Number of the checkpoint; the newest intact one by default."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_PIPE_WIDTH = 10_000
"""Line width in characters when the output is not a terminal: lines are then not wrapped."""
_EXPORT_SUFFIXES = (".npz", ".safetensors")


@app.command()
def ls(
    run: RunArgument,
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte and verify the checksums.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the checkpoints of a run, and which of them are usable.

    The list has step, done records, size, age and state of each, and marks the newest usable one.

    Exit codes: 0 done, 2 bad input, or no checkpoint can be used.
    """
    location = find_checkpoints(run)
    with storage_errors_as_bad_input():
        checkpoints = list_checkpoints(location.directory, read_all_bytes=verify)
    best = newest_usable(checkpoints)
    if as_json:
        print(json.dumps([{**each.to_json(), "newest_usable": each is best} for each in checkpoints]))
    elif checkpoints:
        print(f"{location.name[0].upper()}{location.name[1:]}, {location.directory}\n")
        print("\n".join(checkpoint_table(checkpoints, time.time())))
        if not verify:
            print("\nOnly manifests and sizes were checked; --verify reads every byte.")
    else:
        print(f"{location.name} has no checkpoint yet: {location.directory}")
    if checkpoints and best is None:
        raise typer.Exit(BAD_INPUT_EXIT)


@app.command()
def inspect(run: RunArgument, number: NumberOption = None, as_json: JsonOption = False) -> None:
    """Show the content of a checkpoint.

    Variables and tables with the range of their values, optimizer, position in the data. All checksums are verified
    first.

    Exit codes: 0 done, 2 bad input or a damaged checkpoint.
    """
    location = find_checkpoints(run)
    manifest, contents = _open_checkpoint(run, number)
    with (
        needing_train_extra("reading values needs"),
        storage_errors_as_bad_input(),
        _byte_progress_bar("Reading", bytes_to_read(contents)) as advance,
    ):
        inspection = inspect_checkpoint(manifest, contents, advance)
    if as_json:
        print(json.dumps(inspection_json(inspection)))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH
        print("\n".join(inspection_lines(inspection, location.name, width)))


@app.command()
def export(
    run: RunArgument,
    output: Annotated[Path, typer.Argument(metavar="FILE", help="A .npz or a .safetensors file.", show_default=False)],
    number: NumberOption = None,
    slots: Annotated[bool, typer.Option("--slots", help="Include the optimizer's slot variables.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a checkpoint as one file for other programs.

    The file combines the shards of all parameter servers. A dense variable has its own name; a table T is T/ids
    (ascending) and T/rows, the rows that were ever trained. With --slots there are NAME/slot/SLOT too.

    Exit codes: 0 done, 1 it cannot be written, 2 bad input or a damaged checkpoint.
    """
    _check_output_file(output, force=force)
    manifest, contents = _open_checkpoint(run, number)
    with needing_train_extra("reading values needs"):
        from edl.storage import checkpoint_export

        with storage_errors_as_bad_input():
            columns = checkpoint_export.export_columns(contents, include_slots=slots)
        strings = {
            "checkpoint": str(manifest.cut),
            "version": str(manifest.version),
            **checkpoint_export.export_metadata(contents),
        }
        with _byte_progress_bar("Writing", sum(column.nbytes for column in columns)) as advance:
            checkpoint_export.write_export(output, columns, strings, advance)
    many = pluralize(len(contents.variables), "variable")
    if contents.tables:
        rows = pluralize(sum(table.row_count for table in contents.tables), "row")
        many += f", {pluralize(len(contents.tables), 'table')} with {rows}"
    print(f"Checkpoint {manifest.cut}: {many} in {output}")


def _open_checkpoint(run: str, number: int | None) -> tuple[CheckpointManifest, CheckpointContents]:
    """The selected intact checkpoint and its contents. Prints which newer ones cannot be used."""
    skipped: list[SkippedCheckpoint] = []
    manifest = choose_checkpoint(find_checkpoints(run), number, skipped)
    for each in skipped:
        print(f"checkpoint {each.cut} is skipped: {each.reason}", file=sys.stderr)
    assert manifest.directory is not None
    directory = manifest.directory
    with storage_errors_as_bad_input():
        return manifest, read_checkpoint_contents(directory / shard.file for shard in manifest.shards)


def _check_output_file(output: Path, *, force: bool) -> None:
    if output.suffix not in _EXPORT_SUFFIXES:
        raise BadInputError(
            "is neither a .npz nor a .safetensors file", where=str(output), hint="The suffix selects the format."
        )
    if not output.absolute().parent.is_dir():
        raise BadInputError("there is no such folder", where=str(output.absolute().parent))
    if output.is_dir() or (output.exists() and not force):
        raise BadInputError("already exists", where=str(output), hint="Choose another file, or use --force.")


@contextmanager
def _byte_progress_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, if reading or writing takes seconds."""
    # Below 256 MiB it does not take seconds.
    if not sys.stderr.isatty() or total < 1 << 28:
        yield lambda _: None
        return
    from edl.reporting.progress_bars import byte_progress
    from edl.reporting.rich_console import make_console

    with byte_progress(make_console(sys.stderr)) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
