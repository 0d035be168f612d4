"""Finds the run that a command-line argument names, and one of its checkpoints."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from edl.api.errors import BadInputError, StorageError
from edl.jobfile.path_resolution import JOB_FILE_SUFFIXES, resolve_local_paths
from edl.ops import local_run_files
from edl.reporting.text_table import align_columns
from edl.reporting.unit_formats import format_age, format_bytes
from edl.storage.checkpoint_manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    SkippedCheckpoint,
    check_shard_bytes,
    check_shard_size,
    cut_directory,
    list_cuts,
    load_manifest,
    newest_intact_checkpoint,
    verify_checkpoint,
)
from edl.storage.run_directory import RunDirectory, find_run, list_numbered_runs, list_submitted_runs

_CUT = re.compile(r"cut-0*([0-9]+)")
_LOCATION_HINT = (
    "Give a job of ./.edl, a job file, or the path of a run. The runs of a job on a cluster are on its volume: give "
    "the path of the run on the mounted volume, or copy the run with edl data cp."
)


@dataclass(frozen=True, slots=True)
class CheckpointLocation:
    """A folder of checkpoints.

    Attributes:
        directory: contains one folder per cut.
        name: name of the run, for messages.
        cut: number of the cut that the argument names; None for all.
    """

    directory: Path
    name: str
    cut: int | None = None


def find_checkpoints(word: str) -> CheckpointLocation:
    """The checkpoints that ``word`` names.

    Args:
        word: a job's name or ``JOB/RUN`` below ``.edl``, a job file, or the path of a job's folder,
            of a run, of its ``checkpoints`` or of one checkpoint.

    Raises:
        BadInputError: no job, run or checkpoint has this name.
    """
    path = _resolve_word(word)
    if path.is_dir():
        return _location_in_folder(Path(os.path.abspath(path)))
    if path.is_file():
        return _location_of_file(path)
    if path.parent.is_dir() and path.suffix not in JOB_FILE_SUFFIXES and list_numbered_runs(path.parent):
        find_run(path.parent, path.name)  # raises: the job exists, this run does not
    raise BadInputError(
        "no job of ./.edl and no directory has this name", where=word, hint=_known_jobs_hint() or _LOCATION_HINT
    )


def _resolve_word(word: str) -> Path:
    """The folder of a job or of a run below ``.edl``, if ``word`` names one; otherwise ``word`` as
    a path.
    """
    job, _, run = word.partition("/")
    of_job = job in local_run_files.local_job_names() and "/" not in run
    named = local_run_files.local_jobs_folder() / word
    return named if of_job and (named.is_dir() or not Path(word).exists()) else Path(word)


def _location_in_folder(path: Path) -> CheckpointLocation:
    if match := _CUT.fullmatch(path.name):
        return CheckpointLocation(path.parent, _owner_name(path.parent), int(match[1]))
    if path.name == "checkpoints" or list_cuts(path):
        return CheckpointLocation(path, _owner_name(path))
    if (path / "checkpoints").is_dir():
        return CheckpointLocation(path / "checkpoints", _run_name(path))
    runs = [run for run in list_numbered_runs(path) or list_submitted_runs(path) if run.checkpoints.is_dir()]
    if not runs and (path / MANIFEST_NAME).is_file():
        hint = "Rename it to cut- and the checkpoint's number in eight digits, such as cut-00000004."
        raise BadInputError("is a checkpoint whose directory was renamed", where=str(path), hint=hint)
    if not runs:
        raise BadInputError("is not a run directory and contains none", where=str(path), hint=_LOCATION_HINT)
    run = next((run for run in reversed(runs) if list_cuts(run.checkpoints)), runs[-1])
    return CheckpointLocation(run.checkpoints, _run_name(run.path))


def _location_of_file(path: Path) -> CheckpointLocation:
    if path.name == MANIFEST_NAME or path.suffix == ".safetensors":
        raise BadInputError("is one file of a checkpoint", where=str(path), hint=f"Give its directory: {path.parent}")
    if path.suffix not in JOB_FILE_SUFFIXES:
        raise BadInputError("is neither a run directory nor a job file", where=str(path), hint=_LOCATION_HINT)
    from edl.jobfile.loader import load_job_file
    from edl.ops.local_run_start import local_job_directory

    folder = local_job_directory(resolve_local_paths(load_job_file(path), path.parent))
    if not folder.is_dir():
        raise BadInputError("this job has no run yet", where=str(folder), hint=f"Start one: edl run {path}")
    return _location_in_folder(folder)


def _owner_name(checkpoints: Path) -> str:
    """The name to show for a folder of checkpoints.

    Only ``checkpoints`` belongs to a run; other folders are copies.
    """
    return _run_name(checkpoints.parent) if checkpoints.name == "checkpoints" else str(checkpoints)


def _run_name(run: Path) -> str:
    """``run r3 of mnist``, or the path if ``run`` is not a run directory."""
    path = RunDirectory(run)
    return f"run {path.run_id} of {path.job_dir.name}" if (run / "spec.json").exists() else str(run)


def _known_jobs_hint() -> str:
    names = local_run_files.local_job_names()
    return f"Jobs of {local_run_files.local_jobs_folder()}: {', '.join(names)}." if names else ""


# --------------------------------------------------------------------------------------------------
# Choosing the checkpoint to read: the requested one or the newest, and only if it is intact.


@contextmanager
def storage_errors_as_bad_input() -> Iterator[None]:
    """Report damaged checkpoint files as bad input: the user named them, so the command exits with
    2.

    Raises:
        BadInputError: instead of a StorageError.
    """
    try:
        yield
    except StorageError as error:
        hint = error.hint or "edl checkpoint ls --verify shows which checkpoints of the run are intact."
        raise BadInputError(error.message, where=error.where, hint=hint) from error


def choose_checkpoint(
    location: CheckpointLocation, number: int | None, skipped: list[SkippedCheckpoint]
) -> CheckpointManifest:
    """The intact checkpoint ``number``, or the one that the location names, or the newest.

    Args:
        location: the checkpoints.
        number: number of the checkpoint; None for the newest.
        skipped: receives the newer checkpoints that cannot be used, when ``number`` is None.

    Raises:
        BadInputError: the checkpoint does not exist or cannot be used; the hint names one that can.
    """
    cut = location.cut if number is None else number
    with storage_errors_as_bad_input():
        if cut is not None:
            return _require_intact(location, cut)
        manifest = newest_intact_checkpoint(location.directory, skipped.append)
    if manifest is not None:
        return manifest
    if not skipped:
        hint = "A run writes one when it starts, and every checkpoint.every_steps steps."
        raise BadInputError(f"{location.name} has no checkpoint", where=str(location.directory), hint=hint)
    reasons = "\n  ".join(f"checkpoint {each.cut}: {each.reason}" for each in skipped)
    raise BadInputError(
        f"{location.name} has no usable checkpoint\n  {reasons}",
        where=str(location.directory),
        hint="Copy the run from a backup of its volume, or start a new run.",
    )


def _require_intact(location: CheckpointLocation, number: int) -> CheckpointManifest:
    directory = cut_directory(location.directory, number)
    if not directory.is_dir():
        known = ", ".join(map(str, list_cuts(location.directory)))
        hint = f"Its checkpoints are: {known}." if known else "It has none."
        raise BadInputError(f"{location.name} has no checkpoint {number}", where=str(location.directory), hint=hint)
    manifest = load_manifest(directory)
    reason = manifest.reason if isinstance(manifest, SkippedCheckpoint) else verify_checkpoint(directory, manifest)
    if isinstance(manifest, CheckpointManifest) and reason is None:
        return manifest
    raise BadInputError(f"cannot be used: {reason}", where=str(directory), hint=_suggest_intact(location, number))


def _suggest_intact(location: CheckpointLocation, number: int) -> str:
    other = newest_intact_checkpoint(location.directory)
    if other is None:
        return f"No other checkpoint of {location.name} is intact."
    return f"Checkpoint {other.cut} is the newest intact one: --checkpoint {other.cut}."


# --------------------------------------------------------------------------------------------------
# The list of a run's checkpoints, as a table and as JSON.


_RIGHT_ALIGNED = (0, 1, 2, 3, 4, 5)


@dataclass(frozen=True, slots=True)
class ListedCheckpoint:
    """One row of `edl checkpoint ls`.

    Attributes:
        cut: its number.
        directory: the folder of its files.
        state: ``intact`` (every byte was verified), ``complete`` (all files exist and have their
            size), ``unfinished`` or ``damaged``.
        problem: why it cannot be used; empty if it can.
        manifest: None if the manifest cannot be read.
    """

    cut: int
    directory: Path
    state: str
    problem: str = ""
    manifest: CheckpointManifest | None = None

    @property
    def is_usable(self) -> bool:
        """Whether no problem is known.

        Without ``read_all_bytes``, a damaged shard of the right size is not noticed.
        """
        return not self.problem

    @property
    def size_bytes(self) -> int | None:
        """Bytes of its shards."""
        return None if self.manifest is None else sum(shard.size for shard in self.manifest.shards)

    def ledger_number(self, *names: str) -> int | None:
        """A number of the ledger, by the first of these names that exists.

        Older versions used other names.
        """
        ledger = self.manifest.ledger if self.manifest else None
        number = next((ledger[name] for name in names if name in ledger), None) if isinstance(ledger, dict) else None
        return number if isinstance(number, int) else None

    @property
    def step(self) -> int | None:
        """The step at which the checkpoint was taken."""
        return self.manifest.step if self.manifest else None

    @property
    def record_count(self) -> int | None:
        """Records that were trained when the checkpoint was taken."""
        return self.ledger_number("done_records", "records_done")

    @property
    def created_at(self) -> float | None:
        """Unix seconds."""
        return parse_created(self.manifest.created) if self.manifest else None

    def to_json(self) -> dict[str, Any]:
        return {
            "checkpoint": self.cut,
            "step": self.step,
            "records": self.record_count,
            "size": self.size_bytes,
            "shards": len(self.manifest.shards) if self.manifest else None,
            "created": self.manifest.created if self.manifest else None,
            "state": self.state,
            "problem": self.problem or None,
            "path": str(self.directory),
        }


def list_checkpoints(directory: Path, *, read_all_bytes: bool) -> list[ListedCheckpoint]:
    """The checkpoints in ``directory``, oldest first.

    Args:
        directory: a run's ``checkpoints``.
        read_all_bytes: verify every byte; otherwise only manifests and file sizes.

    Raises:
        StorageError: the folder cannot be read.
    """
    return [_list_checkpoint(directory, cut, read_all_bytes=read_all_bytes) for cut in list_cuts(directory)]


def newest_usable(checkpoints: Sequence[ListedCheckpoint]) -> ListedCheckpoint | None:
    """The newest checkpoint without a known problem."""
    return next((each for each in reversed(checkpoints) if each.is_usable), None)


def checkpoint_table(checkpoints: Sequence[ListedCheckpoint], now: float) -> list[str]:
    """The table's lines, with a header; the newest usable checkpoint is marked."""
    best = newest_usable(checkpoints)
    head = ["CHECKPOINT", "STEP", "RECORDS", "SIZE", "SHARDS", "AGE", "STATE"]
    return align_columns(
        [head, *(_checkpoint_row(each, now, newest=each is best) for each in checkpoints)], right=_RIGHT_ALIGNED
    )


def parse_created(created: str) -> float | None:
    """A manifest's ``created`` as unix seconds; None if it cannot be parsed."""
    try:
        return datetime.fromisoformat(created).timestamp()
    except (ValueError, TypeError):
        return None


def _list_checkpoint(checkpoints: Path, cut: int, *, read_all_bytes: bool) -> ListedCheckpoint:
    directory = cut_directory(checkpoints, cut)
    try:
        manifest = load_manifest(directory)
    except StorageError as error:  # written by another version, or unreadable
        return ListedCheckpoint(cut, directory, "damaged", error.message)
    if isinstance(manifest, SkippedCheckpoint):
        if (directory / MANIFEST_NAME).exists():
            return ListedCheckpoint(cut, directory, "damaged", manifest.reason)
        # The manifest is written last: it commits the cut.
        return ListedCheckpoint(
            cut, directory, "unfinished", "it has no manifest: it is being written, or was never completed"
        )
    problem = verify_checkpoint(directory, manifest, check_shard_bytes if read_all_bytes else check_shard_size)
    if problem:
        return ListedCheckpoint(cut, directory, "damaged", problem, manifest)
    return ListedCheckpoint(cut, directory, "intact" if read_all_bytes else "complete", manifest=manifest)


def _checkpoint_row(each: ListedCheckpoint, now: float, *, newest: bool) -> list[str]:
    counts = [f"{value:,}" if value is not None else "-" for value in (each.step, each.record_count)]
    size = "-" if each.size_bytes is None else format_bytes(each.size_bytes)
    shards = str(len(each.manifest.shards)) if each.manifest else "-"
    how_old = "-" if each.created_at is None else format_age(now - each.created_at)
    state = f"{each.state}: {each.problem}" if each.problem else each.state
    return [str(each.cut), *counts, size, shards, how_old, f"{state}, newest usable" if newest else state]
