"""The run directory of a job on Kubernetes: ``<storage>/<namespace>/<job>/<run id>``, found again by every master.

A new run has the Job's uid for its id. A Job that goes on with an older run says so once: what it meant is written
down beside the runs in ``<Job's uid>.run``, so that a container that restarts does not resume a second time, and
``latest`` stays the run that was the latest then.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from edl.api.errors import BadInputError, StorageError
from edl.api.events import RunStarted
from edl.jobfile.job_spec import JobSpec
from edl.jobfile.json_object import to_json
from edl.jobfile.loader import dump
from edl.storage.checkpoint_restart import plan_restart, restart_journal
from edl.storage.run_directory import OF_GROUP, RunDir, append_line, make, read_json, submitted, write_json, write_spec
from edl.storage.run_resumption import begun, differences, phase_of, reopen, said

LATEST = "latest"
AT_CHECKPOINT = "@checkpoint"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which run a Job is.

    Attributes:
        job_dir: folder of all runs of the job.
        uid: of the Job.
        run: the run that it goes on with: an id, or ``latest``; empty for a new run. With ``@checkpoint`` behind it the
            run goes on from its newest intact checkpoint, without its journal.
    """

    job_dir: Path
    uid: str
    run: str = ""

    @property
    def run_id(self) -> str:
        """The run that is meant, or ``latest``."""
        return self.run.removesuffix(AT_CHECKPOINT)

    @property
    def from_checkpoint(self) -> bool:
        """Whether its journal is left out."""
        return self.run.endswith(AT_CHECKPOINT)


def open_run(wanted: Wanted, spec: JobSpec) -> RunDir:
    """The Job's run directory, ready for its master.

    Args:
        wanted: which one.
        spec: of the job, with the paths of this pod.

    Raises:
        BadInputError: this user cannot write there, or the run that is meant does not exist, is done or is about other
            work.
        StorageError: the disk fails.
    """
    prove_writable(wanted.job_dir)
    run = _resumed(wanted, spec) if wanted.run else _new(wanted, spec)
    prove_writable(run.path)
    return run


def _new(wanted: Wanted, spec: JobSpec) -> RunDir:
    run = RunDir(wanted.job_dir / wanted.uid)
    make(run, OF_GROUP)
    if not run.spec.exists():
        _begin(run, spec, RunStarted(run.run_id, str(run.path), time=time.time()))
    return run


def _resumed(wanted: Wanted, spec: JobSpec) -> RunDir:
    marker = wanted.job_dir / f"{wanted.uid}.run"
    if marker.exists():
        return RunDir(wanted.job_dir / str(read_json(marker)["run"]))
    run = _find(wanted)
    holder = f"edl-role of Job {wanted.uid}"
    changed = tuple(map(said, differences(run, spec)))
    if wanted.from_checkpoint:
        planned = plan_restart(run)
        restart_journal(planned, holder, exclusive=False)
        changed = (*planned.lines(), *changed)
    reopen(run, holder, exclusive=False)
    make(run, OF_GROUP)
    _begin(run, spec, RunStarted(run.run_id, str(run.path), resumed=True, changes=changed, time=time.time()))
    write_json(marker, {"run": run.run_id}, fsync=True)
    return run


def _find(wanted: Wanted) -> RunDir:
    existing = [run for run in submitted(wanted.job_dir) if begun(run)]  # a submission that failed leaves a spec only
    found = [run for run in existing if wanted.run_id in (LATEST, run.run_id)]
    if not found:
        names = ", ".join(run.run_id for run in existing) or "none"
        meant = "run to go on with" if wanted.run_id == LATEST else f"run {wanted.run_id!r} to go on with"
        hint = f"Its runs there, the one that was started or resumed last is last: {names}."
        raise BadInputError(f"this job has no {meant}", where=str(wanted.job_dir), hint=hint)
    run = found[-1]
    if phase_of(run) == "Done":
        raise BadInputError(
            f"run {run.run_id} is done", where=str(run.path), hint="edl submit without --resume starts anew."
        )
    return run


def _begin(run: RunDir, spec: JobSpec, started: RunStarted) -> None:
    """The spec comes last: a run that has one was started."""
    append_line(run.events, to_json(started))
    write_spec(run, dump(spec), fsync=True)


def prove_writable(folder: Path) -> None:
    """Write a file, sync it, rename it and remove it: what a mode says about a network volume proves nothing.

    Raises:
        BadInputError: this user may not; names user, path and what to do.
        StorageError: the disk fails in another way.
    """
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(probe, {}, fsync=True)
        probe.unlink()
    except OSError as error:
        raise _unwritable(folder, error) from error
    except StorageError as error:
        if isinstance(error.__cause__, PermissionError):
            raise _unwritable(folder, error.__cause__) from error
        raise


def _unwritable(folder: Path, error: OSError) -> BadInputError:
    user, group = os.getuid(), os.getgid()
    return BadInputError(
        f"user {user} (group {group}) cannot write here: {error.strerror or error}",
        where=str(folder),
        hint=f"Give the folder to that user on the volume (chown {user}:{group}), or name its owner in "
        "security.run_as.",
    )
