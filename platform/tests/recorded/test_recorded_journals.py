"""Journals of an earlier version lead to the state that they led to then."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from recorded.make import ARCHIVES, HERE

from edl.api.journal_entries import ENTRY_CLASSES, JournalEntry
from edl.core.job import JobStateMachine
from edl.core.journal_application import ENTRY_HANDLERS
from edl.core.state import JobSettings
from edl.storage.journal import Journal

JOURNALS = sorted((HERE / "journals").glob("*.json"))
UNRECORDED: dict[str, dict[str, Any]] = {
    "world": {
        "incarnation": 1,
        "round": 2,
        "members": ["w0", "w1"],
        "step": 7,
        "holders": ["w0"],
        "joined": ["w1"],
        "reason": "w1 joins",
    },
    "world_started": {
        "step": 7,
        "done": [[4294967297, 16]],
        "returned": [4294967298],
        "repeated": 8,
        "difference": "",
    },
    "stopped_by_callback": {"step": 9},
    "worker_warned": {"topic": "compile(%s) has no effect", "text": "compile(jit_compile=True) has no effect"},
    "steps": {"step": 9, "done": [[4294967297, 32]], "loss": 0.5},
}
"""Entries that came after the recordings, and what they hold: tests of the core replay them."""


ADDED_KEYS = ("evaluated_step",)
"""Keys of a snapshot that versions since then have added."""


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
def test_a_recorded_journal_leads_to_the_same_state(path: Path) -> None:
    recorded = json.loads(path.read_text())
    entries, half = recorded["entries"], recorded["half"]
    assert replayed(recorded["settings"], None, entries) == recorded["state"]
    assert replayed(recorded["settings"], None, entries[: half["entries"]]) == half["state"]
    assert replayed(recorded["settings"], half["state"], entries[half["entries"] :]) == recorded["state"]


def replayed(settings: dict[str, Any], snapshot: Any, entries: list[Any]) -> Any:
    job = JobStateMachine(JobSettings(**settings))
    job.replay_journal(snapshot, entries)
    state = json.loads(json.dumps(job.to_snapshot()))
    return {name: value for name, value in state.items() if name not in ADDED_KEYS}


def test_every_kind_of_entry_is_recorded(tmp_path: Path) -> None:
    kinds = {entry["kind"] for path in JOURNALS for entry in json.loads(path.read_text())["entries"]}
    kinds |= {entry["kind"] for entry in entries_of_runs(tmp_path)}
    assert kinds == set(ENTRY_CLASSES) - UNRECORDED.keys()


def entries_of_runs(tmp_path: Path) -> list[Any]:
    """All entries of the recorded run directories."""
    entries: list[Any] = []
    for name in ARCHIVES:
        with tarfile.open(HERE / name) as archive:
            archive.extractall(tmp_path, filter="data")
    for folder in sorted(tmp_path.glob(".edl/local/*/*/journal")):
        journal, replay = Journal.open(folder, holder="a test")
        journal.close()
        assert replay.entries or "local" in folder.parts[-3], folder  # one process has no ledger to keep
        entries += replay.entries
    return entries


def test_every_class_of_entry_is_applied() -> None:
    assert set(ENTRY_HANDLERS) == set(ENTRY_CLASSES.values())


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
def test_a_recorded_entry_is_read_and_written_to_the_byte(path: Path) -> None:
    for entry in json.loads(path.read_text())["entries"]:
        written = JournalEntry.from_json(entry).to_json()
        assert json.dumps(written, sort_keys=True) == json.dumps(entry, sort_keys=True)


def test_an_entry_of_a_recorded_run_is_read_and_written_to_the_byte(tmp_path: Path) -> None:
    for entry in [*entries_of_runs(tmp_path), *({"kind": kind, **UNRECORDED[kind]} for kind in UNRECORDED)]:
        written = JournalEntry.from_json(entry).to_json()
        assert json.dumps(written, sort_keys=True) == json.dumps(entry, sort_keys=True)


def test_an_entry_that_this_version_does_not_know_is_not_gone_on_from() -> None:
    with pytest.raises(KeyError, match="hibernated"):
        JournalEntry.from_json({"kind": "hibernated"})
    with pytest.raises(KeyError, match="through"):
        JournalEntry.from_json({"kind": "progress", "lease": 7})


def test_members_that_a_later_version_added_are_left_out_of_account() -> None:
    entry = {"kind": "progress", "lease": 7, "through": 3}
    assert JournalEntry.from_json({**entry, "weather": "fine"}).to_json() == entry
