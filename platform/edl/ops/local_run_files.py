"""Finds files of local runs, for users who look for them with a command for clusters."""

from __future__ import annotations

import re
from pathlib import Path

from edl.jobfile.path_resolution import DEFAULT_STORAGE_DIR
from edl.storage.run_directory import LOCAL_NAMESPACE, RunDirectory, list_numbered_runs, locate_job_dir, newest_run

_JOB_NAME = re.compile(r"[\w-]+")
_RUN_FILES = "status.json, logs/ and checkpoints/"


def local_jobs_folder() -> Path:
    """The folder of the jobs that ran here."""
    return Path(DEFAULT_STORAGE_DIR, LOCAL_NAMESPACE)


def local_job_names() -> list[str]:
    """Names of the jobs that ran here. A job's folder without a run may contain only its lock."""
    return (
        sorted(path.name for path in local_jobs_folder().iterdir() if path.is_dir() and list_numbered_runs(path))
        if local_jobs_folder().is_dir()
        else []
    )


def local_run_hint(job: str | None) -> str:
    """Where the files of a job's newest run are, or would be if the job did not run here."""
    if (
        job is not None
        and _JOB_NAME.fullmatch(job)
        and (run := newest_run(locate_job_dir(Path(DEFAULT_STORAGE_DIR), job)))
    ):
        return (
            f"{job} ran on this machine, its newest run is {run.path}{_files_text(run, job)}."
            f" `edl status {job}` and `edl logs {job}` show it."
        )
    if names := local_job_names():
        return (
            f"Jobs that edl run started here: {', '.join(names)}; {_RUN_FILES} of each run are in"
            f" {local_jobs_folder()}/JOB/RUN/."
        )
    return (
        f"edl run writes {_RUN_FILES} of a run to {local_jobs_folder()}/JOB/RUN/ below the directory where it was"
        " started, or below storage.path."
    )


def _files_text(run: RunDirectory, job: str) -> str:
    """The files of a run that exist and are not empty."""
    files = [path.name for path in (run.status, run.failure_details) if path.exists()]
    folders = [f"{path.name}/" for path in (run.logs, run.checkpoints, run.export) if _is_filled_directory(path)]
    listing = ", ".join(files + folders)
    return (f": {listing}" if listing else "") + (f" (edl checkpoint ls {job})" if "checkpoints/" in folders else "")


def _is_filled_directory(path: Path) -> bool:
    return path.is_dir() and next(path.iterdir(), None) is not None
