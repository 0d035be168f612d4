"""Which run of this machine is meant by ``--resume``, and may it go on?"""

from __future__ import annotations

import os
from pathlib import Path

from edl.api.errors import BadInputError
from edl.core.saved_checkpoint import Checkpoint
from edl.storage import checkpoint_verification, run_resumption
from edl.storage.checkpoint_restart import explained
from edl.storage.journal_replay import replay
from edl.storage.journal_truncation import check_end, stands_in
from edl.storage.run_directory import RunDir, resolve, runs
from edl.storage.run_resumption import FIXED, begun, differences, is_fixed, nothing_left, phase_of, status_of

__all__ = [
    "FIXED",
    "PREDICT_FILE",
    "differences",
    "find",
    "goes_on_from",
    "is_fixed",
    "nothing_left",
    "phase_of",
    "reopen",
    "status_of",
    "training_runs",
]

PREDICT_FILE = "predict.json"
"""Marks a run that predicts: it is started anew instead of resumed."""


def training_runs(job_dir: Path) -> list[RunDir]:
    """The job's runs that train, oldest first."""
    return [run for run in runs(job_dir) if not (run.path / PREDICT_FILE).exists()]


def find(job_dir: Path, run_id: str | None) -> RunDir:
    """The run to go on with: ``run_id``, or the newest that trains.

    Raises:
        BadInputError: there is none, it is done, or it predicts.
    """
    training = training_runs(job_dir)
    run = training[-1] if run_id is None and training else resolve(job_dir, run_id)
    if run not in training:
        raise BadInputError(f"run {run.run_id} predicts; it is not resumed", hint="Call edl predict once more.")
    if phase_of(run) == "Done":
        raise BadInputError(
            f"run {run.run_id} is done",
            where=str(run.path),
            hint="A run that is done cannot be given more epochs. edl run without --resume starts anew.",
        )
    return run


def goes_on_from(run: RunDir) -> Checkpoint | None:
    """The checkpoint that a resumed run begins with; None: it has none, and begins with its start.

    A master goes on from the one that its journal names, which another may stand in for when its bytes were damaged.
    Strategy Local has no journal and takes the newest that is intact.

    Raises:
        StorageError: the journal is damaged or lost its end, or the checkpoints cannot be read.
    """
    if begun(run):
        return _journaled(run)
    found = checkpoint_verification.newest(run.checkpoints)
    return Checkpoint(found.cut, found.step, found.version, found.ledger) if found else None


def _journaled(run: RunDir) -> Checkpoint | None:
    with explained(run):
        found = check_end(run, replay(run.journal)).checkpoint
    return found and stands_in(run, found)


def reopen(run: RunDir) -> None:
    """Make an ended run one that goes on.

    Raises:
        StorageError: a file cannot be written; the run stays ended.
    """
    run_resumption.reopen(run, f"edl run, process {os.getpid()}")
