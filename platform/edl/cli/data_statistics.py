"""``edl data stats`` and ``edl data schema``: what is in the columns of a table."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from edl.api.errors import BadInputError
from edl.cli.train_extra import needing_train_extra
from edl.reporting.rich_console import make_console

if TYPE_CHECKING:
    from edl.data.table_statistics import TableStatistics

_MOST_THREADS = 8
_COLUMNS = ("column", "type", "count", "missing", "distinct", "min", "median", "max", "mean", "std", "most frequent")
_TEXT_COLUMNS = ("column", "type", "most frequent")
_LEFT_OUT_FIRST = ("most frequent", "type", "std", "median", "missing", "mean")
"""Of the printed table, on a narrow terminal."""

PathsArgument = Annotated[
    list[str], typer.Argument(metavar="PATH", help="Files of a table, or their directory.", show_default=False)
]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", help="csv, parquet, arrow, npz or jsonl; detected by default.", show_default=False),
]
ColumnsOption = Annotated[
    list[str] | None, typer.Option("--columns", metavar="A,B", help="Only these columns.", show_default=False)
]
SeparatorOption = Annotated[str | None, typer.Option("--sep", help="Separator of CSV cells.", show_default=False)]
HeaderOption = Annotated[bool, typer.Option("--header/--no-header", help="Whether CSV files name their columns.")]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", help="Threads that share the data; as many as processors by default.", min=1),
]


def stats(
    paths: PathsArgument,
    file_format: FormatOption = None,
    columns: ColumnsOption = None,
    separator: SeparatorOption = None,
    header: HeaderOption = True,
    threads: ThreadsOption = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            help="Run a job on this machine whose workers share the records.",
            min=1,
            show_default=False,
        ),
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="PATH is the run directory of such a job: merge what its workers wrote.")
    ] = False,
    top: Annotated[int, typer.Option("--top", help="Most frequent values of a column, with --json.", min=0)] = 1000,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="PAGE", help="Write a page with histograms to this file.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, which edl.layers reads.")] = False,
) -> None:
    """Print statistics of each column of a table.

    The table is CSV, Parquet, Arrow, npz or JSON lines. One pass, with memory that does not depend on the number of
    records. Count, missing, min, max, mean and standard deviation are exact; quantiles, distinct and top values are
    exact for small columns, and else have a stated error.
    """
    options = _reader_options(file_format, columns, separator, header)
    statistics = _merge(paths) if merge else _scan(paths, options, threads, workers)
    result = statistics.to_json(top)
    if html is not None:
        from edl.cli.statistics_page import render_page

        try:
            html.write_text(render_page(result, ", ".join(paths)), encoding="utf-8")
        except OSError as error:
            raise BadInputError(f"cannot be written: {error.strerror}", where=str(html)) from error
    if as_json:
        print(json.dumps(result, allow_nan=False))
        return
    _print_table(result)
    if html is not None:
        print(f"Page with histograms: {html}")


def _reader_options(
    file_format: str | None, columns: list[str] | None, separator: str | None, header: bool
) -> dict[str, object]:
    options: dict[str, object] = {"format": file_format, "sep": separator}
    options |= {"columns": ",".join(columns).split(",") if columns else None, "header": None if header else False}
    return {name: value for name, value in options.items() if value is not None}


def _scan(
    paths: list[str], options: dict[str, object], threads: int | None, workers: int | None = None
) -> TableStatistics:
    with needing_train_extra("statistics need"):
        from edl.data.table_scan import scan_table
        from edl.ops.statistics_job import scan_with_workers
    if workers is None:
        statistics = scan_table(paths, options, threads or min(_MOST_THREADS, os.cpu_count() or 1))
        if options.get("header", True):
            warn_of_doubtful_header([*statistics.columns])
        return statistics
    if threads is not None:
        raise BadInputError("a worker has one thread", where="--threads", hint="leave out --threads or --workers")
    return scan_with_workers(paths, options, workers)


def warn_of_doubtful_header(column_names: Sequence[str]) -> None:
    """Say on standard error that the names of the columns may be a record."""
    from edl.data.reader import describe_doubtful_header

    if (doubt := describe_doubtful_header(column_names)) is not None:
        print(f"warning: {doubt}; if it is a record, use --no-header", file=sys.stderr)


def _merge(paths: list[str]) -> TableStatistics:
    with needing_train_extra("statistics need"):
        from edl.data.statistics_files import merge_workers, read_worker_files
    return merge_workers([worker for path in paths for worker in read_worker_files(Path(path))])


def _print_table(result: dict[str, Any]) -> None:
    console = make_console()
    rows = [_format_row(column) for column in result["columns"]]
    left_out: set[str] = set()
    for candidate in _LEFT_OUT_FIRST:
        if sum(2 + _least_width(name, rows) for name in _COLUMNS if name not in left_out) <= console.width + 2:
            break
        left_out.add(candidate)
    console.print(_make_table(rows, left_out))
    console.print(describe_errors(result), style="dim")
    if left_out:
        missing = ", ".join(name for name in _LEFT_OUT_FIRST if name in left_out)
        console.print(
            f"Not shown, because the terminal is narrow: {missing}. --json and --html have them.", style="dim"
        )


def _format_row(column: dict[str, Any]) -> dict[str, str]:
    quantiles = column.get("quantiles") or [None]
    return {
        "column": column["name"],
        "type": column["type"],
        "count": f"{column['count']:,}",
        "missing": f"{column['missing']:,}" if column["missing"] else "",
        "distinct": f"{'~' if column['distinct_error'] else ''}{column['distinct']:,}",
        "min": format_value(column["min"]),
        "median": format_value(quantiles[len(quantiles) // 2]),
        "max": format_value(column["max"]),
        "mean": format_value(column.get("mean")),
        "std": format_value(column.get("std")),
        "most frequent": ", ".join(f"{format_value(value)} ({count:,})" for value, count in column["top"][:3]),
    }


def _least_width(name: str, rows: list[dict[str, str]]) -> int:
    """Width of a column in which no figure is cut off, and texts have lines of up to 16 characters."""
    longest = max((len(row[name]) for row in rows), default=0)
    return max(len(name), min(longest, 16) if name in _TEXT_COLUMNS else longest)


def _make_table(rows: list[dict[str, str]], left_out: set[str]) -> Table:
    names = [name for name in _COLUMNS if name not in left_out]
    table = Table(box=None, pad_edge=False)
    for name in names:
        is_text, width = name in _TEXT_COLUMNS, _least_width(name, rows)
        # Without a least width, a text beside figures would get no room at all.
        table.add_column(
            name, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold", min_width=width
        )
    for row in rows:
        table.add_row(*(Text(row[name]) for name in names))  # of users: no markup
    return table


def describe_errors(result: dict[str, Any]) -> str:
    """How exact the figures are, in a sentence or two."""
    columns = result["columns"]
    rank = max((column.get("quantile_error", 0.0) for column in columns), default=0.0)
    distinct = max((column["distinct_error"] for column in columns), default=0.0)
    share = max((column["top_error"] / max(1, column["count"]) for column in columns), default=0.0)
    corrupt = result["corrupt_records"]
    summary = f"{result['records']:,} records" + (f", {corrupt:,} corrupt left out" if corrupt else "") + ". "
    summary += "".join(f"Damaged: {place}. " for place in result.get("damaged", ()))
    if not (rank or distinct or share):
        return summary + "All figures are exact."
    errors = {
        f"ranks of quantiles are wrong by at most {rank:.2%} of the values": rank,
        f"counts of frequent values by at most {share:.2%} of the values": share,
        f"numbers of distinct values with ~ by {distinct:.1%} or less in 95 of 100 cases": distinct,
    }
    said = "; ".join(text for text, error in errors.items() if error)
    return summary + said[0].upper() + said[1:] + "."


def format_value(value: Any) -> str:
    """A figure or a cell for people, at most 24 characters."""
    if value is None:
        return ""
    if isinstance(value, bool | str):
        text = str(value).replace("\n", "\\n")
        return text if len(text) <= 24 else text[:23] + "…"
    return f"{value:,}" if isinstance(value, int) and abs(value) < 10**9 else f"{value:.5g}"


# --------------------------------------------------------------------------------------------------
# The section of a job file that reads a table.


_LABEL_NAMES = ("label", "target", "class", "y")
_MOST_CLASSES = 1000
_MOST_GUESSED_TEXTS = 100
"""A text with more values is rather a feature than the classes of a label, which the schema would list."""


def schema(
    paths: PathsArgument,
    label: Annotated[
        str | None,
        typer.Option(
            "--label",
            help="The label's column; by default one with such a name, else the last that is no list and no text of "
            f"more than {_MOST_GUESSED_TEXTS} values.",
        ),
    ] = None,
    file_format: FormatOption = None,
    columns: ColumnsOption = None,
    separator: SeparatorOption = None,
    header: HeaderOption = True,
    threads: ThreadsOption = None,
) -> None:
    """Print the section data of a job file for a table.

    It says what each column is, and is to be edited. A model module then needs no feed. The label is a guess, and
    so is what is said of it. Columns with missing values are left out, as comments.
    """
    from edl.data.data_files import detect_format, find_data

    is_json = (file_format or detect_format(find_data(paths))) == "jsonl"
    result = _scan(paths, _reader_options(file_format, columns, separator, header), threads).to_json(_MOST_CLASSES)
    table_columns = {column["name"]: column for column in result["columns"]}
    if label is None:
        named = [name for name in table_columns if name.lower() in _LABEL_NAMES]
        label = (
            named or [name for name in table_columns if _may_be_label(table_columns[name])] or list(table_columns)
        )[-1]
    if label not in table_columns:
        raise BadInputError(f"no column {label}", where="--label", hint=f"the table has {', '.join(table_columns)}")
    options = {"format": file_format, "sep": separator, "header": None if header else False}
    lines = ["data:", f"  training: {json.dumps(paths if len(paths) > 1 else paths[0])}"]
    option_lines = [f"    {name}: {json.dumps(value)}" for name, value in options.items() if value is not None]
    lines += ["  reader:", *option_lines] if option_lines else []
    if not header:
        names = [*table_columns]
        lines.append(f"    columns: {json.dumps(names)}")
    lines += ["  schema:", f"    label: {_quote(label)}  # {_describe_label(table_columns[label])}"]
    lines += (
        [f"    classes: {json.dumps(classes, ensure_ascii=False)}"]
        if (classes := _text_classes(table_columns[label]))
        else []
    )
    lines.append("    features:")
    for name, column in table_columns.items():
        if name == label:
            continue
        missing = f"; {column['missing']:,} MISSING: replace them, and remove the first #" if column["missing"] else ""
        if is_json and column["type"].startswith("list"):
            missing = "; a LIST, which is read from Parquet: edl data convert --to parquet"
        lines.append(
            f"      {'# ' if missing else ''}{_quote(name)}: {_feature_type(column)}"
            f"  # {column['type']}: {_describe_feature(column)}{missing}"
        )
    print("\n".join(lines))


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _feature_type(column: dict[str, Any]) -> str:
    """The type of a feature in ``data.schema``: one that has all its values, but for the digits of fractions."""
    if column["kind"] == "text":
        return "string"
    items = re.findall(r"(?:item|element): (\w+)", column["type"])  # of a list, the innermost last
    kind = items[-1] if items else column["type"]
    if kind == "bool":
        return "bool"
    # Times and dates are whole numbers, in units as small as 1 ns: float32 would round them to minutes.
    is_whole = kind.startswith(("int", "uint", "timestamp", "date", "time", "duration"))
    return "int64" if is_whole and (column["max"] is None or column["max"] < 2**63) else "float32"


def _text_classes(column: dict[str, Any]) -> list[str]:
    """The values of a label that is text, sorted, if the result has them all."""
    values = sorted(value for value, _ in column["top"])
    return values if column["kind"] == "text" and len(values) == column["distinct"] else []


def _may_be_label(column: dict[str, Any]) -> bool:
    has_many_texts = column["kind"] == "text" and column["distinct"] > _MOST_GUESSED_TEXTS
    return "list" not in column["type"] and not has_many_texts


def _describe_label(column: dict[str, Any]) -> str:
    missing = f"; {column['missing']:,} MISSING: leave these records out, or a job ends there"
    return _describe_task(column) + (missing if column["missing"] else "")


def _describe_task(column: dict[str, Any]) -> str:
    """What a model of this label would be."""
    if column["distinct"] == 2:
        return "two values: binary classification"
    if column["kind"] == "text" or (column["type"].startswith(("int", "uint")) and column["distinct"] <= _MOST_CLASSES):
        return f"{column['distinct']:,} values: classification"
    return "regression"


def _describe_feature(column: dict[str, Any]) -> str:
    if column["kind"] == "text":
        return f"{column['distinct']:,} texts, for StringLookup"
    return f"{format_value(column['min'])} to {format_value(column['max'])}, {column['distinct']:,} values"
