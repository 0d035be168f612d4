"""How many scenarios of `make e2e-all` passed with each way of installing: ``results/outcome.json``, in the repository.

python -m e2e.outcome METHOD        begin anew: what is counted from now on is of the commit that is checked out
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.programs import ROOT, run_program

FILE = Path(__file__).parent / "results" / "outcome.json"
COUNTED = ("passed", "failed", "error", "skipped", "rerun")


def begin_run(method: str) -> None:
    """Forget the last run with this way of installing, not that with the other one."""
    commit = run_program("git", "-C", ROOT, "rev-parse", "--short", "HEAD").strip()
    changed = run_program("git", "-C", ROOT, "status", "--porcelain", "-uno", "--", ".", ":!e2e/results").strip()
    _write_outcome(
        _read_outcome() | {method: {"commit": commit + ("-changed" if changed else "")} | dict.fromkeys(COUNTED, 0)}
    )


def add_counts(method: str, counts: Mapping[str, int]) -> None:
    """Add the counts of one part of a run."""
    outcome = _read_outcome()
    for name in COUNTED:
        outcome[method][name] += counts.get(name, 0)
    _write_outcome(outcome)


def _read_outcome() -> dict[str, Any]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def _write_outcome(found: Mapping[str, Any]) -> None:
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    begin_run(sys.argv[1])
