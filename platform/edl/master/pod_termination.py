"""How the pods of a job that is over go: workers were told to stop, and most leave by themselves; the rest is told."""

from __future__ import annotations

import time

from edl.api.cluster_port import Role
from edl.core.events import DeletePod
from edl.core.job_pods import JobPod
from edl.master.shell import CommandExecutor, MasterShell

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
        pods.do(DeletePod(pod.uid, GRACE_SECONDS))
    _wait_until_gone(shell, gone_seconds, Role.WORKER, Role.PS)


def live_pods(shell: MasterShell, *roles: Role) -> list[JobPod]:
    """The pods of these roles that have not ended."""
    with shell.lock:
        return [pod for role in roles for pod in shell.state.pods.live(role)]


def _wait_until_gone(shell: MasterShell, seconds: float, *roles: Role) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and live_pods(shell, *roles):
        shell.pause(_POLL_SECONDS)
