"""Rows of a query into Parquet: rows per second and peak memory, from PostgreSQL and SQLite, 15 columns of seven types.

Beside it stands psycopg's own COPY, which hands over the same rows as text and keeps none: what the server and the
connection take. Sides take turns. Each is a process of its own, and its seconds do not count imports.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from figures import BenchFigure, ScriptResult
from script import main, print_progress
from support.databases import PASSWORD, USER, find_postgres, start_postgres

QUERY = "SELECT * FROM orders"
MEGABYTE = 1_000_000
_CREATE = """
CREATE TABLE {table} AS SELECT n::bigint AS id, (n % 100)::int AS age, random() AS x1, random() * 1000 AS x2,
  random()::real AS x3, random() AS x4, (random() * 1e6)::numeric(12, 2) AS price, n % 2 = 0 AS paid,
  'town ' || (n % 500) AS town, md5(n::text) AS code, 'a, "b" ' || n AS note,
  date '2000-01-01' + (n % 9000)::int AS born,
  timestamp '2020-01-01' + n * interval '1 s' AS seen, CASE WHEN n % 10 > 0 THEN n % 7 END AS items,
  (n % 3)::smallint AS kind
FROM generate_series(1, {rows}) AS n
"""


def create_orders(table: str, rows: int) -> str:
    """The statement of PostgreSQL that makes a table of 15 columns."""
    return _CREATE.format(table=table, rows=rows)


def fill_sqlite(path: str, rows: int) -> None:
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE orders (id INTEGER, age INTEGER, x1 REAL, x2 REAL, x3 REAL, x4 REAL, price REAL, paid BOOLEAN, "
        "town TEXT, code TEXT, note TEXT, born DATE, seen DATETIME, items INTEGER, kind INTEGER)"
    )
    connection.executemany(
        f"INSERT INTO orders VALUES ({', '.join('?' * 15)})",
        (
            (
                *(n, n % 100, n / 7, n / 11, n / 13, n / 17, n / 4, n % 2, f"town {n % 500}", f"{n:032x}"),
                *(f'a, "b" {n}', f"20{n % 90 + 10}-01-02", f"2020-01-02 03:{n % 60:02}:05"),
                *(n % 7 if n % 10 else None, n % 3),
            )
            for n in range(rows)
        ),
    )
    connection.commit()
    connection.close()


# --------------------------------------------------------------------------------------------------
# The sides, each in a process of its own.


def peak_memory() -> float:
    """MB of this process. Not ``ru_maxrss``, which begins with the memory of the process that started this one."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024 / MEGABYTE


def extract(address: str) -> int:
    from edl.sql_jobs.query_extraction import extract_query

    with TemporaryDirectory(prefix="edl-bench-") as folder:
        return extract_query(address, QUERY, Path(folder) / "rows").rows


def copy_with_psycopg(address: str) -> int:
    import psycopg

    rows = 0
    place = address.partition("://")[2]
    with (
        psycopg.connect(f"postgresql://{place}", user=USER, password=PASSWORD) as connection,
        connection.cursor().copy(f"COPY ({QUERY}) TO STDOUT (FORMAT csv)") as copy,
    ):
        for _ in copy:
            rows += 1
    return rows


SIDES: Mapping[str, Callable[[str], int]] = {"edl": extract, "psycopg": copy_with_psycopg}


def run_side(name: str, address: str) -> None:
    import edl.sql_jobs.query_extraction  # noqa: F401 - before the clock starts

    before = peak_memory()
    began, used = time.perf_counter(), time.process_time()
    rows = SIDES[name](address)
    seconds, busy = time.perf_counter() - began, time.process_time() - used
    result = {"seconds": seconds, "busy": busy, "rows": rows, "memory": peak_memory(), "memory_before": before}
    print(json.dumps(result))


def measure_side(name: str, address: str, rows: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--side", name, "--address", address]
    environment = {**os.environ, "EDL_DATABASE_USER": USER, "EDL_DATABASE_PASSWORD": PASSWORD}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    measured: dict[str, float] = json.loads(done.stdout)
    assert measured["rows"] == rows
    return measured


def measure(given: argparse.Namespace) -> ScriptResult:
    if given.side:
        run_side(given.side, given.address)
        sys.exit()
    rows = given.rows
    programs = find_postgres()
    if programs is None:
        return ScriptResult("sql_extraction", failed="PostgreSQL is not installed: apt-get install postgresql")
    with ExitStack() as stack:
        server = stack.enter_context(start_postgres(programs))
        server.connect(create_orders("orders", rows), "ANALYZE orders")
        folder = stack.enter_context(TemporaryDirectory(prefix="edl-bench-"))
        fill_sqlite(f"{folder}/shop.db", rows)
        print_progress(f"{rows:,} rows are written")
        runs: dict[str, Callable[[], dict[str, float]]] = {
            "PostgreSQL": lambda: measure_side("edl", server.address, rows),
            "psycopg": lambda: measure_side("psycopg", server.address, rows),
            "SQLite": lambda: measure_side("edl", f"sqlite:///{folder}/shop.db", rows),
        }
        rounds: list[dict[str, dict[str, float]]] = []
        for number in range(given.rounds):
            order = list(runs) if number % 2 else list(reversed(runs))
            rounds.append({side: runs[side]() for side in order})
            print_progress(", ".join(f"{side} {rows / rounds[-1][side]['seconds']:,.0f} rows/s" for side in runs))
    return ScriptResult("sql_extraction", figures(rounds, rows), {"rows": rows, "rounds": rounds})


def figures(rounds: list[dict[str, dict[str, Any]]], rows: int) -> tuple[BenchFigure, ...]:
    def rate(side: str, seconds: str = "seconds") -> float:
        return float(rows / median(each[side][seconds] for each in rounds))

    def memory(side: str) -> float:
        return float(max(each[side]["memory"] - each[side]["memory_before"] for each in rounds))

    ratio = median(each["psycopg"]["seconds"] / each["PostgreSQL"]["seconds"] for each in rounds)
    busy = f"{rate('PostgreSQL', 'busy'):,.0f} rows per second of this process's own time"
    return (
        BenchFigure(
            "a query into Parquet, from PostgreSQL", rate("PostgreSQL"), "rows/s", 100_000, at_least=True, note=busy
        ),
        BenchFigure("a query into Parquet, of psycopg's COPY alone", ratio, "x", note=f"{rate('psycopg'):,.0f} rows/s"),
        BenchFigure("a query into Parquet: memory above the imports", memory("PostgreSQL"), "MB", 500),
        BenchFigure("a query into Parquet, from SQLite", rate("SQLite"), "rows/s"),
        BenchFigure("a query into Parquet, from SQLite: memory above the imports", memory("SQLite"), "MB", 500),
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=1_000_000, help="default 1000000")
    for name in ("--side", "--address"):
        parser.add_argument(name, help=argparse.SUPPRESS)


if __name__ == "__main__":
    main(__doc__, measure, rounds=3, options=options)
