"""Journals of an earlier version lead to the state that they led to then."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from recorded.make import HERE

from edl.core.entries import APPLY
from edl.core.job import JobState
from edl.core.state import Settings
from edl.store.journal import Journal

JOURNALS = sorted((HERE / "journals").glob("*.json"))
UNRECORDED = {"best_restored", "checkpoint_back", "resumed"}
"""Entries that neither a scenario nor a recorded run has: tests of the core replay them."""


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
def test_a_recorded_journal_leads_to_the_same_state(path: Path) -> None:
    recorded = json.loads(path.read_text())
    entries, half = recorded["entries"], recorded["half"]
    assert replayed(recorded["settings"], None, entries) == recorded["state"]
    assert replayed(recorded["settings"], None, entries[: half["entries"]]) == half["state"]
    assert replayed(recorded["settings"], half["state"], entries[half["entries"] :]) == recorded["state"]


def replayed(settings: dict[str, Any], snapshot: Any, entries: list[Any]) -> Any:
    job = JobState(Settings(**settings))
    job.replay(snapshot, entries)
    return json.loads(json.dumps(job.snapshot()))


def test_every_kind_of_entry_is_recorded(tmp_path: Path) -> None:
    found = {entry["kind"] for path in JOURNALS for entry in json.loads(path.read_text())["entries"]}
    with tarfile.open(HERE / "runs.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    for folder in sorted(tmp_path.glob(".edl/local/*/*/journal")):
        journal, replay = Journal.open(folder, holder="a test")
        journal.close()
        assert replay.entries or "local" in folder.parts[-3], folder  # one process has no ledger to keep
        found |= {entry["kind"] for entry in replay.entries}
    assert found == set(APPLY) - UNRECORDED
