"""Runs of this machine, for the commands about jobs: the same picture that a job on a cluster has.

A run directory holds what a master publishes on a cluster: status, events, summary and failure. Runs below ``./.edl``
are found, where ``edl run`` keeps them unless ``storage.path`` says otherwise.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import typer

from edl.api.errors import BadInputError, EdlError
from edl.api.events import Event, RunStarted, Warned
from edl.api.status import ENDED, Status, Summary
from edl.cluster.status_port import Desired
from edl.jobfile import json_object
from edl.jobfile.event_json import from_json
from edl.jobfile.path_resolution import DEFAULT_STORAGE
from edl.jobfile.problems import SpecError
from edl.jobfile.published_status import Failure, Moment, Publication, extended
from edl.ops.job_view import JobSeen, UnknownJobError
from edl.storage.run_directory import LOCAL_NAMESPACE, RunDir, job_dir, read_json, runs, tail

LocalOption = Annotated[bool, typer.Option("--local", help="Runs of edl run on this machine, below ./.edl.")]
_GONE = "its processes are gone, and none said why: they were killed, or the machine went down"
_HOLDER = re.compile(r"process (\d+) on (\S+), run (\S+), started ")


@dataclass(frozen=True, slots=True)
class RunHere(JobSeen):
    """One run of this machine at one moment.

    Attributes:
        run: its directory.
        alive: a process runs it.
    """

    run: RunDir = RunDir(Path())  # noqa: RUF009  a value: RunDir is frozen
    alive: bool = False

    @property
    def uid(self) -> str:
        """The run's id."""
        return self.run.run_id

    @property
    def here(self) -> bool:
        """It is."""
        return True

    @property
    def place(self) -> str:
        """Where it is and what its age counts from."""
        return f"run {self.run.run_id} on this machine, started"

    @property
    def created(self) -> float:
        """When it was started or resumed last, in unix seconds."""
        starts = [event.time for event in self.told.events if isinstance(event, RunStarted)]
        if starts:
            return starts[-1]
        with suppress(OSError):  # removed meanwhile
            return self.run.path.stat().st_mtime
        return 0.0

    @property
    def desired(self) -> Desired:
        """Nothing: who wants something of a run here presses Ctrl-C."""
        return Desired()

    @property
    def phase(self) -> str:
        """What it is doing; a run whose processes are gone without a word was interrupted."""
        said = self.status.phase if self.status else ""
        if self.alive:
            return said if said and said not in ENDED else "Starting"
        return said if said in ENDED else "Interrupted"

    @property
    def ended_at(self) -> float | None:
        """When it ended, as far as it said something."""
        return self.status.updated if self.ended and self.status else None


def runs_here() -> list[RunHere]:
    """All runs below the current folder, by job, oldest first."""
    folder = Path(DEFAULT_STORAGE, LOCAL_NAMESPACE)
    jobs = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    return [seen(run) for job in jobs for run in runs(job)]


def find_here(job: str) -> RunHere:
    """The newest run of a job, or the one that ``JOB/RUN`` names.

    Raises:
        BadInputError: there is none; says which there are.
    """
    name, _, run_id = job.partition("/")
    found = runs(job_dir(Path(DEFAULT_STORAGE), name)) if re.fullmatch(r"[\w-]+", name) else []
    chosen = [run for run in found if run_id in ("", run.run_id)]
    if chosen:
        return seen(chosen[-1])
    known = [f"{each.name}/{each.run.run_id}" for each in runs_here()]
    hint = f"There are: {', '.join(known)}." if known else "None were started in this folder; edl run starts one."
    raise UnknownJobError(f"there is no run {job} below {DEFAULT_STORAGE}", hint=hint)


def chosen_here(job: str, *, local: bool, context: str | None, namespace: str | None) -> RunHere | None:
    """The run of this machine that a command is about; None: it is about a job on a cluster.

    ``--local`` and ``-n`` say so. Else a job on the cluster comes first, and a run of this machine is meant where there
    is no kubeconfig, or no job of the name.

    Raises:
        BadInputError: ``--local`` was given and there is no such run, or together with options about a cluster; or
            there is no such run, and no kubeconfig.
        RetryableError: whether there is such a job cannot be found out; ``--local`` needs no cluster.
    """
    of_cluster = context is not None or namespace is not None
    if local and of_cluster:
        raise BadInputError("--local is about this machine, and -n and --context are about a cluster")
    if local:
        return find_here(job)
    if of_cluster:
        return None
    try:
        here = find_here(job)
    except UnknownJobError as error:
        if not (why := _why_no_cluster()):
            return None
        raise UnknownJobError(error.message, hint=f"{error.hint}\n  No cluster was asked: {why}.") from error
    return here if "/" in job or not has_cluster() or not _on_cluster(job) else None


Look: TypeAlias = Callable[[], JobSeen]


def look_of(job: str, *, local: bool, context: str | None, namespace: str | None) -> Look:
    """How to look at a job again and again, wherever it is; the same run at each look.

    Raises:
        BadInputError: as ``chosen_here``.
    """
    here = chosen_here(job, local=local, context=context, namespace=namespace)
    if here is not None:
        run = here.run
        return lambda: seen(run)
    from edl.cli.options import api_of
    from edl.ops import job_view

    api = api_of(context, namespace, job)
    return lambda: job_view.find(api, job)


def has_cluster() -> bool:
    """Whether there is a kubeconfig; no cluster is asked."""
    return not _why_no_cluster()


def _why_no_cluster() -> str:
    """That there is no kubeconfig, and where one was looked for; empty if there is one."""
    from edl.cluster.kubernetes import kubeconfig
    from edl.cluster.kubernetes.api_errors import NoKubeconfigError

    try:
        kubeconfig.connected(None, None)
    except NoKubeconfigError as error:
        return error.message.removeprefix("No cluster can be used: ")
    except EdlError:  # there is one, and what is wrong with it is said by whoever uses it
        return ""
    return ""


def _on_cluster(job: str) -> bool:
    from edl.cli.options import api_of
    from edl.ops import job_view

    try:
        job_view.find(api_of(None, None), job)
    except UnknownJobError:
        return False
    return True


def seen(run: RunDir) -> RunHere:
    """A run as its directory has it now."""
    unreadable = ""
    status = summary = failure = None
    try:
        status = json_object.from_json(Status, read_json(run.status), str(run.status)) if run.status.exists() else None
        summary = _optional(run.path / "summary.json", Summary)
        failure = _optional(run.path / "failure.json", Failure)
    except (EdlError, SpecError) as error:
        unreadable = str(error)
    alive = _alive(run)
    if status is not None and not alive and status.phase not in ENDED:
        status = replace(status, samples_per_second=0.0, seconds_left=None, starved=False, reason=_GONE)
    told = Publication(status, tuple(events_of(run)), _timeline(run), summary, failure)
    return RunHere(run.job_dir.name, LOCAL_NAMESPACE, {}, told, unreadable, run, alive)


Page = TypeVar("Page", Summary, Failure)


def _optional(path: Path, kind: type[Page]) -> Page | None:
    return json_object.from_json(kind, read_json(path), str(path)) if path.exists() else None


def events_of(run: RunDir) -> Iterator[Event]:
    """All events of a run; one of another version of EDL is told as a warning."""
    for value in tail(run.events).poll():
        try:
            yield from_json(value)
        except SpecError as error:
            yield Warned(f"an event cannot be read: {error}", time=float(value.get("time") or time.time()))


def _timeline(run: RunDir) -> tuple[Moment, ...]:
    """Workers and pace in the course of the run, thinned out as a master does it for a cluster's."""
    timeline: tuple[Moment, ...] = ()
    for value in tail(run.history).poll():
        with suppress(SpecError):  # of another version
            moment = Moment.from_json({name: value[name] for name in Moment.__slots__ if name in value})
            timeline = extended(timeline, moment)
    return timeline


def _alive(run: RunDir) -> bool:
    """Whether the process that the job's lock names runs this run; it empties the lock when it ends."""
    try:
        found = _HOLDER.match((run.job_dir / "LOCK").read_text(encoding="utf-8", errors="replace"))
        if found is None or found[3] != run.run_id or found[2] != socket.gethostname():
            return False
        os.kill(int(found[1]), 0)
    except PermissionError:
        return True  # somebody else's
    except (OSError, ValueError, OverflowError):
        return False
    return True
