"""Who a role in a container is: the variables that its pod lacks, and the run directory with the job's spec in it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError
from edl.jobfile.job_spec import JobSpec
from edl.jobfile.loader import dump_job_spec, load_job_file
from edl.jobfile.pod_paths import resolve_pod_paths
from edl.jobfile.problems import SpecError
from edl.pod.run_selection import RequestedRun, open_run
from edl.storage.durable_files import translate_os_errors
from edl.storage.run_directory import GROUP_MODE, RunDirectory, locate_job_dir, write_run_spec

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
