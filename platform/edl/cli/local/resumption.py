"""Which run of this machine is meant by ``--resume``, and may it go on?"""

from __future__ import annotations

import os
from pathlib import Path

from edl.core.errors import BadInputError
from edl.store import resumption
from edl.store.manifest import Manifest, cut_directory, cuts_in, load_manifest
from edl.store.resumption import FIXED, differences, is_fixed, nothing_left, phase_of, status_of
from edl.store.rundir import RunDir, resolve, runs

__all__ = [
    "FIXED",
    "PREDICT_FILE",
    "differences",
    "find",
    "is_fixed",
    "newest_checkpoint",
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
            f"run {run.run_id} is done", where=str(run.path), hint="edl run without --resume starts anew."
        )
    return run


def newest_checkpoint(run: RunDir) -> Manifest | None:
    """The newest that is complete, as far as its manifest says; None: the run has none."""
    for cut in reversed(cuts_in(run.checkpoints)):
        found = load_manifest(cut_directory(run.checkpoints, cut))
        if isinstance(found, Manifest):
            return found
    return None


def reopen(run: RunDir) -> None:
    """Make an ended run one that goes on.

    Raises:
        StorageError: a file cannot be written; the run stays ended.
    """
    resumption.reopen(run, f"edl run, process {os.getpid()}")
