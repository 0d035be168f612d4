"""Finds the local run that ``--resume`` names, and checks whether it can be resumed."""

from __future__ import annotations

import os
from pathlib import Path

from edl.api.errors import BadInputError
from edl.core.cuts import SavedCheckpoint
from edl.storage import run_resumption
from edl.storage.checkpoint_manifest import SkippedCheckpoint, newest_intact_checkpoint
from edl.storage.journal_reader import read_journal
from edl.storage.journal_truncation import (
    JournaledCuts,
    check_not_truncated,
    explain_journal_damage,
    usable_checkpoint,
)
from edl.storage.run_directory import RunDirectory, find_run
from edl.storage.run_resumption import (
    check_work_is_left,
    has_journal,
)
from edl.storage.weights_lookup import read_task, training_runs


def find_resumable_run(job_dir: Path, run_id: str | None) -> RunDirectory:
    """The run to resume: ``run_id``, or the newest that trains.

    Raises:
        BadInputError: there is no such run, or it is done, or it evaluates or predicts.
    """
    training = training_runs(job_dir)
    run = training[-1] if run_id is None and training else find_run(job_dir, run_id)
    if run not in training:
        what, verb = ("a prediction", "predict") if read_task(run) == "predict" else ("an evaluation", "evaluate")
        raise BadInputError(f"run {run.run_id} is {what}, which cannot be resumed", hint=f"Run edl {verb} again.")
    check_work_is_left(run, "A run that is done cannot train more epochs. edl run without --resume starts a new run.")
    return run


def resume_checkpoint(run: RunDirectory) -> SavedCheckpoint | None:
    """The checkpoint from which a resumed run begins; None: it has none and begins anew.

    A master continues from the checkpoint that its journal names, or from a replacement if that one
    is damaged. Strategy Local has no journal and uses the newest intact checkpoint.

    Raises:
        StorageError: the journal is damaged or incomplete, or the checkpoints cannot be read.
    """
    if has_journal(run):
        return _journal_checkpoint(run)
    newest = newest_intact_checkpoint(run.checkpoints)
    return SavedCheckpoint(newest.cut, newest.step, newest.version, newest.ledger) if newest else None


def _journal_checkpoint(run: RunDirectory) -> SavedCheckpoint | None:
    with explain_journal_damage(run):
        recorded = check_not_truncated(run, read_journal(run.journal)).checkpoint
    return recorded and usable_checkpoint(run, recorded)


def check_checkpoints(run: RunDirectory) -> None:
    """Check that a run which continues from a checkpoint has an intact one. Reads every byte of the newest.

    Raises:
        BadInputError: it has none; the message says of each why it cannot be used.
        StorageError: the journal is damaged, or the checkpoints cannot be read.
    """
    if not has_journal(run):
        return
    with explain_journal_damage(run):
        named = JournaledCuts.from_content(read_journal(run.journal)).checkpoint
    skipped: list[SkippedCheckpoint] = []
    if named is None or newest_intact_checkpoint(run.checkpoints, skipped.append) is not None:
        return
    reasons = "".join(f"\n  checkpoint {one.cut} cannot be used: {one.reason}" for one in skipped)
    raise BadInputError(
        f"run {run.run_id} must continue from checkpoint {named.cut}, but no checkpoint is intact{reasons}",
        where=str(run.checkpoints),
        hint="Restore the files from a backup, or start a new run, without --resume.",
    )


def reopen_run(run: RunDirectory) -> None:
    """Reopen an ended run.

    Raises:
        StorageError: a file cannot be written. The run stays ended.
    """
    run_resumption.reopen_run(run, f"edl run, process {os.getpid()}")
