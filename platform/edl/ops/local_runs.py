"""Runs of this machine, in the form in which commands see a job on a cluster.

A run directory has the same data that a master publishes on a cluster: status, events, summary and
failure. Only runs below ``./.edl`` are found. ``edl run`` stores them there unless ``storage.path``
names another folder.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from edl.api.errors import BadInputError, EdlError
from edl.api.run_events import JobEvent, RunStarted, WarningRaised
from edl.api.status import ENDED, JobFailure, Status, Summary, TimelinePoint
from edl.cluster.local.desired_state_file import DesiredStateFile
from edl.cluster.status_port import DesiredState
from edl.jobfile import section_type
from edl.jobfile.document_tree import SpecError
from edl.jobfile.event_json import event_from_json
from edl.jobfile.path_resolution import DEFAULT_STORAGE_DIR
from edl.jobfile.published_status import PublishedStatus, extend_timeline
from edl.jobfile.scalar_types import to_finite_float
from edl.ops.job_view import JobView, UnknownJobError
from edl.storage.durable_files import JsonLinesTail, is_lock_held, read_json
from edl.storage.run_directory import LOCAL_NAMESPACE, RunDirectory, list_numbered_runs, locate_job_dir
from edl.storage.weights_lookup import read_task

_PROCESSES_GONE = "its processes ended without reporting a reason: they were killed, or the machine went down"
_LOCK_HOLDER = re.compile(r"process (\d+) on (\S+), run (\S+), started ")


@dataclass(frozen=True, slots=True)
class LocalRun(JobView):
    """One run of this machine at one moment.

    Attributes:
        run_dir: its directory.
        is_alive: a process runs it.
    """

    run_dir: RunDirectory = RunDirectory(Path())  # noqa: RUF009  a value: RunDirectory is frozen
    is_alive: bool = False

    @property
    def uid(self) -> str:
        """The run's id."""
        return self.run_dir.run_id

    @property
    def is_local(self) -> bool:
        """Always true."""
        return True

    @property
    def has_logs(self) -> bool:
        """Whether the run has log files. Strategy Local has none: it prints to its terminal."""
        return any(self.run_dir.logs.glob("*.log"))

    @property
    def task(self) -> str:
        """What the run does: train, evaluate or predict."""
        return read_task(self.run_dir)

    @property
    def location_text(self) -> str:
        """The run's place, and the event that its age counts from, as text."""
        return f"run {self.run_dir.run_id} on this machine, started"

    @property
    def created_at(self) -> float:
        """When the run was last started or resumed, in unix seconds."""
        starts = [event.time for event in self.published_status.events if isinstance(event, RunStarted)]
        if starts:
            return starts[-1]
        with suppress(OSError):  # removed meanwhile
            return self.run_dir.path.stat().st_mtime
        return 0.0

    @property
    def desired_state(self) -> DesiredState:
        """The numbers of workers that users have requested with `edl scale`."""
        return DesiredStateFile(self.run_dir.desired_state).read()

    @property
    def phase(self) -> str:
        """The phase. A run whose processes are gone without a final status is ``Interrupted``."""
        # The status of an earlier start may still be in the directory, so the process decides.
        status_phase = self.status.phase if self.status else ""
        if self.is_alive:
            return status_phase if status_phase and status_phase not in ENDED else "Starting"
        return status_phase if status_phase in ENDED else "Interrupted"

    @property
    def ended_at(self) -> float | None:
        """When the run ended, if it wrote a status."""
        return self.status.updated if self.has_ended and self.status else None


def list_local_runs() -> list[LocalRun]:
    """All runs below the current folder, by job, oldest first."""
    folder = Path(DEFAULT_STORAGE_DIR, LOCAL_NAMESPACE)
    jobs = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    return [read_local_run(run) for job in jobs for run in list_numbered_runs(job)]


def find_local_run(job: str) -> LocalRun:
    """The newest run of a job, or the one that ``JOB/RUN`` names.

    Raises:
        BadInputError: there is no such run; the hint lists the existing runs.
    """
    name, _, run_id = job.partition("/")
    run_dirs = (
        list_numbered_runs(locate_job_dir(Path(DEFAULT_STORAGE_DIR), name)) if re.fullmatch(r"[\w-]+", name) else []
    )
    chosen = [run for run in run_dirs if run_id in ("", run.run_id)]
    if chosen:
        return read_local_run(chosen[-1])
    known = [f"{each.name}/{each.run_dir.run_id}" for each in list_local_runs()]
    hint = (
        f"Existing runs: {', '.join(known)}." if known else "No run was started in this directory; edl run starts one."
    )
    raise UnknownJobError(f"there is no run {job} below {DEFAULT_STORAGE_DIR}", hint=hint)


def read_local_run(run: RunDirectory) -> LocalRun:
    """The current state of a run, from the files in its directory."""
    unreadable = ""
    status = summary = failure = None
    try:
        status = section_type.from_json(Status, read_json(run.status), str(run.status)) if run.status.exists() else None
        summary = _read_optional(run.summary, Summary)
        failure = _read_optional(run.failure, JobFailure)
    except (EdlError, SpecError) as error:
        unreadable = str(error)
    alive = _find_process(run) is not None
    if status is not None and not alive and status.phase not in ENDED:
        status = replace(status, samples_per_second=0.0, seconds_left=None, starved=False, reason=_PROCESSES_GONE)
    publication = PublishedStatus(status, tuple(read_events(run)), _read_timeline(run), summary, failure)
    return LocalRun(run.job_dir.name, LOCAL_NAMESPACE, {}, publication, unreadable, run, alive)


RunFile = TypeVar("RunFile", Summary, JobFailure)


def _read_optional(path: Path, kind: type[RunFile]) -> RunFile | None:
    return section_type.from_json(kind, read_json(path), str(path)) if path.exists() else None


# The year 10000 in unix seconds: later times cannot be formatted as a date.
_LAST_TIME = 253402300800.0


def read_events(run: RunDirectory) -> Iterator[JobEvent]:
    """All events of a run. An unreadable event, of another version of EDL, becomes a warning."""
    for value in JsonLinesTail(run.events).poll():
        try:
            yield event_from_json(value)
        except SpecError as error:
            yield WarningRaised(f"an event cannot be read: {error}", time=_event_time(value))


def _event_time(value: Mapping[str, object]) -> float:
    """The time of an unreadable event; the current time if it has none."""
    moment = to_finite_float(value.get("time"))
    return moment if moment and 0 < moment < _LAST_TIME else time.time()


def _read_timeline(run: RunDirectory) -> tuple[TimelinePoint, ...]:
    """Workers and speed over the time of the run, thinned out as a master does before it publishes."""
    timeline: tuple[TimelinePoint, ...] = ()
    for value in JsonLinesTail(run.history).poll():
        with suppress(SpecError):  # a line of another version of EDL
            known = {name: value[name] for name in TimelinePoint.__slots__ if name in value}
            moment = section_type.from_json(TimelinePoint, known)
            timeline = extend_timeline(timeline, moment)
    return timeline


def _find_process(run: RunDirectory) -> int | None:
    """The id of the process that the job's lock names, if it runs this run.

    That process empties the lock when it ends. After a SIGKILL the name stays, and the kernel may have given
    the number to another program, so only the lock itself says whether the process is there.
    """
    lock = run.job_dir / "LOCK"
    try:
        holder = _LOCK_HOLDER.match(lock.read_text(encoding="utf-8", errors="replace"))
        if holder is None or holder[3] != run.run_id or holder[2] != socket.gethostname():
            return None
        return int(holder[1]) if is_lock_held(lock) else None
    except (OSError, ValueError):
        return None


def interrupt_run(run: RunDirectory) -> bool:
    """Send SIGINT to the process of a run, as Ctrl-C does; returns whether there is one.

    Raises:
        BadInputError: the process belongs to another user.
    """
    pid = _find_process(run)
    if pid is None:
        return False
    try:
        os.kill(pid, signal.SIGINT)
    except ProcessLookupError:  # it has ended meanwhile
        return False
    except PermissionError as error:
        raise BadInputError(f"process {pid} belongs to another user", where="edl stop") from error
    return True


# --------------------------------------------------------------------------------------------------
# The logs of a run of this machine: files, of which the newest lines are followed until the run has
# ended.


_POLL_SECONDS = 0.5
_LOG_NAME = re.compile(r"(master|ps|worker)-(\d+)\.log")


def read_run_logs(
    local_run: LocalRun, role: str, index: int | None, *, follow: bool, tail: int | None
) -> Iterator[tuple[str, bytes]]:
    """Lines of the chosen logs, with the name of the role where there are several.

    Raises:
        BadInputError: the run has no such log.
    """
    files = _select_log_files(local_run, role, index)
    ends: dict[Path, int] = {}
    several = index is None and role != "master"
    for file in files:
        text = file.read_bytes()
        ends[file] = len(text)
        lines = text.splitlines()
        yield from _with_role_name(lines if tail is None else list(deque(lines, maxlen=tail)), file, several)
    while follow:
        # Read before the files, so that lines written before the end are still shown.
        alive = read_local_run(local_run.run_dir).is_alive
        for file in _select_log_files(local_run, role, index):
            with file.open("rb") as log:
                log.seek(ends.get(file, 0))
                text = log.read()
            complete_text = text if not alive else text[: text.rfind(b"\n") + 1]
            ends[file] = ends.get(file, 0) + len(complete_text)
            yield from _with_role_name(complete_text.splitlines(), file, several)
        if not alive:
            return
        time.sleep(_POLL_SECONDS)


def _with_role_name(lines: list[bytes], file: Path, several: bool) -> Iterator[tuple[str, bytes]]:
    name = file.stem if several else ""
    for line in lines:
        yield name, line


def _select_log_files(local_run: LocalRun, role: str, index: int | None) -> list[Path]:
    logs = local_run.run_dir.logs
    log_files = [
        (match[1], int(match[2]), file) for file in logs.glob("*.log") if (match := _LOG_NAME.fullmatch(file.name))
    ]
    chosen = [(number, file) for name, number, file in log_files if name == role and index in (None, number)]
    if not chosen:
        which = role if index is None else f"{role}-{index}"
        known = ", ".join(sorted(file.stem for *_, file in log_files))
        hint = f"Logs of this run: {known}." if known else "Strategy Local writes no logs: it prints to its terminal."
        raise BadInputError(f"there is no log of {which}", where=str(logs), hint=hint)
    return [file for _, file in sorted(chosen)]
