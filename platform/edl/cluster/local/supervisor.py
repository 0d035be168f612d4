"""Owns every role process of a run: to processes what kubelet and Job controller are to pods."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterable
from pathlib import Path

from edl.api.cluster_port import PodStatus, Role
from edl.api.errors import BadInputError, RetryableError
from edl.cluster.local import parent_death
from edl.cluster.local.event_loop import EventLoop
from edl.cluster.local.exit_status import ExitStatus
from edl.cluster.local.orphan_reaper import OrphanReaper
from edl.cluster.local.pod_table import PodTable
from edl.cluster.local.restart_policy import RestartPolicy
from edl.cluster.local.role_environment import RoleCommand, RoleEnvironment
from edl.cluster.local.role_process import RoleProcess
from edl.cluster.local.run_log import RunLog
from edl.cluster.local.runtime_directory import RuntimeDirectory
from edl.cluster.local.supervisor_server import SupervisorServer

DONE_GRACE_SECONDS = 2.0
"""What roles get to leave when the master is done."""
STOP_GRACE_SECONDS = 3.0
"""What roles get to leave when the user stops the job."""

FINAL_CHECKPOINT_SECONDS = 11.0
"""What the master gets to take a final checkpoint and to end the job; it gives itself a second less."""

ABANDONED_EXIT_CODE = 137


class Supervisor:
    """Runs one job: the master, and the pods it asks for."""

    def __init__(self, loop: EventLoop, run_dir: Path, runtime: RuntimeDirectory, command: RoleCommand) -> None:
        self._loop = loop
        self._run_dir = run_dir
        self._runtime = runtime
        self._command = command
        self._record = RunLog(run_dir)
        self._table = PodTable()
        self._processes: dict[str, RoleProcess] = {}
        self._restart_policy = RestartPolicy()
        self._exit_code: int | None = None
        self._requested_exit_code: int | None = None
        self._orphan_reaper = None if parent_death.HAS_PARENT_DEATH_SIGNAL else OrphanReaper()
        self._server = SupervisorServer(loop, runtime.cluster_socket, runtime.token, self)
        loop.on_signal(signal.SIGCHLD, self._reap_processes)
        loop.on_signal(signal.SIGINT, lambda: self._request_job_end(130))
        loop.on_signal(signal.SIGTERM, lambda: self._request_job_end(143))

    def run(self) -> int:
        """Supervise until the job has ended or is stopped; return the exit code."""
        self._record.line(f"supervisor (pid {os.getpid()}) started")
        try:
            self._start_master()
            while self._exit_code is None or self._processes:
                self._loop.turn()
        finally:
            self._kill_all()
            self._server.close()
            if self._orphan_reaper is not None:
                self._orphan_reaper.close()
        self._record.line(f"supervisor ended, exit code {self._exit_code}")
        return self._exit_code

    def abandon(self) -> None:
        """Kill every role at once and end: nobody is left to supervise for."""
        self._exit_code = ABANDONED_EXIT_CODE
        self._kill_all()

    def _kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()

    def start(self, role: Role, index: int) -> str:
        """Start a pod, or return the uid of the live one of that name.

        Raises:
            RetryableError: the job is ending, or the machine has no process left to give.
            BadInputError: the role's command does not exist.
        """
        live = self._table.live(role, index)
        if live is not None:
            return live.uid
        if self._exit_code is not None:
            raise RetryableError("The job is ending")
        try:
            process = self._launch_role(role, index)
        except FileNotFoundError as error:
            raise BadInputError(f"{role} {index} cannot be started: {error}") from error
        except OSError as error:
            raise RetryableError(f"{role} {index} cannot be started now: {error}") from error
        self._server.publish(self._table.started(process.uid, role, index, process.pid))
        return process.uid

    def delete(self, uid: str, grace: float) -> None:
        """Tell a pod to go and kill it after ``grace`` seconds."""
        if not self._table.delete(uid):
            return
        self._record.line(f"{uid} is told to go, grace {grace:g} s")
        self._end(self._processes[uid], grace)

    def seen(self) -> Iterable[PodStatus]:
        """Return every pod, the ended ones first."""
        return self._table

    def _end(self, process: RoleProcess, grace: float) -> None:
        if grace <= 0:
            process.kill()
            return
        process.terminate()
        self._loop.after(grace, lambda: process.kill() if process.uid in self._processes else None)

    def _launch_role(self, role: Role, index: int) -> RoleProcess:
        environment = self._role_environment(role, index)
        process = RoleProcess(environment, self._command(role, index))
        self._processes[process.uid] = process
        if self._orphan_reaper is not None:
            self._orphan_reaper.add_group(process.pid)
        self._record.line(f"{process.uid} (pid {process.pid}) started")
        return process

    def _role_environment(self, role: Role, index: int) -> RoleEnvironment:
        return RoleEnvironment(
            role=role,
            index=index,
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
        except OSError as error:  # no process to be had, a full disk: both may pass
            self._record.line(f"the master cannot be started: {error}")
            self._restart_master(0.0)

    def _reap_processes(self) -> None:
        for process in list(self._processes.values()):
            ending = process.poll()
            if ending is not None:
                del self._processes[process.uid]
                if self._orphan_reaper is not None:
                    self._orphan_reaper.left(process.pid)
                self._ended(process, ending)

    def _ended(self, process: RoleProcess, ending: ExitStatus) -> None:
        self._record.ended(process, ending)
        if process.role == Role.MASTER:
            self._handle_master_end(process.age, ending)
        else:
            self._server.publish(self._table.ended(process.uid, ending))

    def _handle_master_end(self, age: float, ending: ExitStatus) -> None:
        if self._exit_code is not None:
            return
        if self._requested_exit_code is not None:
            self._stop_all_roles(self._requested_exit_code, STOP_GRACE_SECONDS)
        elif ending.exit_code == 0:
            self._stop_all_roles(0, DONE_GRACE_SECONDS)
        else:
            self._restart_master(age)

    def _restart_master(self, age: float) -> None:
        self._restart_policy = self._restart_policy.after_death(age)
        if self._restart_policy.is_exhausted:
            self._record.line("the master keeps dying at once: given up; its log says why")
            self._stop_all_roles(1, DONE_GRACE_SECONDS)
        else:
            self._loop.after(self._restart_policy.delay_seconds, self._start_master)

    def _request_job_end(self, exit_code: int) -> None:
        """Have the master take a final checkpoint and end the job, then end; asked twice, end at once.

        A master that has not come so far as to listen ends by the signal, and the job with it.
        """
        master = next((process for process in self._processes.values() if process.role == Role.MASTER), None)
        if self._exit_code is not None or self._requested_exit_code is not None:
            self._exit_code = exit_code if self._exit_code is None else self._exit_code
            self._kill_all()
        elif master is None:
            self._stop_all_roles(exit_code, STOP_GRACE_SECONDS)
        else:
            self._requested_exit_code = exit_code
            self._record.line(f"the master is told to end the job, {FINAL_CHECKPOINT_SECONDS:g} s at most")
            master.request_job_end()
            self._loop.after(FINAL_CHECKPOINT_SECONDS, self._stop_if_late)

    def _stop_if_late(self) -> None:
        if self._exit_code is None and self._requested_exit_code is not None:
            self._stop_all_roles(self._requested_exit_code, STOP_GRACE_SECONDS)

    def _stop_all_roles(self, exit_code: int, grace: float) -> None:
        if self._exit_code is not None:  # asked twice: no more patience
            self._kill_all()
            return
        self._exit_code = exit_code
        self._record.line(f"every role is told to go, grace {grace:g} s")
        for process in self._processes.values():
            self._end(process, grace)
