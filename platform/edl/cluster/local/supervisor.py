"""Owns all role processes of a run. It is to processes what kubelet and Job controller are to pods."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from edl.api.cluster_port import PodPhase, PodStatus, Role
from edl.api.errors import BadInputError, RetryableError
from edl.api.exit_codes import INTERRUPTED_EXIT, SIGKILL_EXIT, SIGTERM_EXIT
from edl.cluster.local import parent_death
from edl.cluster.local.orphan_reaper import OrphanReaper
from edl.cluster.local.role_process import ExitStatus, RoleCommand, RoleEnvironment, RoleProcess
from edl.cluster.local.supervisor_server import EventLoop, SupervisorServer
from edl.core.backoff import ExponentialBackoff

# --------------------------------------------------------------------------------------------------
# When a master that died is started again.
#
# The first times at once. If it keeps dying early, after a delay that doubles. If it dies early too often, not at all:
# the cause is then in its log, and further attempts would not help.


YOUNG_SECONDS = 5.0
"""A master that dies before this age died early; after a longer life, counting starts again."""
FREE_RESTARTS = 3
MAX_DELAY_SECONDS = 5.0
_RESTART_BACKOFF = ExponentialBackoff(first_seconds=0.2, max_seconds=MAX_DELAY_SECONDS)
MAX_YOUNG_DEATHS = 15


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Counts consecutive early deaths."""

    young_deaths: int = 0

    def after_death(self, age: float) -> RestartPolicy:
        """Return the policy after a death at ``age`` seconds."""
        return RestartPolicy(self.young_deaths + 1 if age < YOUNG_SECONDS else 1)

    @property
    def is_exhausted(self) -> bool:
        """Whether the master is not started again."""
        return self.young_deaths >= MAX_YOUNG_DEATHS

    @property
    def delay_seconds(self) -> float:
        """Seconds to wait before the next start."""
        return _RESTART_BACKOFF.delay(self.young_deaths - FREE_RESTARTS)


# --------------------------------------------------------------------------------------------------
# The pods of a supervisor: live ones, and ended ones until they are deleted or too many.
#
# Ended pods are kept so that a master that was away learns how they ended.


MAX_ENDED_PODS = 1000


class PodTable:
    """The pods by uid. It only keeps track of states; the supervisor acts."""

    def __init__(self) -> None:
        self._live_pods: dict[str, PodStatus] = {}
        self._pods_by_name: dict[tuple[Role, int], PodStatus] = {}
        self._ended_pods: dict[str, PodStatus] = {}
        self._deleting: set[str] = set()

    def __iter__(self) -> Iterator[PodStatus]:
        return iter([*self._ended_pods.values(), *self._live_pods.values()])

    def live_pod(self, role: Role, index: int) -> PodStatus | None:
        return self._pods_by_name.get((role, index))

    def add_started(self, uid: str, role: Role, index: int, pid: int) -> PodStatus:
        """Add a pod that has just started."""
        pod = PodStatus(uid, role, index, PodPhase.RUNNING, reason="Started", pid=pid)
        self._live_pods[uid] = self._pods_by_name[role, index] = pod
        return pod

    def mark_deleted(self, uid: str) -> bool:
        """Mark a pod as told to exit; return whether it is alive. An ended pod is removed."""
        self._ended_pods.pop(uid, None)
        if uid in self._live_pods:
            self._deleting.add(uid)
        return uid in self._live_pods

    def record_end(self, uid: str, exit_status: ExitStatus) -> PodStatus:
        """Record the end of a live pod and return its final status: ``GONE`` if it was deleted."""
        pod = self._live_pods.pop(uid)
        del self._pods_by_name[pod.role, pod.index]
        if uid in self._deleting:
            self._deleting.remove(uid)
            return replace(pod, phase=PodPhase.GONE, exit_code=exit_status.exit_code, reason="Deleted")
        last = replace(pod, phase=exit_status.phase, exit_code=exit_status.exit_code, reason=exit_status.reason)
        self._ended_pods[uid] = last
        if len(self._ended_pods) > MAX_ENDED_PODS:
            del self._ended_pods[next(iter(self._ended_pods))]  # the oldest: a dict keeps the order of insertion
        return last


# --------------------------------------------------------------------------------------------------
# What the supervisor writes into the run directory.
#
# ``logs/supervisor.log`` gets a line for each start and end of a role. ``events.jsonl`` gets the ends of the master,
# which only the supervisor observes; the master writes all other events.


class RunLog:
    """Appends to the files of one run.

    A full disk does not end a job: lines that could not be written are counted, and the next line reports their number.
    """

    def __init__(self, run_dir: Path) -> None:
        self._log_path = run_dir / "logs" / "supervisor.log"
        self._events_path = run_dir / "events.jsonl"
        self._lost_lines = 0
        self._log_path.parent.mkdir(exist_ok=True)

    def write_line(self, text: str) -> None:
        """Append a line to the supervisor's log."""
        gap = f"{self._lost_lines} lines and events before this could not be written\n" if self._lost_lines else ""
        line = f"{gap}{datetime.now(UTC).isoformat(timespec='milliseconds')} {text}\n"
        if self._append(self._log_path, line):
            self._lost_lines = 0

    def record_end(self, process: RoleProcess, exit_status: ExitStatus) -> None:
        self.write_line(
            f"{process.uid} (pid {process.pid}) ended: {exit_status.reason}, exit code {exit_status.exit_code}"
        )
        if process.role == "master":
            self._append(self._events_path, json.dumps(_role_ended_event(process, exit_status)) + "\n")

    def _append(self, path: Path, text: str) -> bool:
        try:
            _append_text(path, text)
        except OSError:
            self._lost_lines += 1
            return False
        return True


def _role_ended_event(process: RoleProcess, exit_status: ExitStatus) -> dict[str, object]:
    return {
        "event": "role_ended",
        "time": time.time(),
        "role": process.role.value,
        "index": process.index,
        "pid": process.pid,
        "reason": exit_status.reason,
        "exit_code": exit_status.exit_code,
    }


def _append_text(path: Path, text: str) -> None:
    # A single short write to a file opened with O_APPEND never interleaves with another process's line.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


# --------------------------------------------------------------------------------------------------
# The private folder of a running job, with its sockets and its token.
#
# It is in the system's temporary folder because the path of a Unix socket has at most 103 bytes. A supervisor that was
# killed leaves its folder behind; the next one of the same user removes all folders whose lock nobody holds.


MAX_SOCKET_PATH = 103
_LONGEST_NAME = len("/worker-0000000.sock")
_PREFIX = "edl-"
_LOCK = "lock"


class RuntimeDirectory:
    """A new folder (mode 0700) with a new token; ``close`` removes it."""

    def __init__(self) -> None:
        parent = _short_parent()
        _remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock = _hold_lock(self.path)
        self.token = secrets.token_hex(32)
        self.token_file = self.path / "token"
        self.cluster_socket = self.path / "cluster.sock"
        self.master_socket = self.path / "master.sock"
        # the token is in a file and not in argv, which other users can read
        descriptor = os.open(self.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(self.token)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _short_parent() -> Path:
    parent = Path(tempfile.gettempdir())
    longest = len(os.fsencode(parent)) + len(f"/{_PREFIX}12345678") + _LONGEST_NAME
    return parent if longest <= MAX_SOCKET_PATH else Path("/tmp")  # noqa: S108 - mkdtemp makes it private


def _hold_lock(folder: Path) -> int:
    # Locked before it gets its final name, so that no other supervisor can find it unlocked.
    unnamed = folder / f"{_LOCK}.new"
    descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    unnamed.rename(folder / _LOCK)
    return descriptor


def _remove_abandoned(parent: Path) -> None:
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        if _is_abandoned(lock):
            shutil.rmtree(lock.parent, ignore_errors=True)


def _is_abandoned(lock: Path) -> bool:
    try:
        # O_NOFOLLOW: the temporary folder is writable for everybody, who could place links there
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # it belongs to another user, or another supervisor has removed it
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # the supervisor that holds the lock is alive
        return False
    else:
        return os.fstat(descriptor).st_uid == os.getuid()
    finally:
        os.close(descriptor)


DONE_GRACE_SECONDS = 2.0
"""Grace period of roles when the master has ended the job."""
STOP_GRACE_SECONDS = 3.0
"""Grace period of roles when the user stops the job."""

FINAL_CHECKPOINT_SECONDS = 11.0
"""Time for the master to take a final checkpoint and end the job. The master limits itself to one second less."""


class Supervisor:
    """Runs one job: the master, and the pods that it requests."""

    def __init__(self, loop: EventLoop, run_dir: Path, runtime: RuntimeDirectory, command: RoleCommand) -> None:
        self._loop = loop
        self._run_dir = run_dir
        self._runtime = runtime
        self._role_command = command
        self._run_log = RunLog(run_dir)
        self._pods = PodTable()
        self._processes: dict[str, RoleProcess] = {}
        self._restart_policy = RestartPolicy()
        self._exit_code: int | None = None
        self._requested_exit_code: int | None = None
        self._orphan_reaper = None if parent_death.HAS_PARENT_DEATH_SIGNAL else OrphanReaper()
        self._server = SupervisorServer(loop, runtime.cluster_socket, runtime.token, self)
        loop.on_signal(signal.SIGCHLD, self._reap_processes)
        loop.on_signal(signal.SIGINT, lambda: self._request_job_end(INTERRUPTED_EXIT))
        loop.on_signal(signal.SIGTERM, lambda: self._request_job_end(SIGTERM_EXIT))

    def run(self) -> int:
        """Supervise until the job has ended or was stopped; return the exit code."""
        self._run_log.write_line(f"supervisor (pid {os.getpid()}) started")
        try:
            self._start_master()
            # after the decision to end, roles still get their grace period
            while self._exit_code is None or self._processes:
                self._loop.run_once()
        finally:
            self._kill_all()
            self._server.close()
            if self._orphan_reaper is not None:
                self._orphan_reaper.close()
        self._run_log.write_line(f"supervisor ended, exit code {self._exit_code}")
        return self._exit_code

    def abandon(self) -> None:
        """Kill all roles and end: the process that started the supervisor has died."""
        self._exit_code = SIGKILL_EXIT  # as if it had been killed with its parent
        self._kill_all()

    def _kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()

    def start(self, role: Role, index: int) -> str:
        """Start a pod; if a pod of that role and index is alive, return its uid.

        Raises:
            RetryableError: the job is ending, or the system cannot create another process now.
            BadInputError: the role's command does not exist.
        """
        # a master that lost the answer, or that restarted, sends the same request again
        live_pod = self._pods.live_pod(role, index)
        if live_pod is not None:
            return live_pod.uid
        if self._exit_code is not None:
            raise RetryableError("The job is ending")
        try:
            process = self._launch_role(role, index)
        except FileNotFoundError as error:
            raise BadInputError(f"{role} {index} cannot be started: {error}") from error
        except OSError as error:
            raise RetryableError(f"{role} {index} cannot be started now: {error}") from error
        self._server.publish(self._pods.add_started(process.uid, role, index, process.pid))
        return process.uid

    def delete(self, uid: str, grace: float) -> None:
        """Tell a pod to exit, and kill it after ``grace`` seconds."""
        if not self._pods.mark_deleted(uid):
            return
        self._run_log.write_line(f"{uid} is told to exit, grace {grace:g} s")
        self._terminate_role(self._processes[uid], grace)

    def list_pods(self) -> Iterable[PodStatus]:
        """Return all pods, ended ones first."""
        return self._pods

    def _terminate_role(self, process: RoleProcess, grace: float) -> None:
        if grace <= 0:
            process.kill()
            return
        process.terminate()
        # by uid: the process may have ended meanwhile, and its pid may belong to another one
        self._loop.call_later(grace, lambda: process.kill() if process.uid in self._processes else None)

    def _launch_role(self, role: Role, index: int) -> RoleProcess:
        environment = self._role_environment(role, index)
        process = RoleProcess(environment, self._role_command(role, index))
        self._processes[process.uid] = process
        if self._orphan_reaper is not None:
            self._orphan_reaper.add_group(process.pid)
        self._run_log.write_line(f"{process.uid} (pid {process.pid}) started")
        return process

    def _role_environment(self, role: Role, index: int) -> RoleEnvironment:
        return RoleEnvironment(
            role=role,
            index=index,
            # random, because a uid must never be reused, even if the role and index are
            uid=f"{role}-{index}-{secrets.token_hex(6)}",
            run_dir=self._run_dir,
            runtime_dir=self._runtime.path,
            token_file=self._runtime.token_file,
            cluster_socket=self._runtime.cluster_socket,
            master_address=f"unix:{self._runtime.master_socket}",
        )

    def _start_master(self) -> None:
        if self._exit_code is not None:
            return
        try:
            self._launch_role(Role.MASTER, 0)
        except OSError as error:  # no free process or a full disk, which may be temporary
            self._run_log.write_line(f"the master cannot be started: {error}")
            self._restart_master(0.0)

    def _reap_processes(self) -> None:
        # one SIGCHLD may stand for the ends of several children, so all of them are polled
        for process in list(self._processes.values()):
            exit_status = process.poll()
            if exit_status is not None:
                del self._processes[process.uid]
                if self._orphan_reaper is not None:
                    self._orphan_reaper.remove_group(process.pid)
                self._handle_role_end(process, exit_status)

    def _handle_role_end(self, process: RoleProcess, exit_status: ExitStatus) -> None:
        self._run_log.record_end(process, exit_status)
        if process.role == Role.MASTER:
            self._handle_master_end(process.age_seconds, exit_status)
        else:
            self._server.publish(self._pods.record_end(process.uid, exit_status))

    def _handle_master_end(self, age: float, exit_status: ExitStatus) -> None:
        if self._exit_code is not None:
            return
        if self._requested_exit_code is not None:
            self._stop_all_roles(self._requested_exit_code, STOP_GRACE_SECONDS)
        # a master exits with 0 only if the job is done
        elif exit_status.exit_code == 0:
            self._stop_all_roles(0, DONE_GRACE_SECONDS)
        else:
            self._restart_master(age)

    def _restart_master(self, age: float) -> None:
        self._restart_policy = self._restart_policy.after_death(age)
        if self._restart_policy.is_exhausted:
            self._run_log.write_line("the master keeps failing right after its start: not started again, see its log")
            self._stop_all_roles(1, DONE_GRACE_SECONDS)
        else:
            self._loop.call_later(self._restart_policy.delay_seconds, self._start_master)

    def _request_job_end(self, exit_code: int) -> None:
        """Have the master take a final checkpoint and end the job, then exit. A second request ends everything at once.

        A master that does not handle the signal yet is ended by it, and the job with it.
        """
        master = next((process for process in self._processes.values() if process.role == Role.MASTER), None)
        if self._exit_code is not None or self._requested_exit_code is not None:
            self._exit_code = exit_code if self._exit_code is None else self._exit_code
            self._kill_all()
        elif master is None:
            self._stop_all_roles(exit_code, STOP_GRACE_SECONDS)
        else:
            self._requested_exit_code = exit_code
            self._run_log.write_line(f"the master is told to end the job within {FINAL_CHECKPOINT_SECONDS:g} s")
            master.request_job_end()
            self._loop.call_later(FINAL_CHECKPOINT_SECONDS, self._stop_if_late)

    def _stop_if_late(self) -> None:
        if self._exit_code is None and self._requested_exit_code is not None:
            self._stop_all_roles(self._requested_exit_code, STOP_GRACE_SECONDS)

    def _stop_all_roles(self, exit_code: int, grace: float) -> None:
        if self._exit_code is not None:  # a second request
            self._kill_all()
            return
        self._exit_code = exit_code
        self._run_log.write_line(f"all roles are told to exit, grace {grace:g} s")
        for process in self._processes.values():
            self._terminate_role(process, grace)
