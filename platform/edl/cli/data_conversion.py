"""``edl data convert``: a data set in another format."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from edl.cli.data_statistics import warn_of_doubtful_header
from edl.cli.train_extra import needing_train_extra
from edl.reporting.progress_bars import count_progress
from edl.reporting.rich_console import make_console
from edl.reporting.unit_formats import format_bytes

if TYPE_CHECKING:
    from edl.data.conversion import ConversionPlan, ConvertedFile

TargetFormat: TypeAlias = Literal["parquet", "csv", "jsonl", "npz", "recordio", "tfrecord"]
_MOST_PROCESSES = 8


def convert(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Files or directories to read.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIRECTORY", help="Directory to write into.", show_default=False)
    ],
    target: Annotated[TargetFormat, typer.Option("--to", help="Format to write.", show_default=False)],
    file_format: Annotated[
        str | None,
        typer.Option("--format", help="Format to read, as in data.reader; detected by default.", show_default=False),
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option("--columns", metavar="A,B", help="Only these columns.", show_default=False)
    ] = None,
    separator: Annotated[str | None, typer.Option("--sep", help="Separator of CSV cells.", show_default=False)] = None,
    header: Annotated[bool, typer.Option("--header/--no-header", help="Whether CSV files name their columns.")] = True,
    per_file: Annotated[
        int, typer.Option("--records-per-file", help="Maximum number of records per file.", min=1)
    ] = 131_072,
    processes: Annotated[
        int | None,
        typer.Option("--processes", help="Processes that share the files; as many as processors by default.", min=1),
    ] = None,
    max_corrupt: Annotated[
        int, typer.Option("--max-corrupt", help="Corrupt records that are left out and counted.", min=0)
    ] = 0,
    plan_only: Annotated[bool, typer.Option("--plan", help="Print what would be written, and write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Convert a data set into another format.

    edl data convert PATH... --to parquet --out DIRECTORY. The plan is printed first. Each file is written, read again
    and counted; the directory appears when all files are complete, and nothing is overwritten.
    """
    options: dict[str, object] = {"format": file_format, "sep": separator}
    options |= {"columns": ",".join(columns).split(",") if columns else None, "header": None if header else False}
    given = {name: value for name, value in options.items() if value is not None}
    with needing_train_extra("a conversion needs"):
        from edl.data import conversion
    plan = conversion.plan_conversion(paths, out, target, given, records_per_file=per_file, max_corrupt=max_corrupt)
    console = make_console(sys.stderr)
    console.print(_describe_plan(plan), highlight=False, soft_wrap=True, markup=False)
    if plan.origin == "csv" and plan.schema is not None and header:
        warn_of_doubtful_header(plan.schema.names)
    if plan_only:
        if as_json:
            print(json.dumps({"records": plan.records, "files": [file.name for file in plan.files]}))
        return
    with count_progress(console, "Converting") as progress:
        task = progress.add_task("", total=plan.records)
        chosen = processes or min(_MOST_PROCESSES, os.cpu_count() or 1)
        done = conversion.convert(plan, chosen, lambda file: progress.advance(task, file.records_in))
    _print_result(plan, done, as_json=as_json)


def _describe_plan(plan: ConversionPlan) -> str:
    count = len(plan.files)
    lines = [
        f"{plan.records:,} records of {plan.origin} become {count:,} file{'' if count == 1 else 's'} of {plan.target} "
        f"in {plan.directory}"
    ]
    if plan.schema is None:
        return f"{lines[0]}; records stay the same bytes"
    return "\n".join([*lines, *(f"  {field.name}: {field.type}" for field in plan.schema)])


def _print_result(plan: ConversionPlan, done: list[ConvertedFile], *, as_json: bool) -> None:
    read, written = sum(file.records_in for file in done), sum(file.records_out for file in done)
    corrupt, size = sum(file.corrupt for file in done), sum(file.bytes for file in done)
    if as_json:
        result = {"records_in": read, "records_out": written, "corrupt_records": corrupt, "bytes": size}
        print(json.dumps({**result, "directory": str(plan.directory), "files": [file.name for file in done]}))
        return
    corrupt_text = f", {corrupt:,} corrupt left out" if corrupt else ""
    place = f"{plan.directory}, {format_bytes(size)}"
    print(f"{read:,} records read, {written:,} written and read again{corrupt_text}: {place}")
