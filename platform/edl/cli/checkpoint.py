"""``edl checkpoint``: which checkpoints a run has, what is in them, and their values for other programs."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edl.api.errors import BadInputError
from edl.ops.checkpoint_lookup import choose_checkpoint, find_checkpoints, storage_errors_as_bad_input

if TYPE_CHECKING:
    from edl.storage.checkpoint_contents import CheckpointContents
    from edl.storage.checkpoint_manifest import CheckpointManifest, SkippedCheckpoint

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
"""Characters of a line that no terminal breaks."""
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
    from edl.ops.checkpoint_lookup import checkpoint_table, list_checkpoints, newest_usable

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
        print(f"{location.name} has no checkpoint yet, {location.directory}")
    if checkpoints and best is None:
        raise typer.Exit(2)


@app.command()
def inspect(run: RunArgument, number: NumberOption = None, as_json: JsonOption = False) -> None:
    """Show the content of a checkpoint.

    Variables and tables with the range of their values, optimizer, position in the data. All checksums are verified
    first.

    Exit codes: 0 done, 2 bad input or a damaged checkpoint.
    """
    location = find_checkpoints(run)
    manifest, contents = _open_checkpoint(run, number)
    with _numpy_required(), storage_errors_as_bad_input():
        from edl.cli.checkpoint_view import bytes_to_read, inspect_checkpoint, inspection_json, inspection_lines

        with _byte_progress_bar("Reading", bytes_to_read(contents)) as advance:
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
    with _numpy_required():
        from edl.cli.checkpoint_view import pluralize
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
    """The checkpoint that is wanted, intact, and what it holds; newer ones that cannot be used are told of."""
    from edl.storage.checkpoint_contents import read_checkpoint_contents

    skipped: list[SkippedCheckpoint] = []
    manifest = choose_checkpoint(find_checkpoints(run), number, skipped)
    for each in skipped:
        print(f"checkpoint {each.cut} is left out: {each.reason}", file=sys.stderr)
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
        raise BadInputError("already exists", where=str(output), hint="Name another file, or use --force.")


@contextmanager
def _numpy_required() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        hint = "pip install 'edl-platform[train]'"
        raise BadInputError(f"reading values needs the package {error.name}", hint=hint) from error


@contextmanager
def _byte_progress_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal, for what takes seconds."""
    if not sys.stderr.isatty() or total < 1 << 28:
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from edl.reporting.rich_console import make_console

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=make_console(sys.stderr), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.advance(task, count)
