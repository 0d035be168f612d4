"""What runs of this machine left below the working directory: for those who look for it with another command."""

from __future__ import annotations

import re
from pathlib import Path

from edl.jobfile.path_resolution import DEFAULT_STORAGE
from edl.storage.run_directory import LOCAL_NAMESPACE, RunDir, job_dir, latest, runs

_NAME = re.compile(r"[\w-]+")
_KINDS = "status.json, logs/ and checkpoints/"


def folder() -> Path:
    """Of the jobs that ran here."""
    return Path(DEFAULT_STORAGE, LOCAL_NAMESPACE)


def jobs() -> list[str]:
    """Names of the jobs that ran here: those with a run, for the folder of a job may hold its lock alone."""
    return sorted(path.name for path in folder().iterdir() if path.is_dir() and runs(path)) if folder().is_dir() else []


def told(job: str | None) -> str:
    """Where the files of a job's newest run are; of a job that did not run here, where such files would be."""
    if job is not None and _NAME.fullmatch(job) and (run := latest(job_dir(Path(DEFAULT_STORAGE), job))):
        return f"{job} ran on this machine, its newest run is {run.path}{_listed(run, job)}."
    if known := jobs():
        return f"Jobs that edl run started here: {', '.join(known)}; {_KINDS} of each run are in {folder()}/JOB/RUN/."
    return (
        f"Of a run by edl run, {_KINDS} are in {folder()}/JOB/RUN/ of the folder where it was called, unless "
        "storage.path says where."
    )


def _listed(run: RunDir, job: str) -> str:
    """The files that are there and hold something."""
    files = [path.name for path in (run.status, run.path / "failure.txt") if path.exists()]
    folders = [f"{path.name}/" for path in (run.logs, run.checkpoints, run.export) if _holds_something(path)]
    found = ", ".join(files + folders)
    return (f": {found}" if found else "") + (f" (edl checkpoint ls {job})" if "checkpoints/" in folders else "")


def _holds_something(path: Path) -> bool:
    return path.is_dir() and next(path.iterdir(), None) is not None
