"""Decides whether a run can continue with a changed JobSpec: its ledger and checkpoints depend on some of the fields.

Loads specs and, for an ended run, the journal; no arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial

from edl.api.errors import BadInputError
from edl.api.fields import JsonValue
from edl.api.job_spec import JobSpec
from edl.api.status import JobFailure, Status
from edl.jobfile.loader import diff_job_specs, load_job_file
from edl.jobfile.scalar_types import format_value
from edl.jobfile.section_type import from_json
from edl.storage.durable_files import read_json, translate_os_errors
from edl.storage.run_directory import RunDirectory
from edl.storage.segment_chain import list_segments

FieldChange = tuple[str, JsonValue, JsonValue]
"""A field of the spec that changed: its path, the old value, the new value."""

FIXED_FIELDS = (
    "data.training",
    "data.reader",
    "train.minibatch_size",
    "train.minibatches_per_task",
    "train.seed",
    "train.shuffle",
    "model.definition",
    "model.params",
    "model.init_from",
    "strategy.name",
    "strategy.global_batch",
)
"""Fields that must not change: they determine the ranges in the ledger, or the variables in the checkpoints."""


_EXCHANGEABLE_STRATEGIES = (frozenset({"ParameterServer", "AllReduce"}), frozenset({"Local", "AllReduce"}))
"""Strategies with the same ledger, which continue from each other's checkpoints."""


def is_fixed_field(path: str) -> bool:
    """Whether a field must not change between two starts of a run."""
    return any(path == fixed or path.startswith(f"{fixed}.") for fixed in FIXED_FIELDS)


def check_resume_changes(run: RunDirectory, spec: JobSpec) -> Sequence[FieldChange]:
    """The fields of the run's spec that ``spec`` changes.

    Raises:
        BadInputError: it changes a field that the run's ledger or checkpoints depend on.
    """
    return check_spec_changes(run.run_id, load_job_file(run.spec), spec)


def check_spec_changes(run_id: str, old: JobSpec, new: JobSpec) -> Sequence[FieldChange]:
    """The differences between the specs of two starts of a run.

    Raises:
        BadInputError: they include a field that the run's ledger or checkpoints depend on.
    """
    if old.master.prepare or new.master.prepare:
        raise BadInputError(
            f"run {run_id} cannot be resumed: master.prepare wrote its data and a part of its job file",
            hint="Start a new run without --resume.",
        )
    field_changes = diff_job_specs(old, new)
    forbidden_changes = [change for change in field_changes if is_fixed_field(change[0]) and not _is_allowed(change)]
    if forbidden_changes:
        changes_text = "\n".join(f"  {format_change(change)}" for change in forbidden_changes)
        raise BadInputError(
            f"run {run_id} cannot continue with this job file: its ledger belongs to other work\n{changes_text}",
            hint=_refusal_hint(forbidden_changes, old),
        )
    return field_changes


def _refusal_hint(forbidden_changes: Sequence[FieldChange], old: JobSpec) -> str:
    changed_paths = {path for path, *_ in forbidden_changes}
    strategies = [frozenset(values) for path, *values in forbidden_changes if path == "strategy.name"]
    if frozenset({"Local", "ParameterServer"}) in strategies:
        return "Resume with strategy.name: AllReduce first, until it has written a checkpoint; or start a new run."
    if "strategy.global_batch" in changed_paths and old.strategy.global_batch is not None:
        return (
            "With strategy.global_batch the ledger counts single records, so the run can only continue with "
            f"strategy: {{name: {old.strategy.name}, global_batch: {old.strategy.global_batch}}}. "
            "Change that back, or start a new run without --resume."
        )
    return "Change these fields back, or start a new run without --resume."


def _is_allowed(change: FieldChange) -> bool:
    path, *values = change
    return path == "strategy.name" and frozenset(values) in _EXCHANGEABLE_STRATEGIES


def format_change(change: FieldChange) -> str:
    """A change as text for people."""
    path, old, new = change
    return f"{path} was {format_value(old)}, is {format_value(new)}"


def describe_nothing_to_do(status: Status, spec: JobSpec) -> str | None:
    """A message if the run has reached the limits of ``spec`` and would end at once; else None.

    Args:
        status: the run's newest status. Its newest checkpoint may be older.
        spec: the spec with which the run is to continue.
    """
    train = spec.train
    if status.epoch > train.epochs:
        spec_limit, run_progress = f"train.epochs is {train.epochs:,}", f"in epoch {status.epoch:,}"
    elif train.max_steps is not None and status.step >= train.max_steps:
        spec_limit, run_progress = f"train.max_steps is {train.max_steps:,}", f"at step {status.step:,}"
    else:
        return None
    return (
        f"{spec_limit}, and run {status.run} was already {run_progress}: it ends at once, or when it has reached "
        "that point again after a rollback. Nothing is rolled back to the limit, and a run that is done cannot "
        "continue"
    )


def has_journal(run: RunDirectory) -> bool:
    """Whether a master ever made a decision about the run. A run that was only submitted has no work to lose.

    Raises:
        StorageError: its journal cannot be listed.
    """
    return bool(list_segments(run.journal))


def read_status(run: RunDirectory) -> Status | None:
    """The run's newest status; None if it never wrote one."""
    return from_json(Status, read_json(run.status), str(run.status)) if run.status.exists() else None


def read_phase(run: RunDirectory) -> str | None:
    """The phase in the run's status; None if it never wrote one."""
    status = read_status(run)
    return status.phase if status else None


def check_work_is_left(run: RunDirectory, hint: str) -> None:
    """Check that an ended run has something left to do.

    Args:
        run: the run.
        hint: how to start a new run.

    Raises:
        BadInputError: it is done, or only its program failed after the last record: no record would bring a worker,
            and a program cannot tell where it was.
    """
    status = read_status(run)
    if status is None:
        return
    if status.phase == "Done":
        raise BadInputError(f"run {run.run_id} is done", where=str(run.path), hint=hint)
    has_all = 0 < status.records_total == status.records_done
    if status.phase == "Failed" and has_all and load_job_file(run.spec).command and _has_crashed(run):
        raise BadInputError(
            f"run {run.run_id} has done all of its records, and its program failed then: nothing is left to resume",
            where=str(run.path),
            hint=hint,
        )


def _has_crashed(run: RunDirectory) -> bool:
    failure = run.failure
    return failure.exists() and from_json(JobFailure, read_json(failure), str(failure)).kind == "crash"


def reopen_run(run: RunDirectory, holder: str, *, exclusive: bool = True) -> None:
    """Make an ended run continue: its next master reads an entry about it in the journal.

    Strategy Local has neither a master nor a journal.

    Args:
        run: the run.
        holder: name of the holder of the lock, one line of text.
        exclusive: take the journal's lock, which a volume that several nodes mount may not support.

    Raises:
        StorageError: a file cannot be written; the run stays ended.
    """
    from edl.api.journal_entries import JobResumed
    from edl.storage.journal import Journal  # imported here: it takes 30 ms, and only an ended run needs it
    from edl.storage.journal_truncation import check_not_truncated, explain_journal_damage

    # a run that did not end needs no entry: its next master simply continues
    if load_job_file(run.spec).strategy.name != "Local" and read_phase(run) in ("Failed", "Interrupted"):
        with explain_journal_damage(run):
            journal, _ = Journal.open(
                run.journal, holder=holder, exclusive=exclusive, validate_content=partial(check_not_truncated, run)
            )
        with closing(journal):
            journal.wait_until_durable(journal.append(JobResumed().to_json()))
    with translate_os_errors(run.path, "remove the files about the end"):
        # last: after a crash before this, resuming can be repeated
        for file in (run.failure_details, run.failure, run.summary):
            file.unlink(missing_ok=True)
