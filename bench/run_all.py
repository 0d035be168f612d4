"""All benchmarks, one after another: ``bench/results/<name>.json`` and the table in ``docs/benchmarks.md``.

One to two hours on two cores; nothing else should run meanwhile. A script that fails or takes too long is
reported, the others still run, and the exit code is 1. A requirement that is not met is a result, not a failure.

    python bench/run_all.py [--quick] [NAME ...]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import table
from figures import ScriptResult
from script import print_progress

HERE = Path(__file__).parent
LEAVE_SECONDS = 15.0


@dataclass(frozen=True)
class BenchScript:
    """One benchmark.

    Attributes:
        seconds: after which it is given up. It ends a script that hangs, not one on a slow machine.
        quick: arguments of a run that only shows that everything works.
    """

    name: str
    seconds: float
    quick: tuple[str, ...]


SCRIPTS = (
    BenchScript("deepfm", 1800, ("--rounds", "1", "--seconds", "2", "--records", "20000", "--vocabulary", "100000")),
    BenchScript("step_cost", 600, ("--rounds", "1", "--seconds", "2", "--records", "20000", "--vocabulary", "100000")),
    BenchScript("native_table", 960, ("--rounds", "1", "--rows", "300000", "--inserted", "3000000", "--batches", "3")),
    BenchScript("cli", 120, ("--rounds", "3")),
    BenchScript("start", 360, ("--rounds", "1")),
    BenchScript("memory", 360, ("--rounds", "1", "--seconds", "2")),
    BenchScript("recovery", 480, ("--rounds", "1")),
    BenchScript("control_plane", 480, ("--rounds", "1", "--seconds", "5")),
    BenchScript("throughput", 1200, ("--rounds", "1", "--epochs", "8")),
    BenchScript("accuracy", 800, ("--rounds", "1", "--epochs", "1")),
    BenchScript("cut_pause", 360, ("--rounds", "2")),
    BenchScript("bulk_plane", 360, ("--rounds", "1", "--seconds", "0.1")),
    BenchScript("allreduce", 600, ("--rounds", "1", "--no-tune")),
    BenchScript("allreduce_sizes", 480, ("--rounds", "1", "--count", "20")),
    BenchScript("allreduce_training", 2400, ("--rounds", "1", "--seconds", "2")),
    BenchScript("allreduce_recovery", 960, ("--rounds", "1")),
    BenchScript("allreduce_churn", 2400, ("--rounds", "1", "--kills", "2", "--every", "10")),
    BenchScript("checkpoint_stall", 720, ("--rounds", "2", "--rows", "300000", "--every", "200")),
    BenchScript(
        "convergence", 1800, ("--rounds", "2", "--disturbed", "1", "--records", "40000", "--vocabulary", "2600")
    ),
    BenchScript("embedding_build", 480, ("--rounds", "1")),
    BenchScript("shuffled_input", 600, ("--rounds", "1", "--records", "60000")),
    BenchScript(
        "data_formats",
        1200,
        ("--rounds", "1", "--megabytes", "8", "--rows", "8192", "--images", "40", "--records", "50000"),
    ),
    BenchScript("torch_loop", 1200, ("--rounds", "1", "--seconds", "0.3")),
    BenchScript("data_stats", 2400, ("--rounds", "1", "--rows", "500000")),
    BenchScript("sql_extraction", 1200, ("--rounds", "1", "--rows", "100000")),
    BenchScript("sql_training", 3600, ("--rounds", "1", "--rows", "20000", "--many-rows", "50000")),
    BenchScript("sql_quality", 1800, ("--rounds", "1", "--folds", "2", "--tables", "wine,diabetes,xor")),
    BenchScript("remote_data", 1800, ("--megabytes", "16")),
)


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Make sure that a script and its children are gone; it gets time to end the jobs that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(LEAVE_SECONDS)


def run_script(script: BenchScript, quick: bool, results: Path) -> str:
    """Run one script; its result lands in ``results``. Returns why it failed; empty when it did not."""
    out = results / f"{script.name}.json"
    command = [sys.executable, str(HERE / f"{script.name}.py"), "--out", str(out), *(script.quick if quick else ())]
    process = subprocess.Popen(command, start_new_session=True)  # so that a signal reaches its children too
    try:
        code = process.wait(script.seconds)
        failed = f"exit code {code}" if code else ""
    except subprocess.TimeoutExpired:
        failed = f"not done after {script.seconds:.0f} s"
    finally:
        end_process(process)
    if failed:
        out.write_text(json.dumps(ScriptResult(script.name, failed=failed).to_json(), indent=1) + "\n")
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these scripts; the others keep their results")
    parser.add_argument("--quick", action="store_true", help="few rounds: shows that it works, figures mean little")
    parser.add_argument(
        "--results",
        type=Path,
        default=table.RESULTS,
        help="default: bench/results. The docs follow if it is this one, or slower_machine in it",
    )
    parsed = parser.parse_args(arguments)
    unknown = set(parsed.names) - {script.name for script in SCRIPTS}
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    chosen = [script for script in SCRIPTS if not parsed.names or script.name in parsed.names]
    parsed.results.mkdir(parents=True, exist_ok=True)
    failures = run_chosen(chosen, parsed.quick, parsed.results)
    if parsed.results.resolve() in (table.RESULTS, table.SLOWER_RESULTS):
        table.write_pages()
    for name, why in failures.items():
        print_progress(f"{name} FAILED: {why}")
    return 1 if failures else 0


def run_chosen(chosen: Sequence[BenchScript], quick: bool, results: Path) -> dict[str, str]:
    """Run the scripts in order; returns those that failed, with the reason."""
    failures = {}
    for number, script in enumerate(chosen, 1):
        print_progress(f"=== {script.name} ({number} of {len(chosen)}, at most {script.seconds:.0f} s)")
        began = time.monotonic()
        failed = run_script(script, quick, results)
        if failed:
            failures[script.name] = failed
        print_progress(f"=== {script.name}: {failed or 'done'} after {time.monotonic() - began:.0f} s")
    return failures


if __name__ == "__main__":
    sys.exit(main())
