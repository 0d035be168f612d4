"""Pods, as the master sees them: watching the cluster, and asking it for changes, each on a thread of its own."""

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
from edl.master import guarded_threads
from edl.master.shell import CommandExecutor, MasterShell

log = logging.getLogger(__name__)


class PodController:
    """Carries out StartPod and DeletePod, and turns what the cluster says into events."""

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
        """Begin to watch and to serve wishes.

        Args:
            handle: gets what the cluster says.
            failed: told when the cluster is gone for good.
            leaves: whether the master is on its way out and leaves the job to another: nothing is started any more.
        """
        self._is_leaving = is_leaving
        guarded_threads.start_guarded_thread("pods-watch", lambda: self._watch_cluster(handle), on_failure)
        guarded_threads.start_guarded_thread("pods-wishes", lambda: self._run_commands(handle), on_failure)

    def execute(self, command: CoreCommand) -> None:
        """Queue a wish."""
        assert isinstance(command, StartPod | DeletePod)
        self._commands.put(command)

    def close(self) -> None:
        """Stop watching; pods stay as they are."""
        self._closed = True
        self._commands.put(None)
        self._cluster.close()

    def _watch_cluster(self, handle: Callable[[CoreEvent], Any]) -> None:
        for seen in self._cluster.watch():
            handle(PodsSynced() if isinstance(seen, WatchSynced) else PodChanged(seen))
        # A watch ends only when it is closed. Without one, this master would never hear that a pod has ended.
        if not self._closed:
            raise RetryableError("the watch on the pods ended")

    def _run_commands(self, handle: Callable[[CoreEvent], Any]) -> None:
        while (command := self._commands.get()) is not None and not self._closed:
            refusal = self._execute_command(command)
            if refusal is not None:
                handle(refusal)

    def _execute_command(self, command: StartPod | DeletePod) -> StartRefused | None:
        try:
            if isinstance(command, DeletePod):
                self._cluster.delete(command.uid, grace=command.grace)
            elif not self._is_leaving():  # the next master finds in the journal that it is wanted
                self._cluster.start(command.role, command.index, command.options)
        except (RetryableError, BadInputError) as error:
            if isinstance(command, StartPod):
                return StartRefused(command.role, command.index, str(error), isinstance(error, RetryableError))
            log.warning("pod %s was not deleted: %s", command.uid, error)
        return None


# --------------------------------------------------------------------------------------------------
# How the pods of a job that is over go: workers were told to stop, and most leave by themselves; the rest is told.


LEAVE_SECONDS = 1.5
"""How long workers get to leave by themselves."""
GRACE_SECONDS = 0.75
"""What pods get that are then told to go."""
_POLL_SECONDS = 0.05


def terminate_pods(shell: MasterShell, pods: CommandExecutor, gone_seconds: float) -> None:
    """Let all pods go, and wait until they are gone.

    Args:
        shell: hears from the cluster that they are.
        pods: tells them.
        gone_seconds: how long those that are told may take.
    """
    _wait_until_gone(shell, LEAVE_SECONDS, Role.WORKER)
    for pod in live_pods(shell, Role.WORKER, Role.PS):
        pods.execute(DeletePod(pod.uid, GRACE_SECONDS))
    _wait_until_gone(shell, gone_seconds, Role.WORKER, Role.PS)


def live_pods(shell: MasterShell, *roles: Role) -> list[JobPod]:
    """The pods of these roles that have not ended."""
    with shell.lock:
        return [pod for role in roles for pod in shell.state.pods.live_pods(role)]


def _wait_until_gone(shell: MasterShell, seconds: float, *roles: Role) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and live_pods(shell, *roles):
        shell.wait_for_change(_POLL_SECONDS)
