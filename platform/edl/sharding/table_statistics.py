"""The program of a job that summarizes a table: ``command: [python, -m, edl.sharding.table_statistics]``.

Each worker leases ranges of records, and writes a file into ``statistics`` of the run directory before it reports one:
see ``edl.data.statistics_files``. When all records are done, the result is written beside the files.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec
from edl.data.statistics_files import (
    FOLDER,
    RESULT,
    RangeStatistics,
    SourceRange,
    WorkerStatistics,
    find_wider_types,
    merge_workers,
    read_worker_files,
    write_worker_file,
)
from edl.data.table_scan import TableRanges
from edl.sharding.client import Client
from edl.storage.durable_files import replace_file, translate_os_errors
from edl.transport.process_identity import ProcessIdentity

_LOG = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> None:
    """Summarize ranges until there are no more."""
    parser = argparse.ArgumentParser(
        prog="edl.sharding.table_statistics", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--top", type=int, default=1000, help="most frequent values of a column, default 1000")
    parser.add_argument("--columns", nargs="+", default=[], help="columns of JSON lines; all by default")
    parser.add_argument(
        "--types",
        nargs="+",
        default=[],
        metavar="NAME=TYPE",
        help="columns of CSV that need a wider type: double, string",
    )
    given = parser.parse_args(arguments)
    types = {name: kind for name, _, kind in (each.rpartition("=") for each in given.types)}
    folder = ProcessIdentity.from_environment().run_dir / FOLDER
    with Client.from_env() as client:
        check_job(client.job)
        options = {**client.job.data.reader, **({"columns": given.columns} if given.columns else {})}
        table = TableRanges(client.job.data.training, options, types)
        summarize_ranges(client, table, folder / f"worker-{client.uid}.npz")
        write_result(folder, given.top, is_csv=table.format_name == "csv")


def check_job(spec: JobSpec) -> None:
    """Refuse jobs whose leases are no ranges of the files, or of which a record comes more than once."""
    data, train = spec.data, spec.train
    wanted = (
        ("train.shuffle.window", train.shuffle.window, 0),
        ("train.epochs", train.epochs, 1),
        ("train.max_steps", train.max_steps, None),
        ("data.weights", data.weights or None, None),
        ("data.repeat", data.repeat or None, None),
        ("data.split", data.split, None),
    )
    for name, value, needed in wanted:
        if value != needed:
            hint = f"set it to {needed}" if needed is not None else "leave it out"
            raise BadInputError(f"found {value}, and statistics read each record once, in order", where=name, hint=hint)


def summarize_ranges(client: Client, table: TableRanges, path: Path) -> None:
    """Summarize the ranges that this worker gets.

    A range is on the disk before the master hears of it, apart from those that it has entered. If this process is
    killed in between, the merge sees from the other files whether the range counts.
    """
    worker = WorkerStatistics(table.sources)
    while (shard := client.fetch_shard()) is not None:
        statistics = table.scan(shard.source, shard.start, shard.end)
        if not shard.is_held or client.is_leaving:
            continue  # fetch_shard() gives it up, or ends the program
        part = RangeStatistics(SourceRange(shard.source, shard.start, shard.end), statistics)
        worker.unconfirmed.append(part)
        write_worker_file(path, worker)
        if client.report_done_and_wait(shard):
            worker.confirm(part)
        else:
            _LOG.info("%s may be given to another worker", part.place)
    if worker.done or worker.unconfirmed:
        write_worker_file(path, worker)


def write_result(folder: Path, top: int, *, is_csv: bool = False) -> None:
    """Write the merged result, unless records are still with another worker, which writes it then.

    If a column of CSV needs a wider type than its sample, there is no result, and the types are said.
    """
    try:
        workers = read_worker_files(folder)
        if is_csv and (wider := find_wider_types(workers)):
            types = " ".join(f"{name}={kind}" for name, kind in wider.items())
            print(f"no result: some cells need a wider type; start it again with --types {types}", file=sys.stderr)
            return
        result = merge_workers(workers).to_json(top)
    except BadInputError as error:
        print(f"no result yet: {error}", file=sys.stderr)
        return
    file = folder / RESULT
    with translate_os_errors(file, "write the statistics"), replace_file(file) as temporary:
        temporary.write_text(json.dumps(result, allow_nan=False), encoding="utf-8")
    print(f"{result['records']:,} records: {file}")


if __name__ == "__main__":
    main()
