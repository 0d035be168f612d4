"""The core does what platform/tests/scenarios/*.txt say. ``pytest --update-scenarios`` rewrites them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.text_scenarios import rewritten

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt"))


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) > 10


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_core_does_what_the_scenario_says(path: Path, pytestconfig: pytest.Config) -> None:
    text = path.read_text()
    now = rewritten(text)
    if pytestconfig.getoption("update_scenarios"):
        path.write_text(now)
    else:
        assert now == text, "if this is what it should do now: pytest --update-scenarios, and read the difference"
