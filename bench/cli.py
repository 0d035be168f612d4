"""How long ``edl --help`` takes, from the start of the process to its end, on a warm disk."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from figures import BenchFigure, ScriptResult
from script import main, print_progress

EDL = Path(sys.executable).with_name("edl")


def command_seconds(command: list[str]) -> float:
    """Seconds from start to exit.

    Raises:
        CalledProcessError: it failed.
    """
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def measure(arguments: argparse.Namespace) -> ScriptResult:
    help_command, bare_command = [str(EDL), "--help"], [sys.executable, "-c", "pass"]
    command_seconds(help_command)  # the first run reads the disk
    ours, bare = [], []
    for _ in range(arguments.rounds):
        ours.append(command_seconds(help_command))
        bare.append(command_seconds(bare_command))
    print_progress(f"{arguments.rounds} runs of edl --help")
    figures = (
        BenchFigure("`edl --help`", 1e3 * median(ours), "ms", limit=200),
        BenchFigure("an empty Python process, in the same run", 1e3 * median(bare), "ms"),
    )
    return ScriptResult("cli", figures, {"edl_help_seconds": ours, "empty_python_seconds": bare})


if __name__ == "__main__":
    main(__doc__, measure, rounds=20)
