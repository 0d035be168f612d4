"""May a run go on with this job file? Its ledger and checkpoints mean something only for the records they are about."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from edl.cli.plan import Change
from edl.core.errors import BadInputError
from edl.spec.job import JobSpec
from edl.spec.load import changes, load
from edl.spec.status import Status
from edl.store.durable import translated
from edl.store.rundir import RunDir, read_json, resolve, runs

FIXED = (
    "data.training",
    "data.reader",
    "train.minibatch_size",
    "train.minibatches_per_task",
    "train.seed",
    "model.definition",
    "model.params",
    "strategy.name",
)
"""Fields that may not change: the ledger counts tasks cut by them, the checkpoints hold variables made by them."""


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


def phase_of(run: RunDir) -> str | None:
    """The phase in the run's status; None when it never wrote one."""
    return Status.from_json(read_json(run.status), str(run.status)).phase if run.status.exists() else None


def differences(run: RunDir, spec: JobSpec) -> Sequence[Change]:
    """What ``spec`` changes about the run.

    Raises:
        BadInputError: it changes what the run's ledger or checkpoints are built on.
    """
    found = changes(load(run.spec), spec)
    wrong = [change for change in found if is_fixed(change[0])]
    if wrong:
        told = "\n".join(f"  {path} was {old}, is {new}" for path, old, new in wrong)
        raise BadInputError(
            f"run {run.run_id} cannot go on with this job file: its ledger is about other work\n{told}",
            hint="Change these fields back, or start a new run without --resume.",
        )
    return found


def is_fixed(path: str) -> bool:
    """Whether a field may not change between two starts of a run."""
    return any(path == fixed or path.startswith(f"{fixed}.") for fixed in FIXED)


def reopen(run: RunDir) -> None:
    """Make an ended run one that goes on: its next master reads so in the journal (strategy Local has neither).

    Raises:
        StorageError: a file cannot be written; the run stays ended.
    """
    from edl.store.journal import Journal  # 10 ms that only an ended run needs

    if load(run.spec).strategy.name != "Local" and phase_of(run) in ("Failed", "Interrupted"):
        with closing(Journal.open(run.journal, holder=f"edl run, process {os.getpid()}")[0]) as journal:
            journal.wait(journal.append({"kind": "resumed"}))
    with translated(run.path, "remove what told of the end"):
        for name in ("failure.txt", "failure.json", "summary.json"):
            (run.path / name).unlink(missing_ok=True)
