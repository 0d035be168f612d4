"""Starts a planned run and follows it until its end."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from signal import SIGINT, SIGPIPE, SIGTERM
from signal import Signals as Signal
from types import FrameType
from typing import NoReturn

from edl.api.errors import BadInputError, StorageError
from edl.api.exit_codes import INTERRUPTED_EXIT, OUTPUT_CLOSED_EXIT, SIGTERM_EXIT
from edl.api.job_spec import JobSpec
from edl.api.run_events import JobEnded, JobEvent, RunStarted, WarningRaised
from edl.api.status import Status, Summary
from edl.cluster.local.supervisor_launch import start_supervisor
from edl.core.cuts import FINAL_SECONDS
from edl.jobfile import section_type
from edl.jobfile.document_tree import SpecError
from edl.jobfile.event_json import event_from_json, line
from edl.jobfile.loader import dump_job_spec
from edl.jobfile.section_type import to_json
from edl.ops.local_run_plan import LocalRunPlan
from edl.ops.local_run_resumption import reopen_run
from edl.reporting.broken_pipe import PipeSafeRenderer
from edl.reporting.run_progress import (
    RunFailure,
    RunOutcome,
    RunProgress,
    decide_outcome,
    explain_missing_end,
)
from edl.reporting.run_renderer import choose_renderer
from edl.storage.durable_files import JsonLinesTail, append_json_line, read_json, write_json
from edl.storage.journal_truncation import restart_journal
from edl.storage.run_directory import RunDirectory, locate_job_dir, make_run_directory, write_run_spec
from edl.storage.run_resumption import format_change

# --------------------------------------------------------------------------------------------------
# Signals as values: the loop that follows a job waits for them, and they do not interrupt it.


SignalHandler = Callable[[int, FrameType | None], object] | int | None


class StopSignals:
    """Collects SIGINT and SIGTERM; SIGCHLD ends a wait. The exit restores the previous handlers.

    For the main thread only.
    """

    def __enter__(self) -> StopSignals:
        self._received_signals: list[signal.Signals] = []
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        self._previous_wakeup = signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        self._previous_handlers: dict[signal.Signals, SignalHandler] = {
            number: signal.signal(number, self._record_signal)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def wait_for_signals(self, seconds: float) -> list[signal.Signals]:
        """Wait for stop signals and return them; returns early on a signal or the end of a child."""
        if not self._received_signals and select.select([self._wake_reader], [], [], seconds)[0]:
            os.read(self._wake_reader, 4096)
        received, self._received_signals = self._received_signals, []
        return received

    def _record_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number != signal.SIGCHLD:
            self._received_signals.append(signal.Signals(number))


# --------------------------------------------------------------------------------------------------
# Follows a run by its files until its supervisor has ended, and stops it on the user's request.


POLL_SECONDS = 0.1
STOP_SECONDS = 20.0
"""Time for the supervisor to stop: 11 s for a final checkpoint, about 3 s to stop hanging roles."""
KILL_SECONDS = 2.0
"""Time for the supervisor to stop after a second signal."""

_STOPPING_NOTICE = f"Stopping: a checkpoint is written first, {FINAL_SECONDS:g} s at most. A second Ctrl-C skips it."
_LEAVING_NOTICE = "Stopping all processes. A second Ctrl-C kills them at once."
_LAST_LINES = 12
_EXIT_CODES = {SIGINT: INTERRUPTED_EXIT, SIGPIPE: OUTPUT_CLOSED_EXIT, SIGTERM: SIGTERM_EXIT}


class LocalRunFollower:
    """One supervised run as ``edl run`` sees it."""

    def __init__(
        self,
        run: RunDirectory,
        renderer: PipeSafeRenderer,
        events: JsonLinesTail,
        start_time: float,
        *,
        writes_checkpoint: bool,
    ) -> None:
        """Follow ``run`` and show it with ``renderer``, from the position of ``events`` on.

        Args:
            writes_checkpoint: whether the run writes a checkpoint when it is stopped.
        """
        self._run, self._renderer, self._event_tail = run, renderer, events
        self.progress = RunProgress(start_time)
        self._writes_checkpoint = writes_checkpoint
        self._status_version: tuple[int, int] | None = None  # inode and time of the last status read
        self._stopped_by: int | None = None
        self._stop_deadline: float | None = None

    def follow_until_end(self, supervisor: subprocess.Popen[bytes]) -> RunOutcome:
        """Show the run until its end."""
        with StopSignals() as signals, _supervisor_cleanup(supervisor):
            while True:
                exit_code = supervisor.poll()  # before the files, so that the last writes are read below
                self._read_updates()
                if exit_code is not None:
                    break
                self._renderer.refresh(self.progress, time.time())
                if self._renderer.reader_left and self._stopped_by is None:
                    self._stop_supervisor(supervisor, SIGPIPE)
                for wish in signals.wait_for_signals(POLL_SECONDS):
                    self._stop_supervisor(supervisor, wish)
                if self._stop_deadline is not None and time.monotonic() > self._stop_deadline:
                    supervisor.kill()  # its roles end with it
            return self._decide_outcome(exit_code)

    def _read_updates(self) -> None:
        for value in self._event_tail.poll():
            event = _parse_event(value)
            self.progress = self.progress.with_event(event)
            self._renderer.show_event(event, self.progress)
        # OSError: the file does not exist yet. SpecError: another version wrote it. A later status
        # may be readable.
        with suppress(OSError, StorageError, SpecError):
            written = self._run.status.stat()
            # The master replaces it five times a second; half of the polls would read the same one
            # again.
            if (version := (written.st_ino, written.st_mtime_ns)) == self._status_version:
                return
            self.progress = self.progress.with_status(section_type.from_json(Status, read_json(self._run.status)))
            self._status_version = version

    def _stop_supervisor(self, supervisor: subprocess.Popen[bytes], stop_signal: Signal) -> None:
        number = SIGINT
        if self._stopped_by is None:
            self._stopped_by = _EXIT_CODES[stop_signal]
            self._renderer.show_notice(_STOPPING_NOTICE if self._writes_checkpoint else _LEAVING_NOTICE)
            self._stop_deadline = time.monotonic() + STOP_SECONDS
        else:
            self._renderer.show_notice("Killing all processes.")
            self._stop_deadline = time.monotonic() + KILL_SECONDS
            number = SIGTERM  # two pending signals of one kind are delivered once
        with suppress(ProcessLookupError):
            supervisor.send_signal(number)

    def _decide_outcome(self, exit_code: int) -> RunOutcome:
        by_master = self.progress.end_event
        ended = by_master or self._write_end(exit_code)
        self._renderer.refresh(self.progress, time.time())
        failure = _read_failure(self._run) if by_master else RunFailure(detail=_log_ends(self._run))
        # A program that ended before it reached the master told nobody why.
        if by_master and by_master.phase == "Failed" and failure.kind == "crash" and not failure.detail:
            failure = replace(failure, detail=_last_worker_log_end(self._run))
        return decide_outcome(ended, failure, self._stopped_by)

    def _write_end(self, exit_code: int) -> JobEnded:
        """Record the run's end in place of its master.

        All processes of the run have ended, so its files have no other writer.
        """
        now, (phase, reason) = time.time(), explain_missing_end(exit_code, self._stopped_by)
        summary = _read_summary(self._run) or self.progress.partial_summary(now, str(self._run.logs))
        ended = JobEnded(phase, reason, summary, time=now)
        self.progress = self.progress.with_event(ended)
        self._renderer.show_event(ended, self.progress)
        try:
            append_json_line(self._run.events, section_type.to_json(ended))
            write_json(self._run.summary, section_type.to_json(summary))
            if (status := self.progress.status) is not None:
                over = replace(status, phase=phase, reason=reason, updated=now, workers=(), ps=())
                self.progress = self.progress.with_status(over)
                write_json(self._run.status, section_type.to_json(over))
        except StorageError as error:
            self._renderer.show_notice(str(error))
        return ended


def _parse_event(value: dict[str, object]) -> JobEvent:
    try:
        return event_from_json(value)
    except SpecError as error:
        return WarningRaised(f"an event cannot be read: {error}", time=time.time())


def _read_summary(run: RunDirectory) -> Summary | None:
    """The summary of a master that was terminated; None if it did not write one."""
    try:
        return section_type.from_json(Summary, read_json(run.summary))
    except (StorageError, SpecError):
        return None


def _read_failure(run: RunDirectory) -> RunFailure:
    """The master's record of a failure."""
    kind = ""
    with suppress(StorageError):  # not every failure has a kind
        value = read_json(run.failure)
        kind = str(value.get("kind", "")) if isinstance(value, dict) else ""
    try:
        detail = run.failure_details.read_text(encoding="utf-8", errors="replace")
    except OSError:  # not every failure has a detail
        detail = ""
    return RunFailure(kind, detail)


def _last_worker_log_end(run: RunDirectory) -> str:
    """The last lines of the log of the worker that wrote last; empty if there is none."""
    with suppress(OSError):
        logs = sorted(run.logs.glob("worker-*.log"), key=lambda path: path.stat().st_mtime)
        return _log_ends(run, logs[-1:])
    return ""


def _log_ends(run: RunDirectory, paths: Sequence[Path] = ()) -> str:
    """The last lines of logs; by default of those that explain why the run ended without a master."""
    lines_shown = []
    for path in paths or (run.logs / "supervisor.log", run.logs / "master-0.log"):
        with suppress(OSError):  # the process did not start
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            lines_shown += [f"{path}:", *(f"  {line}" for line in lines[-_LAST_LINES:])]
    return "\n".join(lines_shown)


@contextmanager
def _supervisor_cleanup(supervisor: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ensure that the supervisor and its roles have ended when the block ends."""
    try:
        yield
    finally:
        if supervisor.poll() is None:
            supervisor.terminate()
            try:
                supervisor.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                supervisor.kill()
                supervisor.wait()
        if supervisor.stdin is not None:
            supervisor.stdin.close()


SUPERVISOR_PROGRAM: tuple[str, ...] = ("-P", "-m", "edl.cluster.local")
"""Python's arguments for the supervisor; tests replace it by one with fake roles."""

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
"""Environment variables of a worker that has a master."""


def local_job_directory(spec: JobSpec) -> Path:
    """The folder of the job's runs; ``spec`` with the paths of this machine."""
    assert spec.storage.path is not None  # resolve_local has set it
    return locate_job_dir(Path(spec.storage.path), spec.name)


def create_storage(folder: Path) -> None:
    """Make the folder of the job's runs.

    Raises:
        BadInputError: no folder can be created at ``storage.path``.
        StorageError: the folder cannot be created now, for example because the disk is full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno not in _UNUSABLE_PATH_ERRORS:
            raise StorageError(f"cannot be created: {error.strerror}", where=str(folder)) from error
        raise BadInputError(
            f"the run directory {folder} cannot be created: {error.strerror}",
            where="storage.path",
            hint="give a directory that you may write to; without storage.path, runs are kept in ./.edl",
        ) from error


def check_storage(folder: Path) -> None:
    """Check whether ``create_storage`` would succeed; leaves no new folder behind.

    Raises:
        BadInputError: no folder can be created at ``storage.path``.
        StorageError: the folder cannot be created now.
    """
    absent = list(takewhile(lambda path: not os.path.lexists(path), (folder, *folder.parents)))
    try:
        create_storage(folder)
    finally:
        for path in absent:
            with suppress(OSError):
                path.rmdir()


def run_supervised(plan: LocalRunPlan, *, as_json: bool) -> int:
    """Run the plan in child processes; returns the exit code of the command.

    Raises:
        StorageError: the run directory cannot be written, or no process can be started.
    """
    run, events = plan.run_dir, JsonLinesTail(plan.run_dir.events)
    events.poll()  # skips the events of earlier starts
    make_run_directory(run)  # a resumed one too, which an older version may have left readable for all
    with PipeSafeRenderer(choose_renderer(as_json=as_json)) as face:
        face.show_plan(plan)
        if plan.checkpoint_restart is not None:
            restart_journal(plan.checkpoint_restart, f"edl run, process {os.getpid()}")
            reopen_run(run)
        # After the new journal: with a spec of another strategy the old one cannot be replayed.
        write_run_spec(run, dump_job_spec(plan.spec))
        start_time = time.time()
        append_json_line(run.events, to_json(_run_started_event(plan, start_time)))
        try:
            supervisor = start_supervisor(run.path, SUPERVISOR_PROGRAM)
        except OSError as error:
            raise StorageError(f"the supervisor cannot be started: {error}", where=str(run.path)) from error
        follower = LocalRunFollower(run, face, events, start_time, writes_checkpoint=plan.trains)
        outcome = follower.follow_until_end(supervisor)
    face.show_outcome(plan, outcome)
    return outcome.exit_code


def exec_local_worker(plan: LocalRunPlan, *, as_json: bool) -> NoReturn:
    """Become the worker: a single process, in which ``breakpoint()`` works.

    The worker takes the job's lock again, because exec releases it.

    Raises:
        StorageError: the run directory cannot be written.
    """
    run = plan.run_dir
    make_run_directory(run)  # a resumed one too, which an older version may have left readable for all
    write_run_spec(run, dump_job_spec(plan.spec))
    if plan.checkpoint_restart is not None:
        # After the spec: it says that the run needs no journal any more.
        restart_journal(plan.checkpoint_restart, f"edl run, process {os.getpid()}")
        reopen_run(run)
    started = _run_started_event(plan, time.time())
    append_json_line(run.events, to_json(started))
    print(line(started) if as_json else "\n".join(plan.plan_lines()), flush=True)
    environment = {name: value for name, value in os.environ.items() if name not in _MASTER_VARIABLES}
    environment |= {"EDL_RUN_DIR": str(run.path), "EDL_JSON": str(int(as_json))}
    environment["EDL_GO_ON"] = plan.arguments.followup_command("run", "--resume", plan.run_id)
    os.execve(sys.executable, [sys.executable, "-P", "-m", "edl.worker"], environment)  # noqa: S606  no shell is wanted


def _run_started_event(plan: LocalRunPlan, moment: float) -> RunStarted:
    changed = (
        *(plan.checkpoint_restart.describe_losses() if plan.checkpoint_restart else ()),
        *map(format_change, plan.field_changes),
    )
    return RunStarted(plan.run_id, str(plan.run_dir.path), resumed=plan.is_resumed, changes=changed, time=moment)
