"""Prepares a role in a container: missing environment variables, and the run directory with the job's spec."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from edl.api.cluster_port import ALLOCATOR_VARIABLES, Role
from edl.api.errors import BadInputError, StorageError
from edl.api.job_spec import JobSpec
from edl.api.run_events import RunStarted
from edl.jobfile.document_tree import SpecError
from edl.jobfile.loader import dump_job_spec, load_job_file
from edl.jobfile.path_resolution import resolve_pod_paths
from edl.jobfile.section_type import to_json
from edl.storage.durable_files import append_json_line, read_json, temporary_path, translate_os_errors, write_json
from edl.storage.journal_truncation import restart_journal
from edl.storage.run_directory import (
    FROM_CHECKPOINT_SUFFIX,
    GROUP_MODE,
    NEWEST_RUN,
    RunDirectory,
    list_submitted_runs,
    locate_job_dir,
    make_run_directory,
    write_run_spec,
)
from edl.storage.run_resumption import check_resume_changes, check_work_is_left, format_change, has_journal, reopen_run
from edl.storage.strategy_change import plan_resumption

# --------------------------------------------------------------------------------------------------
# The run directory of a job on Kubernetes: ``<storage>/<namespace>/<job>/<run id>``, which every master finds again.
#
# The id of a new run is the Job's uid. A Job that resumes an older run resolves it once and stores the result beside
# the runs, in ``<Job's uid>.run``. So a container that restarts does not resume a second time, and ``latest`` keeps
# its meaning.


@dataclass(frozen=True, slots=True)
class RequestedRun:
    """The run that a Job executes.

    Attributes:
        job_dir: folder of all runs of the job.
        uid: uid of the Job.
        run: the run to resume: an id, or ``latest``; empty for a new run. With the suffix ``@checkpoint``, the run
            continues from its newest intact checkpoint, without its journal.
    """

    job_dir: Path
    uid: str
    run: str = ""

    @property
    def run_id(self) -> str:
        """The id of the run to resume, or ``latest``."""
        return self.run.removesuffix(FROM_CHECKPOINT_SUFFIX)

    @property
    def from_checkpoint(self) -> bool:
        """Whether the run continues without its journal."""
        return self.run.endswith(FROM_CHECKPOINT_SUFFIX)


def open_run(requested: RequestedRun, spec: JobSpec) -> RunDirectory:
    """Open the Job's run directory, ready for its master.

    Args:
        requested: the run.
        spec: the job's spec, with the paths of this pod.

    Raises:
        BadInputError: this user cannot write there, or the requested run does not exist, is done, or trains something
            else.
        StorageError: the disk fails.
    """
    # before anything else is written, so that a wrong owner of the volume gives one clear error
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
    if spec.task != "train":
        raise BadInputError(
            f"only training is resumed, and the job's task is {spec.task}",
            where=str(requested.job_dir),
            hint="Submit it without a run to resume; model.weights names what it works with.",
        )
    run = _find_run(requested)
    holder = f"edl-role of Job {requested.uid}"
    changed = tuple(map(format_change, check_resume_changes(run, spec)))
    restart = plan_resumption(run, spec, from_checkpoint=requested.from_checkpoint)
    if restart is not None:
        # no lock: a volume that several nodes mount may not support locks
        restart_journal(restart, holder, exclusive=False)
        changed = (*restart.describe_losses(), *changed)
    reopen_run(run, holder, exclusive=False)
    make_run_directory(run, GROUP_MODE)
    _write_start(run, spec, RunStarted(run.run_id, str(run.path), resumed=True, changes=changed, time=time.time()))
    # last: if the container crashes before, the next one resumes the run again
    write_json(marker, {"run": run.run_id}, fsync=True)
    return run


def _find_run(requested: RequestedRun) -> RunDirectory:
    # a failed submission leaves a spec and no journal, and a job that evaluated may have had the same name
    existing = [run for run in list_submitted_runs(requested.job_dir) if has_journal(run) and _trains(run)]
    matching_runs = [run for run in existing if requested.run_id in (NEWEST_RUN, run.run_id)]
    if not matching_runs:
        names = ", ".join(run.run_id for run in existing) or "none"
        meant = "run to resume" if requested.run_id == NEWEST_RUN else f"run {requested.run_id!r} to resume"
        hint = f"Its runs, in the order of their last start: {names}."
        raise BadInputError(f"this job has no {meant}", where=str(requested.job_dir), hint=hint)
    run = matching_runs[-1]
    check_work_is_left(run, "edl submit without --resume starts a new run.")
    return run


def _trains(run: RunDirectory) -> bool:
    return load_job_file(run.spec).task == "train"


def _write_start(run: RunDirectory, spec: JobSpec, started: RunStarted) -> None:
    """Write event and spec of a start. The spec is last, because a run with a spec counts as started."""
    append_json_line(run.events, to_json(started))
    write_run_spec(run, dump_job_spec(spec), fsync=True)


def check_writable(folder: Path) -> None:
    """Write, sync, rename and remove a file: the mode of a folder on a network volume does not tell enough.

    Raises:
        BadInputError: this user cannot write there; the message has user, path and remedy.
        StorageError: the disk fails in another way.
    """
    probe = temporary_path(folder / "probe")
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
    """Ensure that the role has a run directory with a spec.

    Args:
        role: ``master``, ``ps`` or ``worker``.
        spec: path of the JobSpec as it was submitted.
        environment: environment variables of the container.

    Returns:
        The variables to set in addition to those of the container.

    Raises:
        BadInputError: the image, the spec, the environment or the volume is invalid.
        StorageError: the volume fails.
    """
    _require_training_image(role)
    variables = {"EDL_ROLE": role, "PYTHONUNBUFFERED": "1", **ALLOCATOR_VARIABLES.get(Role(role), {})}
    if role == Role.MASTER:
        return variables | _master_variables(spec, environment)
    run = RunDirectory(Path(_require_variable(environment, "EDL_RUN_DIR")))
    if not run.spec.exists():  # without a shared volume, every pod has its own folder
        _write_own_spec(run, spec)
    return variables


def _require_training_image(role: str) -> None:
    """Refuse the submitter's image, which has edl-role too, but not the packages that roles import."""
    needed = {"grpc": "gRPC", **({"tensorflow": "TensorFlow"} if role == Role.WORKER else {})}
    lacking = [name for module, name in needed.items() if find_spec(module) is None]
    if lacking:
        raise BadInputError(
            f"the image has no {' and no '.join(lacking)}: it is the submitter's, or another that cannot train",
            hint="Use the training image, or an image that edl zoo build made from it.",
        )


def role_log_path(environment: EnvironmentVariables) -> Path:
    """Path of the copy of the role's output."""
    return (
        RunDirectory(Path(environment["EDL_RUN_DIR"])).logs
        / f"{environment['EDL_ROLE']}-{_role_index(environment)}.log"
    )


def log_heading(environment: EnvironmentVariables) -> str:
    """The line in the log that names the process whose output follows."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return f"--- {environment.get('EDL_POD', environment['EDL_ROLE'])} started {now} ---"


def _master_variables(path: str, environment: EnvironmentVariables) -> dict[str, str]:
    spec = resolve_pod_paths(_load_submitted_spec(path), environment.get("EDL_STORAGE") or None)
    assert spec.storage.path is not None
    folder = locate_job_dir(Path(spec.storage.path), spec.name, _require_variable(environment, "EDL_NAMESPACE"))
    wanted = RequestedRun(folder, _require_variable(environment, "EDL_JOB_UID"), environment.get("EDL_RUN", ""))
    host = _require_variable(environment, "EDL_HOST")
    run = open_run(wanted, spec)
    address_host = f"[{host}]" if ":" in host else host
    return {
        "EDL_RUN_DIR": str(run.path),
        "EDL_MASTER_ADDRESS": f"{address_host}:{CONTROL_PORT}",
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
        hint = "This is the ConfigMap edl-<job>-spec, which edl submit writes. Delete the job and submit it again."
        raise BadInputError(str(error), hint=hint) from error


def _role_index(environment: EnvironmentVariables) -> str:
    return environment.get("EDL_INDEX") or "0"


def _require_variable(environment: EnvironmentVariables, name: str) -> str:
    value = environment.get(name)
    if not value:
        raise BadInputError(
            f"the environment has no {name}",
            hint="edl-role is started in the pods that edl submit creates, not by hand.",
        )
    return value
