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
from edl.jobfile.loader import dump
from edl.ops.local_run_following import Follower
from edl.ops.local_run_plan import Plan
from edl.ops.local_run_resumption import reopen
from edl.reporting.broken_pipe import Piped
from edl.reporting.run_renderer import choose
from edl.storage.checkpoint_restart import restart_journal
from edl.storage.run_directory import append_line, job_dir, make, tail, write_spec
from edl.storage.run_resumption import said

SUPERVISOR: tuple[str, ...] = ("-P", "-m", "edl.cluster.local")
"""What Python runs as the supervisor; tests put one of fake roles here."""

_NO_PLACE = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.EROFS, errno.ENAMETOOLONG)

_SERVED = ("EDL_MASTER_ADDRESS",)
"""Variables of a worker that has a master."""


def folder_of(spec: JobSpec) -> Path:
    """The folder of the job's runs; ``spec`` with the paths of this machine."""
    assert spec.storage.path is not None  # resolve_local gave it one
    return job_dir(Path(spec.storage.path), spec.name)


def require_storage(folder: Path) -> None:
    """Make the folder of the job's runs.

    Raises:
        BadInputError: ``storage.path`` names a place where no folder can be.
        StorageError: it could be there, but not now: the disk is full, say.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in _NO_PLACE:
            raise StorageError(f"cannot be made: {error.strerror}", where=str(folder)) from error
        raise BadInputError(
            f"the run directory {folder} cannot be made: {error.strerror}",
            where="storage.path",
            hint="name a folder in which you may write; without the field runs are kept in ./.edl",
        ) from error


def check_storage(folder: Path) -> None:
    """Whether the folder of the job's runs can be made, as ``require_storage``; leaves none behind that was not there.

    Raises:
        BadInputError: ``storage.path`` names a place where no folder can be.
        StorageError: it could be there, but not now.
    """
    absent = list(takewhile(lambda path: not os.path.lexists(path), (folder, *folder.parents)))
    try:
        require_storage(folder)
    finally:
        for path in absent:
            with suppress(OSError):
                path.rmdir()


def supervised(plan: Plan, *, as_json: bool) -> int:
    """Run the plan in processes of its own; returns the exit code of the command.

    Raises:
        StorageError: the run directory cannot be written, or no process can be started.
    """
    run, events = plan.run, tail(plan.run.events)
    events.poll()  # what an earlier start of the run wrote was shown then
    make(run)  # a resumed one too, which an older version may have left readable for all
    write_spec(run, dump(plan.spec))
    with Piped(choose(as_json=as_json)) as face:
        face.planned(plan)
        if plan.restart is not None:
            restart_journal(plan.restart, f"edl run, process {os.getpid()}")
            reopen(run)
        began = time.time()
        append_line(run.events, to_json(_started(plan, began)))
        try:
            supervisor = start_supervisor(run.path, SUPERVISOR)
        except OSError as error:
            raise StorageError(f"the supervisor cannot be started: {error}", where=str(run.path)) from error
        outcome = Follower(run, face, events, began).follow(supervisor)
    face.ended(plan, outcome)
    return outcome.exit_code


def in_this_terminal(plan: Plan, *, as_json: bool) -> NoReturn:
    """Become the worker: one process, in which ``breakpoint()`` works. It takes the job's lock over, which exec frees.

    Raises:
        StorageError: the run directory cannot be written.
    """
    run = plan.run
    make(run)  # a resumed one too, which an older version may have left readable for all
    write_spec(run, dump(plan.spec))
    started = _started(plan, time.time())
    append_line(run.events, to_json(started))
    print(line(started) if as_json else "\n".join(plan.lines()), flush=True)
    environment = {name: value for name, value in os.environ.items() if name not in _SERVED}
    environment |= {"EDL_RUN_DIR": str(run.path), "EDL_JSON": str(int(as_json))}
    environment["EDL_GO_ON"] = plan.order.command("run", "--resume", plan.run_id)
    os.execve(sys.executable, [sys.executable, "-P", "-m", "edl.worker"], environment)  # noqa: S606  no shell is wanted


def _started(plan: Plan, moment: float) -> RunStarted:
    changed = (*(plan.restart.lines() if plan.restart else ()), *map(said, plan.changes))
    return RunStarted(plan.run_id, str(plan.run.path), resumed=plan.resumed, changes=changed, time=moment)
