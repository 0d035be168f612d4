"""The README's whole job and the tutorial *On your laptop*, word for word: their commands, in a home of their own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from support.doc_commands import DOCS, blocks, run, script
from support.readme_job import write_readme_job

PAGE = DOCS / "tutorials" / "on-your-laptop.md"
SECONDS = 420.0

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(SECONDS + 30), pytest.mark.tensorflow]


def environment(home: Path) -> dict[str, str]:
    programs = Path(sys.executable).parent
    return {**os.environ, "HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}"}


def test_the_readmes_whole_job(tmp_path: Path) -> None:
    commands = write_readme_job(tmp_path)

    run(script(commands), folder=tmp_path, env=environment(tmp_path), seconds=SECONDS)

    newest = tmp_path / ".edl" / "local" / "flowers" / "r1"
    summary = json.loads((newest / "summary.json").read_text())
    assert (summary["records_done"], summary["records_lost"]) == (7_200, 0)
    assert summary["metrics"]["accuracy"] > 0.8
    assert (newest / "export" / "model.keras").is_file()


@pytest.mark.repetition
def test_tutorial_on_your_laptop(tmp_path: Path) -> None:
    run(script(blocks(PAGE)), folder=tmp_path, env=environment(tmp_path), seconds=SECONDS)

    runs = tmp_path / "digits" / ".edl" / "local" / "digits"
    plain, killed = (json.loads((runs / name / "summary.json").read_text()) for name in ("r1", "r2"))
    assert plain["records_done"] == plain["records_total"] == killed["records_done"], "every record, in both runs"
    assert killed["workers_lost"] == 1
    assert killed["records_lost"] == 0
    assert killed["records_repeated"] <= 64, "the minibatch in flight, at most"
    assert (runs / "r1" / "export" / "model.keras").is_file()
    assert any((tmp_path / "digits" / "predictions").iterdir())
    events = [json.loads(line) for line in (runs / "r3" / "events.jsonl").read_text().splitlines()]
    resumed = [event["resumed"] for event in events if event["event"] == "run_started"]
    assert resumed == [False, True], "the interrupted run was resumed"
