"""Which run is meant by a word of the command line, and which of its checkpoints."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from edl.api.errors import BadInputError
from edl.ops import local_run_files
from edl.storage.checkpoint_manifest import MANIFEST_NAME, list_cuts
from edl.storage.run_directory import RunDirectory, find_run, list_numbered_runs, list_submitted_runs

_CUT = re.compile(r"cut-0*([0-9]+)")
_JOB_FILES = (".yaml", ".yml", ".json")
_LOCATION_HINT = (
    "Name a job of this folder's .edl, a job file, or the path of a run. The runs of a job on a cluster are on its "
    "volume: name the run's folder where the volume is mounted, or copy it with edl data cp."
)


@dataclass(frozen=True, slots=True)
class CheckpointLocation:
    """Where checkpoints are.

    Attributes:
        directory: the folder of the cuts.
        name: of the run, for people.
        cut: the one that was named; None for all.
    """

    directory: Path
    name: str
    cut: int | None = None


def find_checkpoints(word: str) -> CheckpointLocation:
    """The place that the user means.

    Args:
        word: a job's name or ``JOB/RUN`` below ``.edl``, a job file, or the path of a job's folder, of a run, of its
            ``checkpoints`` or of one checkpoint.

    Raises:
        BadInputError: there is nothing like that.
    """
    path = _resolve_word(word)
    if path.is_dir():
        return _location_in_folder(Path(os.path.abspath(path)))
    if path.is_file():
        return _location_of_file(path)
    if path.parent.is_dir() and path.suffix not in _JOB_FILES and list_numbered_runs(path.parent):
        find_run(path.parent, path.name)  # raises: the job is there, this run is not
    raise BadInputError(
        "there is no such job here, and no such folder", where=word, hint=_known_jobs_hint() or _LOCATION_HINT
    )


def _resolve_word(word: str) -> Path:
    """The folder of a job or of a run below ``.edl``, if the word is about one."""
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
    found = [run for run in list_numbered_runs(path) or list_submitted_runs(path) if run.checkpoints.is_dir()]
    if not found and (path / MANIFEST_NAME).is_file():
        hint = "Rename it: a checkpoint is called cut- and its number in eight digits, such as cut-00000004."
        raise BadInputError("is a checkpoint that has lost its name", where=str(path), hint=hint)
    if not found:
        raise BadInputError("is no run of a job, and holds none", where=str(path), hint=_LOCATION_HINT)
    run = next((run for run in reversed(found) if list_cuts(run.checkpoints)), found[-1])
    return CheckpointLocation(run.checkpoints, _run_name(run.path))


def _location_of_file(path: Path) -> CheckpointLocation:
    if path.name == MANIFEST_NAME or path.suffix == ".safetensors":
        raise BadInputError("is one file of a checkpoint", where=str(path), hint=f"Name its folder: {path.parent}")
    if path.suffix not in _JOB_FILES:
        raise BadInputError("is neither a run's folder nor a job file", where=str(path), hint=_LOCATION_HINT)
    from edl.jobfile.loader import load_job_file
    from edl.jobfile.path_resolution import resolve_local_paths
    from edl.ops.local_run_start import local_job_directory

    folder = local_job_directory(resolve_local_paths(load_job_file(path), path.parent))
    if not folder.is_dir():
        raise BadInputError("this job has no run yet", where=str(folder), hint=f"Start one: edl run {path}")
    return _location_in_folder(folder)


def _owner_name(checkpoints: Path) -> str:
    """What a folder of checkpoints belongs to: only one called ``checkpoints`` can be a run's, others hold copies."""
    return _run_name(checkpoints.parent) if checkpoints.name == "checkpoints" else str(checkpoints)


def _run_name(run: Path) -> str:
    """``run r3 of mnist``, if that is what it is."""
    path = RunDirectory(run)
    return f"run {path.run_id} of {path.job_dir.name}" if (run / "spec.json").exists() else str(run)


def _known_jobs_hint() -> str:
    """The jobs of this folder's ``.edl``."""
    names = local_run_files.local_job_names()
    return f"Jobs of {local_run_files.local_jobs_folder()}: {', '.join(names)}." if names else ""
