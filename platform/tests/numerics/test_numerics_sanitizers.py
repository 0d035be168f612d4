"""What is committed about the sanitizers is of the native sources that are committed with it."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

NATIVE = Path(__file__).parent / "native"


def test_the_last_full_run_under_sanitizers_was_of_these_sources() -> None:
    program = runpy.run_path(str(NATIVE / "sanitizers.py"))
    written = json.loads((NATIVE / "sanitizers.json").read_text(encoding="utf-8"))
    assert written["sources"] == program["digest"](), (
        "the native table changed since it last ran under sanitizers at length: run `make sanitizers` (ten minutes "
        "on a quiet machine) and commit the sanitizers.json that it writes"
    )
