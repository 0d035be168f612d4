"""``edl data stats --workers``: a job on this machine whose workers summarize a table."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from edl.api.errors import BadInputError, EdlError

if TYPE_CHECKING:
    from edl.data.statistics_files import WorkerStatistics
    from edl.data.table_scan import TableRanges
    from edl.data.table_statistics import TableStatistics

_NAME = "data-stats"
_MOST_RECORDS, _LEASES_PER_WORKER = 1 << 19, 8
"""Half a million records in a lease are about a second of work, so a worker's file costs little beside it."""
_MOST_STEPS = 8
_LEAST_GROUPS_PER_WORKER = 4
"""With fewer row groups than these, a lease may be a part of one, so that all workers end at about the same time."""


class StatisticsJobError(EdlError):
    """The job failed. Its workers have said why."""


def lease_records(records: int, workers: int, group_records: int) -> int:
    """Number of records of a lease: whole row groups, because a part is decoded from the beginning of its row group.

    Args:
        records: of all files.
        workers: number of workers.
        group_records: of a row group; 1 if any range can be read alone.
    """
    wanted = min(_MOST_RECORDS, max(1, records // (_LEASES_PER_WORKER * workers)))
    if group_records <= wanted:
        return wanted // group_records * group_records
    if records // group_records >= _LEAST_GROUPS_PER_WORKER * workers:
        return group_records
    parts = -(-group_records // wanted)
    return -(-group_records // parts)


def statistics_job(
    paths: Sequence[str],
    options: Mapping[str, object],
    records: int,
    workers: int,
    group_records: int = 1,
    arguments: Sequence[str] = (),
) -> dict[str, Any]:
    """The job file. Leases are ranges of the files (see ``lease_records``), and each record comes once.

    Args:
        paths: of the files.
        options: as ``data.reader`` of a job.
        records: of all files.
        workers: number of workers.
        group_records: see ``lease_records``.
        arguments: of the program.
    """
    lease = lease_records(records, workers, group_records)
    steps = next(steps for steps in range(_MOST_STEPS, 0, -1) if lease % steps == 0)
    return {
        "apiVersion": "edl.dev/v1",
        "name": _NAME,
        "command": ["python", "-m", "edl.sharding.table_statistics", *arguments],
        "model": {"zoo": "."},
        "data": {"training": list(paths), "reader": dict(options)},
        "train": {
            "epochs": 1,
            "minibatch_size": lease // steps,
            "minibatches_per_task": steps,
            "shuffle": {"window": 0},
        },
        "workers": {"max": workers},
    }


def scan_with_workers(paths: Sequence[str], options: Mapping[str, object], workers: int) -> TableStatistics:
    """Statistics of a table by the workers of a job, whose output goes to standard error.

    Raises:
        BadInputError: the table cannot be summarized by workers.
        StatisticsJobError: the job failed.
    """
    from edl.data.remote_files import is_remote
    from edl.data.statistics_files import find_wider_types, merge_workers
    from edl.data.table_scan import TableRanges, scan_table

    # The job runs in another directory.
    places = [path if is_remote(path) else os.path.abspath(path) for path in paths]
    table = TableRanges(places, options)  # what is wrong is said before processes start
    if not sum(table.sources.values()):
        return scan_table(places, options, 1)
    types: dict[str, str] = {}
    # Ends: all types that are too narrow show in one run.
    while True:
        worker_results = _run_job(places, options, table, workers, types)
        wider = find_wider_types(worker_results) if table.format_name == "csv" else {}
        if not wider:
            return merge_workers(worker_results)
        named = ", ".join(f"{name} ({kind})" for name, kind in wider.items())
        print(f"Cells that are seldom need a wider type: {named}. The workers start again.", file=sys.stderr)
        types |= wider


def _run_job(
    paths: Sequence[str], options: Mapping[str, object], table: TableRanges, workers: int, types: Mapping[str, str]
) -> list[WorkerStatistics]:
    """What the workers of one job have summarized."""
    from edl.data.statistics_files import FOLDER, read_worker_files

    options, arguments = dict(options), list[str]()
    columns: Any = options.get("columns", ())
    if columns and table.format_name == "jsonl":  # whose records are lines to a job
        del options["columns"]
        arguments += ["--columns", *columns]
    if types:
        arguments += ["--types", *(f"{name}={kind}" for name, kind in types.items())]
    records = sum(table.sources.values())
    folder = Path(mkdtemp(prefix="edl-stats-"))
    job = folder / "job.json"
    job.write_text(json.dumps(statistics_job(paths, options, records, workers, table.group_records, arguments)))
    command = [sys.executable, "-P", "-m", "edl.cli.app", "run", str(job)]
    done = subprocess.run(command, cwd=folder, stdout=sys.stderr, check=False)
    if done.returncode:
        # The logs stay.
        raise StatisticsJobError(f"the job ended with exit code {done.returncode}", where=str(folder))
    try:
        runs = list(folder.glob(f".edl/local/**/{FOLDER}"))
        if not runs:
            raise BadInputError("the job has written no statistics", where=f"--workers {workers}")
        return read_worker_files(runs[0])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
