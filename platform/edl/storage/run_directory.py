"""Run directories ``<storage.path>/<namespace>/<job>/<run id>/``: creating, listing and locking them."""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edl.api.errors import BadInputError
from edl.core.strict_json import decode_json_file
from edl.storage.durable_files import (
    FileLock,
    set_file_mode,
    sync_directory,
    translate_os_errors,
    write_json,
)

PRIVATE_MODE, GROUP_MODE = 0o700, 0o750
"""Modes of a run's folder. On this machine only its user may read it; on a claim also the job's group, because the
pods of a job share a group."""
_SPEC_MODE_MASK = 0o640
LOCAL_NAMESPACE = "local"
NEWEST_RUN = "latest"
"""Stands for the newest run in a request to resume."""
FROM_CHECKPOINT_SUFFIX = "@checkpoint"
"""Suffix of such a run: resume from its newest intact checkpoint, without its journal."""
_RUN_NAME = re.compile(r"r([1-9][0-9]*)")
_JOB_BUSY_HINT = (
    "One process runs a job at a time. Wait until it has ended, stop it (Ctrl-C there), or give this job another name."
)


@dataclass(frozen=True)
class RunDirectory:
    """The paths of one run. Nothing here accesses the disk."""

    path: Path

    @property
    def run_id(self) -> str:
        """``r1, r2, …`` locally; the Job's uid on Kubernetes."""
        return self.path.name

    @property
    def job_dir(self) -> Path:
        """Folder of all runs of the job."""
        return self.path.parent

    @property
    def journal(self) -> Path:
        """Folder of the master's journal."""
        return self.path / "journal"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints, one folder for each."""
        return self.path / "checkpoints"

    @property
    def export(self) -> Path:
        """Folder of the exported model; created when the export is complete."""
        return self.path / "export"

    @property
    def logs(self) -> Path:
        """Folder of the roles' log files."""
        return self.path / "logs"

    @property
    def status(self) -> Path:
        """The newest status; the file is replaced as a whole."""
        return self.path / "status.json"

    @property
    def events(self) -> Path:
        """The events, one per line; the file is appended to."""
        return self.path / "events.jsonl"

    @property
    def history(self) -> Path:
        """Loss and speed of training, a line every few seconds; the file is appended to."""
        return self.path / "history.jsonl"

    @property
    def desired_state(self) -> Path:
        """What ``edl scale`` requested of the run on this machine; the file is replaced as a whole."""
        return self.path / "desired.json"

    @property
    def summary(self) -> Path:
        """The result of a run that has ended."""
        return self.path / "summary.json"

    @property
    def metrics(self) -> Path:
        """The result of a job that only evaluates."""
        return self.path / "metrics.json"

    @property
    def failure(self) -> Path:
        """Why a run failed, in a sentence."""
        return self.path / "failure.json"

    @property
    def failure_details(self) -> Path:
        """What belongs to a failure besides, such as a traceback."""
        return self.path / "failure.txt"

    @property
    def spec(self) -> Path:
        """The JobSpec that the run was started with."""
        return self.path / "spec.json"


def locate_job_dir(storage: Path, job: str, namespace: str = LOCAL_NAMESPACE) -> Path:
    """Folder of all runs of ``job``."""
    return storage / namespace / job


def list_numbered_runs(job_dir: Path) -> list[RunDirectory]:
    """The numbered runs (``r1``, ``r2``, …) in a folder from ``locate_job_dir``, oldest first."""
    with translate_os_errors(job_dir, "list the runs"):
        try:
            names = os.listdir(job_dir)
        except FileNotFoundError:
            return []
    numbered = sorted((int(match[1]), name) for name in names if (match := _RUN_NAME.fullmatch(name)))
    return [RunDirectory(job_dir / name) for _, name in numbered]


def list_submitted_runs(job_dir: Path) -> list[RunDirectory]:
    """The runs in a folder from ``locate_job_dir`` that have a spec, with any names; the last one started is last.

    On Kubernetes, run ids are uids, which have no order, so the order is that of the events.

    Raises:
        StorageError: the folder cannot be read.
    """
    with translate_os_errors(job_dir, "list the runs"):
        runs = [RunDirectory(path.parent) for path in job_dir.glob("*/spec.json")]
        return sorted(runs, key=lambda run: (_last_start_time(run), run.run_id))


def _last_start_time(run: RunDirectory) -> float:
    """When a run was last started or resumed, in unix seconds."""
    starts = [0.0]
    with suppress(FileNotFoundError), run.events.open("rb") as lines:
        for line in lines:
            if b'"run_started"' in line:
                with suppress(ValueError, KeyError, TypeError, OverflowError):  # a line that a crash truncated
                    starts.append(float(decode_json_file(line)["time"]))
    # a run without events was never started: its folder's time stands for it
    return max(starts) or run.path.stat().st_mtime


def create_run(job_dir: Path) -> RunDirectory:
    """Create the folder of the next run, with ``journal``, ``checkpoints`` and ``logs`` in it.

    Raises:
        StorageError: it cannot be created.
    """
    with translate_os_errors(job_dir, "create a run directory"):
        job_dir.mkdir(parents=True, exist_ok=True)
        run = _create_next_run(job_dir)
    make_run_directory(run)
    return run


def make_run_directory(run: RunDirectory, mode: int = PRIVATE_MODE) -> None:
    """Create a run's folder with ``journal``, ``checkpoints`` and ``logs`` in it, as far as they do not exist.

    Args:
        mode: mode of the folder, also if it exists. The folder may contain values that others must not read, such as
            environment variables of pods.

    Raises:
        StorageError: it cannot be created.
    """
    with translate_os_errors(run.path, "create a run directory"):
        run.path.mkdir(mode=mode, parents=True, exist_ok=True)
        # the mode of mkdir is reduced by the umask, and the folder may exist already
        set_file_mode(run.path, mode)
        for folder in (run.journal, run.checkpoints, run.logs):
            folder.mkdir(parents=True, exist_ok=True)
        # a journal is only as durable as the names of the folders around it
        sync_directory(run.path)
        sync_directory(run.job_dir)


def write_run_spec(run: RunDirectory, spec: Mapping[str, Any], *, fsync: bool = False) -> None:
    """Write a run's JobSpec, readable for those who may read its folder: its user, and on a claim the job's group.

    Raises:
        StorageError: it cannot be written.
    """
    with translate_os_errors(run.path, "read the mode of"):
        readable = stat.S_IMODE(run.path.stat().st_mode) & _SPEC_MODE_MASK
    write_json(run.spec, spec, fsync=fsync, mode=readable)


def _create_next_run(job_dir: Path) -> RunDirectory:
    existing = list_numbered_runs(job_dir)
    number = int(existing[-1].run_id[1:]) + 1 if existing else 1
    while True:
        run = RunDirectory(job_dir / f"r{number}")
        try:
            # mkdir fails if the folder exists: that makes the choice of a number atomic
            run.path.mkdir(mode=PRIVATE_MODE)
        except FileExistsError:
            number += 1  # another process created it in between
        else:
            return run


def newest_run(job_dir: Path) -> RunDirectory | None:
    """The newest run; None if there is none."""
    existing = list_numbered_runs(job_dir)
    return existing[-1] if existing else None


def find_run(job_dir: Path, run_id: str | None) -> RunDirectory:
    """The run with the id ``run_id``; with None, the newest run.

    Raises:
        BadInputError: there is no such run; the message has those that exist.
    """
    existing = list_numbered_runs(job_dir)
    if not existing:
        raise BadInputError(
            "this job has no run yet",
            where=str(job_dir),
            hint="Start one with edl run, without --resume. If there is one, call this in the folder in which it was "
            "started: runs are stored there, in .edl, unless storage.path names another folder.",
        )
    runs = [run for run in existing if run_id in (None, run.run_id)]
    if not runs:
        names = ", ".join(run.run_id for run in existing)
        raise BadInputError(f"this job has no run {run_id!r}", where=str(job_dir), hint=f"The runs are: {names}.")
    return runs[-1]


class JobLock:
    """The right to run a job. Its supervisor holds it until it ends; a second process gets an error with its name."""

    def __init__(self, job_dir: Path, run_id: str | None = None) -> None:
        """Take the lock ``<job_dir>/LOCK``.

        Raises:
            LockHeldError: the job is running (exit code 2); the message has process, host, run and start.
            StorageError: the folder cannot be created or locked.
        """
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        self._lock = FileLock(
            job_dir / "LOCK", self._holder_text(run_id), protected_thing=f"job {job_dir.name!r}", hint=_JOB_BUSY_HINT
        )

    def describe_run(self, run_id: str) -> None:
        """Add the run's id to the holder's name, when it is known."""
        self._lock.write_holder(self._holder_text(run_id))

    def close(self) -> None:
        """Allow another process to run the job. Closing twice does nothing."""
        self._lock.close()

    def __enter__(self) -> JobLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _holder_text(self, run_id: str | None) -> str:
        run = f", run {run_id}" if run_id else ""
        return f"process {os.getpid()} on {socket.gethostname()}{run}, started {self._started}"
