"""Starts a planned run and stays with it until its end."""

from __future__ import annotations

import errno
import os
import sys
import time
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import NoReturn

from edl.api.errors import BadInputError, StorageError
from edl.api.events import RunStarted
from edl.cluster.local.supervisor_launch import start_supervisor
from edl.jobfile.event_json import line
from edl.jobfile.job_spec import JobSpec
from edl.jobfile.json_object import to_json
from edl.jobfile.loader import dump_job_spec
from edl.ops.local_run_following import LocalRunFollower
from edl.ops.local_run_plan import LocalRunPlan
from edl.ops.local_run_resumption import reopen_run
from edl.reporting.broken_pipe import PipeSafeRenderer
from edl.reporting.run_renderer import choose_renderer
from edl.storage.checkpoint_restart import restart_journal
from edl.storage.run_directory import (
    append_json_line,
    follow_json_lines,
    locate_job_dir,
    make_run_directory,
    write_run_spec,
)
from edl.storage.run_resumption import format_change

SUPERVISOR_PROGRAM: tuple[str, ...] = ("-P", "-m", "edl.cluster.local")
"""What Python runs as the supervisor; tests put one of fake roles here."""

_UNUSABLE_PATH_ERRORS = (
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.EROFS,
    errno.ENAMETOOLONG,
)

_MASTER_VARIABLES = ("EDL_MASTER_ADDRESS",)
"""Variables of a worker that has a master."""


def local_job_directory(spec: JobSpec) -> Path:
    """The folder of the job's runs; ``spec`` with the paths of this machine."""
    assert spec.storage.path is not None  # resolve_local gave it one
    return locate_job_dir(Path(spec.storage.path), spec.name)


def create_storage(folder: Path) -> None:
    """Make the folder of the job's runs.

    Raises:
        BadInputError: ``storage.path`` names a place where no folder can be.
        StorageError: it could be there, but not now: the disk is full, say.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in _UNUSABLE_PATH_ERRORS:
            raise StorageError(f"cannot be made: {error.strerror}", where=str(folder)) from error
        raise BadInputError(
            f"the run directory {folder} cannot be made: {error.strerror}",
            where="storage.path",
            hint="name a folder in which you may write; without the field runs are kept in ./.edl",
        ) from error


def check_storage(folder: Path) -> None:
    """Whether the folder of the job's runs can be made, as ``create_storage``; leaves none behind that was not there.

    Raises:
        BadInputError: ``storage.path`` names a place where no folder can be.
        StorageError: it could be there, but not now.
    """
    absent = list(takewhile(lambda path: not os.path.lexists(path), (folder, *folder.parents)))
    try:
        create_storage(folder)
    finally:
        for path in absent:
            with suppress(OSError):
                path.rmdir()


def run_supervised(plan: LocalRunPlan, *, as_json: bool) -> int:
    """Run the plan in processes of its own; returns the exit code of the command.

    Raises:
        StorageError: the run directory cannot be written, or no process can be started.
    """
    run, events = plan.run, follow_json_lines(plan.run.events)
    events.poll()  # what an earlier start of the run wrote was shown then
    make_run_directory(run)  # a resumed one too, which an older version may have left readable for all
    write_run_spec(run, dump_job_spec(plan.spec))
    with PipeSafeRenderer(choose_renderer(as_json=as_json)) as face:
        face.planned(plan)
        if plan.restart is not None:
            restart_journal(plan.restart, f"edl run, process {os.getpid()}")
            reopen_run(run)
        began = time.time()
        append_json_line(run.events, to_json(_run_started_event(plan, began)))
        try:
            supervisor = start_supervisor(run.path, SUPERVISOR_PROGRAM)
        except OSError as error:
            raise StorageError(f"the supervisor cannot be started: {error}", where=str(run.path)) from error
        outcome = LocalRunFollower(run, face, events, began).follow_until_end(supervisor)
    face.ended(plan, outcome)
    return outcome.exit_code


def exec_local_worker(plan: LocalRunPlan, *, as_json: bool) -> NoReturn:
    """Become the worker: one process, in which ``breakpoint()`` works. It takes the job's lock over, which exec frees.

    Raises:
        StorageError: the run directory cannot be written.
    """
    run = plan.run
    make_run_directory(run)  # a resumed one too, which an older version may have left readable for all
    write_run_spec(run, dump_job_spec(plan.spec))
    started = _run_started_event(plan, time.time())
    append_json_line(run.events, to_json(started))
    print(line(started) if as_json else "\n".join(plan.lines()), flush=True)
    environment = {name: value for name, value in os.environ.items() if name not in _MASTER_VARIABLES}
    environment |= {"EDL_RUN_DIR": str(run.path), "EDL_JSON": str(int(as_json))}
    environment["EDL_GO_ON"] = plan.order.command("run", "--resume", plan.run_id)
    os.execve(sys.executable, [sys.executable, "-P", "-m", "edl.worker"], environment)  # noqa: S606  no shell is wanted


def _run_started_event(plan: LocalRunPlan, moment: float) -> RunStarted:
    changed = (*(plan.restart.lines() if plan.restart else ()), *map(format_change, plan.changes))
    return RunStarted(plan.run_id, str(plan.run.path), resumed=plan.resumed, changes=changed, time=moment)
