"""A journal that is shorter than it was, beside the checkpoints that it had named."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edl.api.errors import StorageError
from edl.api.journal_entries import JournalEntry
from edl.core.cuts import SavedCheckpoint
from edl.core.job import JobStateMachine
from edl.core.journal_application import apply_entry
from edl.core.state import JobSettings
from edl.storage.checkpoint_manifest import MANIFEST_NAME, CheckpointManifest, cut_directory
from edl.storage.durable_files import write_json
from edl.storage.journal import Journal
from edl.storage.journal_reader import JournalDamagedError, read_journal
from edl.storage.journal_truncation import JournaledCuts, check_not_truncated, usable_checkpoint
from edl.storage.run_directory import RunDirectory, make_run_directory

LEDGER = {"done_steps": 0}


def announced(cut: int) -> dict[str, Any]:
    return {"kind": "cut_announced", "cut": cut, "step": cut}


def saved(cut: int, kind: str = "saved") -> dict[str, Any]:
    return {"kind": kind, "cut": cut, "step": cut, "version": 0, "ledger": LEDGER}


def run_with(folder: Path, entries: list[Mapping[str, Any]], *complete: int, begun: int | None = None) -> RunDirectory:
    """A run of which the journal has these entries, with these checkpoints, and one that was begun."""
    run = RunDirectory(folder / "r1")
    make_run_directory(run)
    journal, _ = Journal.open(run.journal, holder="the test")
    for entry in entries:
        journal.append(entry)
    journal.close()
    for cut in complete:
        directory = cut_directory(run.checkpoints, cut)
        directory.mkdir(parents=True)
        write_json(directory / MANIFEST_NAME, CheckpointManifest(cut, 0, "", (), LEDGER).to_json())
    if begun is not None:
        cut_directory(run.checkpoints, begun).mkdir(parents=True)
    return run


def check(run: RunDirectory) -> JournaledCuts:
    return check_not_truncated(run, read_journal(run.journal))


ENTRIES = [announced(1), saved(1), announced(2), saved(2), announced(3)]


@pytest.mark.parametrize(
    ("complete", "begun"),
    [
        pytest.param((1, 2), None, id="a cut was announced"),
        pytest.param((1, 2), 3, id="its files were begun"),
        pytest.param((2, 3), None, id="its manifest was written, and nobody heard of it"),
        pytest.param((1,), None, id="the newest is gone, an older one stands in"),
    ],
)
def test_what_a_lost_master_leaves_is_no_lost_end(tmp_path: Path, complete: tuple[int, ...], begun: int | None) -> None:
    known = check(run_with(tmp_path, ENTRIES, *complete, begun=begun))
    assert known == JournaledCuts(SavedCheckpoint(2, 2, 0, LEDGER), 3)


def test_a_run_without_checkpoints_has_lost_nothing(tmp_path: Path) -> None:
    assert check(run_with(tmp_path, [])) == JournaledCuts(None, 0)
    assert check(run_with(tmp_path / "announced", [announced(1)], begun=1)) == JournaledCuts(None, 1)


@pytest.mark.parametrize("begun", [4, None])
def test_checkpoints_that_were_never_announced_prove_that_the_end_is_lost(tmp_path: Path, begun: int | None) -> None:
    run = run_with(tmp_path, ENTRIES, *((1, 2) if begun else (2, 4, 5)), begun=begun)
    with pytest.raises(JournalDamagedError, match=rf"checkpoint after 3\b.*\b{begun or 5}\b"):
        check(run)
    with pytest.raises(JournalDamagedError, match=r"journal.*no checkpoint.*\b1\b"):
        check(run_with(tmp_path / "empty", [], 1))


def test_a_checkpoint_that_was_pruned_proves_it_too(tmp_path: Path) -> None:
    with pytest.raises(JournalDamagedError, match=r"checkpoint 2\b.*\b3\b"):
        check(run_with(tmp_path, ENTRIES, 3))


def test_a_run_whose_checkpoints_are_all_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"checkpoint 2\b"):
        check(run_with(tmp_path, ENTRIES, begun=2))


def test_the_newest_may_be_an_older_one_or_a_copy(tmp_path: Path) -> None:
    back = run_with(tmp_path / "back", [*ENTRIES, saved(1, "checkpoint_back")], 1)
    assert check(back).checkpoint == SavedCheckpoint(1, 1, 0, LEDGER)
    copied = run_with(tmp_path / "copied", [*ENTRIES, saved(3, "best_restored")], 2, 3)
    assert check(copied).checkpoint == SavedCheckpoint(3, 3, 0, LEDGER)


def test_a_journal_that_lost_its_end_is_not_written_to(tmp_path: Path) -> None:
    """Whoever brings the whole file back finds no newer segment that makes its end void."""
    run = run_with(tmp_path, ENTRIES, 4)
    before = sorted(path.name for path in run.journal.iterdir())
    with pytest.raises(JournalDamagedError):
        Journal.open(run.journal, holder="the next master", validate_content=partial(check_not_truncated, run))
    assert sorted(path.name for path in run.journal.iterdir()) == before


def test_a_compacted_journal_knows_as_much(tmp_path: Path) -> None:
    state = JobStateMachine(JobSettings(minibatch=4, task_records=8))
    for entry in ENTRIES:
        apply_entry(state, JournalEntry.from_json(entry))
    run = run_with(tmp_path, [], 2)
    journal, _ = Journal.open(run.journal, holder="the test")
    journal.compact(state.to_snapshot())
    journal.close()
    assert check(run) == JournaledCuts(SavedCheckpoint(2, 2, 0, LEDGER), 3)


def test_no_cut_without_a_manifest_is_named(tmp_path: Path) -> None:
    run = run_with(tmp_path, ENTRIES, 1, begun=2)
    assert usable_checkpoint(run, SavedCheckpoint(2, 2, 0, LEDGER)).cut == 1
    assert usable_checkpoint(run, SavedCheckpoint(1, 1, 0, LEDGER)).cut == 1
