"""What the scripts of this folder share: their arguments, and what they do with a result.

Every script runs alone (``python bench/cli.py --rounds 3``), prints progress on stderr and its result as JSON on stdout
or into ``--out``.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from figures import BenchFigure, ScriptResult

sys.path.append(str(Path(__file__).resolve().parents[1] / "platform" / "tests"))  # for `support`

Measure = Callable[[argparse.Namespace], ScriptResult]
Options = Callable[[argparse.ArgumentParser], object]
_BEGAN = time.monotonic()


def main(description: str | None, measure: Measure, *, rounds: int, options: Options | None = None) -> None:
    """Run one script from the command line; ``rounds`` is the default of ``--rounds``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"default {rounds}")
    parser.add_argument("--out", type=Path, help="file for the JSON result, instead of stdout")
    if options is not None:
        options(parser)
    arguments = parser.parse_args()
    # Told to go, it leaves as by an error: the jobs that it has started end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    result = measure(arguments)
    for figure in result.figures:
        print_progress(figure_line(figure))
    text = json.dumps(result.to_json(), indent=1) + "\n"
    if arguments.out is None:
        sys.stdout.write(text)
    else:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text)


def print_progress(text: str) -> None:
    """Tell people how far it is."""
    print(f"[{time.monotonic() - _BEGAN:7.1f} s] {text}", file=sys.stderr, flush=True)


def figure_line(figure: BenchFigure) -> str:
    """A figure on one line."""
    verdict = {None: "", True: "met", False: "NOT MET"}[figure.is_met]
    bound = "" if figure.limit is None else f"({'at least' if figure.at_least else 'at most'} {figure.limit:.4g})"
    return f"{figure.measure}: {figure.measured:.4g} {figure.unit} {bound} {verdict}".rstrip()
