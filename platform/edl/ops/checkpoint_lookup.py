"""Which run is meant by a word of the command line, and which of its checkpoints."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from edl.api.errors import BadInputError
from edl.ops import local_run_files
from edl.storage.checkpoint_manifest import MANIFEST, cuts_in
from edl.storage.run_directory import RunDir, resolve, runs, submitted

_CUT = re.compile(r"cut-0*([0-9]+)")
_JOB_FILES = (".yaml", ".yml", ".json")
_OTHER_PLACES = (
    "Name a job of this folder's .edl, a job file, or the path of a run. The runs of a job on a cluster are on its "
    "volume: name the run's folder where the volume is mounted, or copy it with edl data cp."
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where checkpoints are.

    Attributes:
        directory: the folder of the cuts.
        name: of the run, for people.
        cut: the one that was named; None for all.
    """

    directory: Path
    name: str
    cut: int | None = None


def find(word: str) -> Place:
    """The place that the user means.

    Args:
        word: a job's name or ``JOB/RUN`` below ``.edl``, a job file, or the path of a job's folder, of a run, of its
            ``checkpoints`` or of one checkpoint.

    Raises:
        BadInputError: there is nothing like that.
    """
    path = _named(word)
    if path.is_dir():
        return _in_folder(Path(os.path.abspath(path)))
    if path.is_file():
        return _of_file(path)
    if path.parent.is_dir() and path.suffix not in _JOB_FILES and runs(path.parent):
        resolve(path.parent, path.name)  # raises: the job is there, this run is not
    raise BadInputError("there is no such job here, and no such folder", where=word, hint=_known() or _OTHER_PLACES)


def _named(word: str) -> Path:
    """The folder of a job or of a run below ``.edl``, if the word is about one."""
    job, _, run = word.partition("/")
    of_job = job in local_run_files.jobs() and "/" not in run
    named = local_run_files.folder() / word
    return named if of_job and (named.is_dir() or not Path(word).exists()) else Path(word)


def _in_folder(path: Path) -> Place:
    if match := _CUT.fullmatch(path.name):
        return Place(path.parent, _holder_of(path.parent), int(match[1]))
    if path.name == "checkpoints" or cuts_in(path):
        return Place(path, _holder_of(path))
    if (path / "checkpoints").is_dir():
        return Place(path / "checkpoints", _name_of(path))
    found = [run for run in runs(path) or submitted(path) if run.checkpoints.is_dir()]
    if not found and (path / MANIFEST).is_file():
        hint = "Rename it: a checkpoint is called cut- and its number in eight digits, such as cut-00000004."
        raise BadInputError("is a checkpoint that has lost its name", where=str(path), hint=hint)
    if not found:
        raise BadInputError("is no run of a job, and holds none", where=str(path), hint=_OTHER_PLACES)
    run = next((run for run in reversed(found) if cuts_in(run.checkpoints)), found[-1])
    return Place(run.checkpoints, _name_of(run.path))


def _of_file(path: Path) -> Place:
    if path.name == MANIFEST or path.suffix == ".safetensors":
        raise BadInputError("is one file of a checkpoint", where=str(path), hint=f"Name its folder: {path.parent}")
    if path.suffix not in _JOB_FILES:
        raise BadInputError("is neither a run's folder nor a job file", where=str(path), hint=_OTHER_PLACES)
    from edl.jobfile.loader import load
    from edl.jobfile.path_resolution import resolve_local
    from edl.ops.local_run_start import folder_of

    folder = folder_of(resolve_local(load(path), path.parent))
    if not folder.is_dir():
        raise BadInputError("this job has no run yet", where=str(folder), hint=f"Start one: edl run {path}")
    return _in_folder(folder)


def _holder_of(checkpoints: Path) -> str:
    """What a folder of checkpoints belongs to: only one called ``checkpoints`` can be a run's, others hold copies."""
    return _name_of(checkpoints.parent) if checkpoints.name == "checkpoints" else str(checkpoints)


def _name_of(run: Path) -> str:
    """``run r3 of mnist``, if that is what it is."""
    path = RunDir(run)
    return f"run {path.run_id} of {path.job_dir.name}" if (run / "spec.json").exists() else str(run)


def _known() -> str:
    """The jobs of this folder's ``.edl``."""
    names = local_run_files.jobs()
    return f"Jobs of {local_run_files.folder()}: {', '.join(names)}." if names else ""
