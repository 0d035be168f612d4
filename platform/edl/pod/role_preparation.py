"""Who a role in a container is: the variables that its pod lacks, and the run directory with the job's spec in it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError, StorageError
from edl.api.events import RunStarted
from edl.api.job_spec import JobSpec
from edl.jobfile.document_tree import SpecError
from edl.jobfile.loader import dump_job_spec, load_job_file
from edl.jobfile.path_resolution import resolve_pod_paths
from edl.jobfile.section_type import to_json
from edl.storage.durable_files import translate_os_errors
from edl.storage.journal_truncation import plan_restart, restart_journal
from edl.storage.run_directory import (
    GROUP_MODE,
    RunDirectory,
    append_json_line,
    list_submitted_runs,
    locate_job_dir,
    make_run_directory,
    read_json,
    write_json,
    write_run_spec,
)
from edl.storage.run_resumption import check_resume_changes, format_change, has_journal, read_phase, reopen_run

# --------------------------------------------------------------------------------------------------
# The run directory of a job on Kubernetes: ``<storage>/<namespace>/<job>/<run id>``, found again by every master.
#
# A new run has the Job's uid for its id. A Job that goes on with an older run says so once: what it meant is written
# down beside the runs in ``<Job's uid>.run``, so that a container that restarts does not resume a second time, and
# ``latest`` stays the run that was the latest then.


LATEST_RUN = "latest"
FROM_CHECKPOINT_SUFFIX = "@checkpoint"


@dataclass(frozen=True, slots=True)
class RequestedRun:
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
        return self.run.removesuffix(FROM_CHECKPOINT_SUFFIX)

    @property
    def from_checkpoint(self) -> bool:
        """Whether its journal is left out."""
        return self.run.endswith(FROM_CHECKPOINT_SUFFIX)


def open_run(requested: RequestedRun, spec: JobSpec) -> RunDirectory:
    """The Job's run directory, ready for its master.

    Args:
        requested: which run.
        spec: the job's spec, with the paths of this pod.

    Raises:
        BadInputError: this user cannot write there, or the requested run does not exist, is done, or trains something
            else.
        StorageError: the disk fails.
    """
    check_writable(requested.job_dir)
    run = _resume_run(requested, spec) if requested.run else _create_run(requested, spec)
    check_writable(run.path)
    return run


def _create_run(requested: RequestedRun, spec: JobSpec) -> RunDirectory:
    run = RunDirectory(requested.job_dir / requested.uid)
    make_run_directory(run, GROUP_MODE)
    if not run.spec.exists():
        _write_start(run, spec, RunStarted(run.run_id, str(run.path), time=time.time()))
    return run


def _resume_run(requested: RequestedRun, spec: JobSpec) -> RunDirectory:
    marker = requested.job_dir / f"{requested.uid}.run"
    if marker.exists():
        return RunDirectory(requested.job_dir / str(read_json(marker)["run"]))
    run = _find_run(requested)
    holder = f"edl-role of Job {requested.uid}"
    changed = tuple(map(format_change, check_resume_changes(run, spec)))
    if requested.from_checkpoint:
        restart = plan_restart(run)
        restart_journal(restart, holder, exclusive=False)
        changed = (*restart.describe_losses(), *changed)
    reopen_run(run, holder, exclusive=False)
    make_run_directory(run, GROUP_MODE)
    _write_start(run, spec, RunStarted(run.run_id, str(run.path), resumed=True, changes=changed, time=time.time()))
    write_json(marker, {"run": run.run_id}, fsync=True)
    return run


def _find_run(requested: RequestedRun) -> RunDirectory:
    existing = [
        run for run in list_submitted_runs(requested.job_dir) if has_journal(run)
    ]  # a submission that failed leaves a spec only
    matching_runs = [run for run in existing if requested.run_id in (LATEST_RUN, run.run_id)]
    if not matching_runs:
        names = ", ".join(run.run_id for run in existing) or "none"
        meant = "run to go on with" if requested.run_id == LATEST_RUN else f"run {requested.run_id!r} to go on with"
        hint = f"Its runs there, the one that was started or resumed last is last: {names}."
        raise BadInputError(f"this job has no {meant}", where=str(requested.job_dir), hint=hint)
    run = matching_runs[-1]
    if read_phase(run) == "Done":
        raise BadInputError(
            f"run {run.run_id} is done", where=str(run.path), hint="edl submit without --resume starts anew."
        )
    return run


def _write_start(run: RunDirectory, spec: JobSpec, started: RunStarted) -> None:
    """The spec comes last: a run that has one was started."""
    append_json_line(run.events, to_json(started))
    write_run_spec(run, dump_job_spec(spec), fsync=True)


def check_writable(folder: Path) -> None:
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
        raise _unwritable_error(folder, error) from error
    except StorageError as error:
        if isinstance(error.__cause__, PermissionError):
            raise _unwritable_error(folder, error.__cause__) from error
        raise


def _unwritable_error(folder: Path, error: OSError) -> BadInputError:
    user, group = os.getuid(), os.getgid()
    return BadInputError(
        f"user {user} (group {group}) cannot write here: {error.strerror or error}",
        where=str(folder),
        hint=f"Give the folder to that user on the volume (chown {user}:{group}), or name its owner in "
        "security.run_as.",
    )


CONTROL_PORT = 7070

EnvironmentVariables = Mapping[str, str]


def prepare_role(role: str, spec: str, environment: EnvironmentVariables) -> dict[str, str]:
    """Make sure that the role finds its run directory with a spec in it.

    Args:
        role: ``master``, ``ps`` or ``worker``.
        spec: path of the JobSpec as it was submitted.
        environment: of the container.

    Returns:
        The variables that are to be set beside those of the container.

    Raises:
        BadInputError: the image, the spec, the environment or the volume is not as it must be.
        StorageError: the volume fails.
    """
    _require_training_image(role)
    given = {"EDL_ROLE": role, "PYTHONUNBUFFERED": "1"}
    if role == Role.MASTER:
        return given | _master_variables(spec, environment)
    run = RunDirectory(Path(_require_variable(environment, "EDL_RUN_DIR")))
    if not run.spec.exists():  # no volume is shared: every pod has its own folder
        _write_own_spec(run, spec)
    return given


def _require_training_image(role: str) -> None:
    """The submitter image has edl-role too, and nothing of what the roles import."""
    needed = {"grpc": "gRPC", **({"tensorflow": "TensorFlow"} if role == Role.WORKER else {})}
    lacking = [name for module, name in needed.items() if find_spec(module) is None]
    if lacking:
        raise BadInputError(
            f"the image has no {' and no '.join(lacking)}: it is the submitter's, or another that cannot train",
            hint="Use the training image, or one that edl zoo build made of it.",
        )


def role_log_path(environment: EnvironmentVariables) -> Path:
    """Where the role's output is copied to."""
    return (
        RunDirectory(Path(environment["EDL_RUN_DIR"])).logs
        / f"{environment['EDL_ROLE']}-{_role_index(environment)}.log"
    )


def log_heading(environment: EnvironmentVariables) -> str:
    """The line in the log that says whose output follows."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return f"--- {environment.get('EDL_POD', environment['EDL_ROLE'])} started {now} ---"


def _master_variables(path: str, environment: EnvironmentVariables) -> dict[str, str]:
    spec = resolve_pod_paths(_load_submitted_spec(path), environment.get("EDL_STORAGE") or None)
    assert spec.storage.path is not None
    folder = locate_job_dir(Path(spec.storage.path), spec.name, _require_variable(environment, "EDL_NAMESPACE"))
    wanted = RequestedRun(folder, _require_variable(environment, "EDL_JOB_UID"), environment.get("EDL_RUN", ""))
    host = _require_variable(environment, "EDL_HOST")
    run = open_run(wanted, spec)
    at = f"[{host}]" if ":" in host else host
    return {
        "EDL_RUN_DIR": str(run.path),
        "EDL_MASTER_ADDRESS": f"{at}:{CONTROL_PORT}",
        "EDL_INDEX": _role_index(environment),
    }


def _write_own_spec(run: RunDirectory, spec: str) -> None:
    with translate_os_errors(run.path, "create a run directory"):
        run.path.mkdir(mode=GROUP_MODE, parents=True, exist_ok=True)
    write_run_spec(run, dump_job_spec(resolve_pod_paths(_load_submitted_spec(spec))))


def _load_submitted_spec(path: str) -> JobSpec:
    try:
        return load_job_file(path)
    except SpecError as error:
        hint = "It is the job's ConfigMap edl-<job>-spec. edl submit writes it; delete the job and submit it again."
        raise BadInputError(str(error), hint=hint) from error


def _role_index(environment: EnvironmentVariables) -> str:
    return environment.get("EDL_INDEX") or "0"


def _require_variable(environment: EnvironmentVariables, name: str) -> str:
    value = environment.get(name)
    if not value:
        raise BadInputError(
            f"the environment lacks {name}", hint="edl-role is started by the pods that edl submit makes, not by hand."
        )
    return value
