"""A statement of `edl sql` on a table of PostgreSQL: what it takes beyond its training, and how much memory.

*Time*: `SELECT ... TO TRAIN dnn ... INTO model` on a million rows of 15 columns, five epochs. Beside it, `edl run`
trains what the statement exported: the same module, settings and rows, from Parquet. Both are timed as whole commands,
and take turns. The result has the records that the second has trained.

*Memory*: a table of ten million rows trains a model of a few steps and is predicted into another table. The resident
memory of all processes of the statements but workers is sampled; what `edl sql "SHOW MODELS"` takes is subtracted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil
from figures import BenchFigure, ScriptResult
from script import main, print_progress
from sql_extraction import MEGABYTE, create_orders
from support.databases import PASSWORD, USER, find_postgres, start_postgres

EPOCHS = 5
SAMPLE_SECONDS = 0.05
_WORKERS = ("edl.worker",)


def run_edl(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> tuple[float, float]:
    """Seconds of a command, and the most MB that its processes had at once, workers left out."""
    began, most = time.perf_counter(), 0.0
    with (folder / "output").open("w+") as output:
        command = [sys.executable, "-m", "edl.cli.app", *words]
        process = psutil.Popen(
            command, cwd=folder, env={**os.environ, **environment}, stdout=output, stderr=subprocess.STDOUT
        )
        while process.poll() is None:
            most = max(most, resident_memory(process))
            time.sleep(SAMPLE_SECONDS)
        if process.returncode:
            raise RuntimeError(f"edl {words[0]}: exit code {process.returncode}\n{(folder / 'output').read_text()}")
    return time.perf_counter() - began, most / MEGABYTE


def resident_memory(process: psutil.Process) -> float:
    """Bytes of a process and of all that it started, but not of workers."""
    total = 0
    with suppress(psutil.Error):
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                if not any(word in _WORKERS for word in each.cmdline()):
                    total += each.memory_info().rss
    return total


def trained_records(folder: Path) -> int:
    """Records that the newest run below a folder has trained."""
    status = max(folder.rglob("status.json"), key=lambda path: path.stat().st_mtime_ns)
    return int(json.loads(status.read_bytes())["records_done"])


def measure_time(given: argparse.Namespace, folder: Path, environment: Mapping[str, str]) -> list[dict[str, float]]:
    rounds: list[dict[str, float]] = []
    for number in range(given.rounds):
        exported = folder / f"exported-{number}"
        statement = f"SELECT * FROM orders TO TRAIN dnn WITH train.epochs={EPOCHS} LABEL paid INTO paid_{number}"
        statement_seconds, _ = run_edl(["sql", "--export", str(exported), statement], folder, environment)
        training, _ = run_edl(["run", str(exported / "job.yaml")], exported, environment)
        rounds.append({"statement": statement_seconds, "training": training, "records": trained_records(exported)})
        print_progress(f"statement {statement_seconds:.1f} s, training alone {training:.1f} s")
        shutil.rmtree(exported)
    return rounds


def measure_memory(folder: Path, environment: Mapping[str, str]) -> dict[str, float]:
    _, idle = run_edl(["sql", "SHOW MODELS"], folder, environment)
    statement = "SELECT * FROM many TO TRAIN linear WITH train.max_steps=20 LABEL paid INTO many_paid"
    seconds, training = run_edl(["sql", statement], folder, environment)
    print_progress(f"trained after {seconds:.0f} s, {training:.0f} MB, idle {idle:.0f} MB")
    seconds, predicting = run_edl(
        ["sql", "SELECT * FROM many TO PREDICT predicted.paid USING many_paid"], folder, environment
    )
    print_progress(f"predicted after {seconds:.0f} s, {predicting:.0f} MB")
    return {"idle": idle, "training": training, "predicting": predicting}


def measure(given: argparse.Namespace) -> ScriptResult:
    programs = find_postgres()
    if programs is None:
        return ScriptResult("sql_training", failed="PostgreSQL is not installed: apt-get install postgresql")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="edl-bench-")))
        server = stack.enter_context(start_postgres(programs))
        environment = {
            "EDL_DATABASE": server.address,
            "EDL_DATABASE_USER": USER,
            "EDL_DATABASE_PASSWORD": PASSWORD,
            "EDL_MODELS": str(folder / "models"),
        }
        server.connect(create_orders("orders", given.rows), "ANALYZE orders")
        rounds = measure_time(given, folder, environment)
        memory: dict[str, float] = {}
        if given.many_rows:
            server.connect(create_orders("many", given.many_rows), "ANALYZE many")
            print_progress(f"{given.many_rows:,} rows are written")
            memory = measure_memory(folder, environment)
    return ScriptResult("sql_training", figures(rounds, memory), {"rounds": rounds, "memory": memory})


def figures(rounds: Sequence[Mapping[str, float]], memory: Mapping[str, float]) -> tuple[BenchFigure, ...]:
    ratio = median(each["statement"] / each["training"] for each in rounds)
    seconds = f"{median(each['statement'] for each in rounds):.0f} s"
    time_figure = BenchFigure(
        "edl sql, 1 M rows, 5 epochs: time, of its training alone", ratio, "x", 1.15, note=seconds
    )
    if not memory:
        return (time_figure,)
    most = max(memory["training"], memory["predicting"]) - memory["idle"]
    return (time_figure, BenchFigure("edl sql, 10 M rows: memory above an idle one, without workers", most, "MB", 500))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=1_000_000, help="default 1000000")
    parser.add_argument("--many-rows", type=int, default=10_000_000, help="of the table for memory; 0: not measured")


if __name__ == "__main__":
    main(__doc__, measure, rounds=3, options=options)
