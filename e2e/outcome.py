"""How many scenarios of a whole run passed: `e2e/run` names the file in ``E2E_OUTCOME``, each part of the run adds."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

COUNTED = ("passed", "failed", "error", "skipped", "rerun")


def add(counts: Mapping[str, int]) -> None:
    """Add the counts of one part, under the way of installing that it ran with."""
    file, method = Path(os.environ["E2E_OUTCOME"]), os.environ.get("INSTALL_METHOD", "helm")
    found = json.loads(file.read_text()) if file.exists() else {}
    before = found.get(method, {})
    found[method] = {name: before.get(name, 0) + counts.get(name, 0) for name in COUNTED}
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(found, indent=1) + "\n")
