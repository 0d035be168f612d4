"""The master's view of pods: watches the cluster and executes pod commands, each on a thread of its own."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from typing import Any

from edl.api.cluster_port import JobCluster, Role, WatchSynced
from edl.api.errors import BadInputError, RetryableError
from edl.core.events import CoreCommand, CoreEvent, DeletePod, PodChanged, PodsSynced, StartPod, StartRefused
from edl.core.job_pods import JobPod
from edl.core.program_ends import running_programs
from edl.master import guarded_threads
from edl.master.shell import CommandExecutor, MasterShell

log = logging.getLogger(__name__)


class PodController:
    """Executes StartPod and DeletePod, and converts reports of the cluster to events."""

    def __init__(self, cluster: JobCluster) -> None:
        self._cluster = cluster
        self._commands: queue.SimpleQueue[StartPod | DeletePod | None] = queue.SimpleQueue()
        self._closed = False
        self._is_leaving: Callable[[], bool] = lambda: False

    def start(
        self,
        handle: Callable[[CoreEvent], Any],
        on_failure: guarded_threads.FailureHandler,
        is_leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start watching and executing.

        Args:
            handle: receives the cluster's reports as events.
            on_failure: called when the cluster is permanently unavailable.
            is_leaving: whether the master is shutting down and leaves the job to another one. No pod is
                started then.
        """
        self._is_leaving = is_leaving
        guarded_threads.start_guarded_thread("pods-watch", lambda: self._watch_cluster(handle), on_failure)
        guarded_threads.start_guarded_thread("pods-wishes", lambda: self._run_commands(handle), on_failure)

    def execute(self, command: CoreCommand) -> None:
        """Queue a command."""
        assert isinstance(command, StartPod | DeletePod)
        self._commands.put(command)

    def close(self) -> None:
        """Stop watching; pods keep running."""
        self._closed = True
        self._commands.put(None)
        self._cluster.close()

    def _watch_cluster(self, handle: Callable[[CoreEvent], Any]) -> None:
        for change in self._cluster.watch():
            handle(PodsSynced() if isinstance(change, WatchSynced) else PodChanged(change))
        # A watch ends only when it is closed. Without one, this master would miss the ends of pods.
        if not self._closed:
            raise RetryableError("the watch on the pods ended")

    def _run_commands(self, handle: Callable[[CoreEvent], Any]) -> None:
        while (command := self._commands.get()) is not None and not self._closed:
            error = self._apply_command(command)
            if error is not None:
                handle(error)

    def _apply_command(self, command: StartPod | DeletePod) -> StartRefused | None:
        try:
            if isinstance(command, DeletePod):
                self._cluster.delete(command.uid, grace=command.grace)
            # The next master finds the wanted pod in the journal.
            elif not self._is_leaving():
                self._cluster.start(command.role, command.index, command.options)
        except (RetryableError, BadInputError) as error:
            if isinstance(command, StartPod):
                return StartRefused(command.role, command.index, str(error), isinstance(error, RetryableError))
            log.warning("pod %s was not deleted: %s", command.uid, error)
        return None


# --------------------------------------------------------------------------------------------------
# Termination of the pods of a finished job: workers were asked to stop, and most exit by
# themselves; the others are deleted.


LEAVE_SECONDS = 1.5
"""Seconds that workers get to exit by themselves."""
PROGRAM_END_SECONDS = 600.0
"""The same for programs of the user's when all records are done: they evaluate and write their model then."""
GRACE_SECONDS = 0.75
"""Grace period in seconds of the pods that are then deleted."""
_POLL_SECONDS = 0.05


def wait_for_programs(shell: MasterShell, seconds: float, is_stopping: Callable[[], bool]) -> bool:
    """Wait until the programs of a done job have ended by themselves; returns whether they have.

    Args:
        shell: the shell, whose state shows which still run.
        seconds: the most that they get.
        is_stopping: whether to wait no more.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until and not is_stopping():
        with shell.lock:
            # A master that was just started does not know the pods yet.
            if shell.state.pods_synced and not running_programs(shell.state):
                return True
        shell.wait_for_change(_POLL_SECONDS)
    return False


def terminate_pods(
    shell: MasterShell,
    pods: CommandExecutor,
    gone_seconds: float,
    leave_seconds: float,
    is_stopping: Callable[[], bool],
) -> None:
    """Stop all pods and wait until they are gone.

    Args:
        shell: the shell, whose state shows when pods are gone.
        pods: executes the deletions.
        gone_seconds: maximum seconds for deleted pods to end.
        leave_seconds: seconds that workers get to exit by themselves.
        is_stopping: whether this master was told to go: then it waits for no worker any more.
    """
    # Workers exit by themselves when they learn that the job is over.
    _wait_until_gone(shell, leave_seconds, Role.WORKER, is_stopping=is_stopping)
    for pod in live_pods(shell, Role.WORKER, Role.PS):
        pods.execute(DeletePod(pod.uid, GRACE_SECONDS))
    _wait_until_gone(shell, gone_seconds, Role.WORKER, Role.PS)


def live_pods(shell: MasterShell, *roles: Role) -> list[JobPod]:
    """Pods of these roles that have not ended."""
    with shell.lock:
        return [pod for role in roles for pod in shell.state.pods.live_pods(role)]


def _wait_until_gone(
    shell: MasterShell, seconds: float, *roles: Role, is_stopping: Callable[[], bool] = lambda: False
) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and live_pods(shell, *roles) and not is_stopping():
        shell.wait_for_change(_POLL_SECONDS)
