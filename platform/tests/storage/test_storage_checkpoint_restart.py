"""A journal is begun again from the newest intact checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.text_keys import missing_keys

from edl.api.errors import BadInputError, StorageError
from edl.core.job import JobStateMachine
from edl.core.state import JobSettings
from edl.storage.checkpoint_manifest import DATASET_KEY, CheckpointManifest, commit_checkpoint, cut_directory
from edl.storage.journal import Journal
from edl.storage.journal_reader import read_journal
from edl.storage.journal_truncation import explain_journal_damage, plan_restart, restart_journal
from edl.storage.run_directory import RunDirectory, make_run_directory

SETTINGS = JobSettings(minibatch=4, task_records=16)
ROWS = [["a", 64]]


def position(done: int) -> dict[str, object]:
    """The ledger after ``done`` tasks."""
    return {
        "epoch": 0,
        "index": done,
        "returned": [],
        "leases": [],
        "done_records": 16 * done,
        "done_steps": 4 * done,
        "quarantined": [],
    }


def run_with(folder: Path, *done: int, dataset: bool = True) -> RunDirectory:
    """A run with a damaged journal and checkpoints 2, 3 ... after so many tasks."""
    run = RunDirectory(folder / "r1")
    make_run_directory(run)
    journal, _ = Journal.open(run.journal, holder="the test")
    for lease in range(20):  # each durable before the next: a bad one amid them is damage, and no torn tail
        journal.wait_until_durable(journal.append({"kind": "progress", "lease": lease, "through": 1}))
    journal.close()
    (segment,) = run.journal.glob("*.edlj")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    for cut, tasks in enumerate(done, start=2):
        directory = cut_directory(run.checkpoints, cut)
        directory.mkdir(parents=True)
        ledger = {**position(tasks), **({DATASET_KEY: {"training": ROWS, "validation": []}} if dataset else {})}
        commit_checkpoint(directory, CheckpointManifest(cut, 10 * cut, "now", (), ledger))
    return run


def state_of(run: RunDirectory) -> JobStateMachine:
    journal_content, state = read_journal(run.journal), JobStateMachine(SETTINGS)
    state.replay_journal(journal_content.snapshot, list(journal_content.entries))
    return state


def test_the_new_journal_is_the_job_at_its_checkpoint(tmp_path: Path) -> None:
    run = run_with(tmp_path, 1, 3)
    (run.logs / "worker-7.log").touch()
    (run.checkpoints / "cut-00000009").mkdir()  # an unfinished one has used its number
    with pytest.raises(StorageError, match="damaged"):
        read_journal(run.journal)

    planned = plan_restart(run)
    aside = restart_journal(planned, "the test")

    state = state_of(run)
    assert (planned.checkpoint.cut, planned.step) == (3, 12)
    assert state.checkpoint is not None
    assert (state.checkpoint.cut, state.step, state.cut_number) == (3, 12, 9)
    assert state.pods.next_worker_index == 8
    assert state.training_ledger is not None
    assert state.training_ledger.count_remaining_records() == 16
    assert [path.name for path in aside.iterdir()] == ["000001-000001.edlj"]
    assert [path.name for path in run.journal.glob("*.edlj")] == ["000002-000001.edlj"]
    journal, _ = Journal.open(run.journal, holder="the next master")
    journal.close()
    assert journal.incarnation == 3, "lease numbers and messages of earlier masters must not come again"


def test_doing_it_again_gives_the_same(tmp_path: Path) -> None:
    """A container that was killed between this and its marker begins once more."""
    run = run_with(tmp_path, 2)
    for _ in range(2):
        restart_journal(plan_restart(run), "the test")
        assert state_of(run).step == 8


def test_what_is_lost_is_said_before(tmp_path: Path) -> None:
    run = run_with(tmp_path, 1, 2)
    manifest = cut_directory(run.checkpoints, 3) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 31}))

    losses = "\n".join(plan_restart(run).describe_losses())

    assert not missing_keys(losses, "checkpoint 2", "step 4", "checkpoint 3")


def test_who_opens_a_damaged_journal_hears_what_going_back_costs(tmp_path: Path) -> None:
    for tasks, costs in (((1, 2), ("checkpoint 3", "step 8", "0 records")), ((), ("no intact checkpoint",))):
        run = run_with(tmp_path / costs[0], *tasks)
        with pytest.raises(StorageError, match="journal") as damaged, explain_journal_damage(run):
            Journal.open(run.journal, holder="the next master")
        assert not missing_keys(str(damaged.value), "--from-checkpoint", *costs)


def test_without_a_checkpoint_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no intact checkpoint"):
        plan_restart(run_with(tmp_path))
    with pytest.raises(BadInputError, match="data set"):
        plan_restart(run_with(tmp_path / "old", 1, dataset=False))
