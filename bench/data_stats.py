"""Statistics of a table: 13 columns of Parquet, beside DuckDB's ``SUMMARIZE``, and with two workers beside one.

Sides take turns, so that what else the machine does meets all of them, and a ratio is the median of those of all
rounds. Files are in the page cache. Each side is a process of its own, and its seconds do not count imports. DuckDB is
left out where it is not installed. Threads are those of one ``edl data stats``. Workers are those of a job, timed from
the first range that one begins to the last one that is reported: a job also takes some seconds to start. Processor time
depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from figures import BenchFigure, ScriptResult
from script import main, print_progress

from edl.ops.statistics_job import statistics_job

FRACTIONS, WHOLE_NUMBERS = 7, 6
GROUP_ROWS = 250_000
MEGABYTE = 1_000_000

# Its own file of times, beside the job. The ranges are those of the job, and nothing of them is changed.
_TIMED_PROGRAM = """
import time
from pathlib import Path
from edl.sharding import Client, table_statistics

times, processor_times = [], []

class Ranges(table_statistics.TableRanges):
    def scan(self, source, start, end):
        times.append(time.time())
        processor_times.append(time.process_time())
        return super().scan(source, start, end)

class Reporting(Client):
    def report_done_and_wait(self, shard):
        accepted = super().report_done_and_wait(shard)
        times.append(time.time())
        used = time.process_time() - processor_times[0]
        Path(f"times-{self.uid}").write_text(f"{times[0]} {times[-1]} {used}")
        return accepted

table_statistics.TableRanges, table_statistics.Client = Ranges, Reporting
table_statistics.main([])
"""


def write_table(path: Path, rows: int) -> None:
    """Fractions that hardly appear twice, and whole numbers of which some are frequent."""
    rng = np.random.default_rng(0)
    writer = None
    for start in range(0, rows, GROUP_ROWS):
        count = min(GROUP_ROWS, rows - start)
        columns: dict[str, Any] = {f"x{number}": rng.normal(size=count) for number in range(FRACTIONS)}
        columns |= {f"n{number}": rng.zipf(1.3, count) % 100_000 for number in range(WHOLE_NUMBERS)}
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table, row_group_size=GROUP_ROWS)
    assert writer is not None
    writer.close()


# --------------------------------------------------------------------------------------------------
# The sides, each in a process of its own.


def peak_memory() -> float:
    """MB of this process. Not ``ru_maxrss``, which begins with the memory of the process that started this one."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024 / MEGABYTE


def scan_here(path: str, threads: int) -> int:
    from edl.data.table_scan import scan_table

    statistics = scan_table(path, {}, threads)
    statistics.to_json(10)
    return statistics.records


def summarize_with_duckdb(path: str, threads: int) -> int:
    duckdb: Any = import_module("duckdb")
    connection = duckdb.connect()
    connection.execute(f"set threads={threads}")
    rows = connection.execute(f"summarize select * from '{path}'").fetchall()
    assert len(rows) == FRACTIONS + WHOLE_NUMBERS
    return int(connection.execute(f"select count(*) from '{path}'").fetchone()[0])


SIDES: Mapping[str, Callable[[str, int], int]] = {"edl": scan_here, "duckdb": summarize_with_duckdb}


def run_side(name: str, path: str, threads: int) -> None:
    import_module("duckdb" if name == "duckdb" else "edl.data.table_scan")
    began = time.perf_counter()
    records = SIDES[name](path, threads)
    print(json.dumps({"seconds": time.perf_counter() - began, "records": records, "memory": peak_memory()}))


def measure_side(name: str, path: Path, threads: int, rows: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--side", name, "--path", str(path), "--threads", str(threads)]
    measured: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert measured["records"] == rows
    return measured


def measure_job(path: Path, workers: int, rows: int) -> dict[str, float]:
    with TemporaryDirectory(prefix="edl-bench-") as name:
        folder = Path(name)
        (folder / "timed.py").write_text(_TIMED_PROGRAM)
        spec = statistics_job([str(path)], {}, rows, workers, min(rows, GROUP_ROWS))
        (folder / "job.json").write_text(json.dumps({**spec, "command": ["python", "timed.py"]}))
        command = [sys.executable, "-m", "edl.cli.app", "run", "job.json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        (result,) = folder.glob(".edl/local/**/statistics.json")
        assert json.loads(result.read_bytes())["records"] == rows
        times = [tuple(map(float, file.read_text().split())) for file in folder.glob("times-*")]
        assert len(times) == workers
        begins, ends, used = zip(*times, strict=True)
        return {"seconds": max(ends) - min(begins), "processor_seconds": max(used)}


def measure(given: argparse.Namespace) -> ScriptResult:
    if given.side:
        run_side(given.side, given.path, given.threads)
        sys.exit()
    has_peer = find_spec("duckdb") is not None
    if not has_peer:
        print_progress("DuckDB is not installed, so there is no peer: pip install duckdb")
    with TemporaryDirectory(prefix="edl-bench-") as name:
        path, rows = Path(name) / "table.parquet", given.rows
        write_table(path, rows)
        print_progress(f"{rows:,} rows are written")
        runs: dict[str, Callable[[], dict[str, float]]] = {
            "one thread": lambda: measure_side("edl", path, 1, rows),
            "two threads": lambda: measure_side("edl", path, 2, rows),
            "one worker": lambda: measure_job(path, 1, rows),
            "two workers": lambda: measure_job(path, 2, rows),
        }
        if has_peer:
            runs["DuckDB"] = lambda: measure_side("duckdb", path, 2, rows)
        rounds: list[dict[str, dict[str, float]]] = []
        for number in range(given.rounds):
            order = list(runs) if number % 2 else list(reversed(runs))
            rounds.append({side: runs[side]() for side in order})
            print_progress(", ".join(f"{side} {rounds[-1][side]['seconds']:.1f} s" for side in runs))
    return ScriptResult("data_stats", figures(rounds, rows, has_peer=has_peer), {"rows": rows, "rounds": rounds})


def figures(rounds: list[dict[str, dict[str, float]]], rows: int, *, has_peer: bool) -> tuple[BenchFigure, ...]:
    def ratio(slow: str, fast: str, what: str = "seconds") -> float:
        return median(each[slow][what] / each[fast][what] for each in rounds)

    def rate(side: str) -> str:
        return f"{rows / median(each[side]['seconds'] for each in rounds):,.0f} rows/s"

    memory = max(each["two threads"]["memory"] for each in rounds)
    peer = BenchFigure(
        "statistics of Parquet, two threads, of DuckDB's SUMMARIZE",
        ratio("DuckDB", "two threads") if has_peer else 0.0,
        "x",
        limit=0.3,
        at_least=True,
        aim=1.0,
        note=f"{rate('two threads')} of {rate('DuckDB')}" if has_peer else "",
    )
    return (
        *((peer,) if has_peer else ()),
        BenchFigure("statistics: peak memory of two threads", memory, "MB", 1000, note=f"{rows:,} rows"),
        BenchFigure("statistics: two threads, of one", ratio("one thread", "two threads"), "x"),
        BenchFigure(
            "statistics: two workers of a job, of one",
            ratio("one worker", "two workers"),
            "x",
            limit=1.5,
            at_least=True,
            aim=1.9,
            note=f"{rate('two workers')} of {rate('one worker')}",
        ),
        BenchFigure(
            "statistics: processor time of one worker of a job, of the busiest of two",
            ratio("one worker", "two workers", "processor_seconds"),
            "x",
        ),
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=10_000_000, help="default 10000000")
    for name, kind in (("--side", str), ("--path", str), ("--threads", int)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)


if __name__ == "__main__":
    main(__doc__, measure, rounds=3, options=options)
