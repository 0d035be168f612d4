"""How the pods of a job that is over go: workers were told to stop, and most leave by themselves; the rest is told."""

from __future__ import annotations

import time

from edl.api.cluster_port import Role
from edl.core.events import DeletePod
from edl.core.job_pods import Pod
from edl.master.shell import Effects, Shell

LEAVE_SECONDS = 1.5
"""How long workers get to leave by themselves."""
GRACE_SECONDS = 0.75
"""What pods get that are then told to go."""
_LOOK_SECONDS = 0.05


def dismiss(shell: Shell, pods: Effects, gone_seconds: float) -> None:
    """Let all pods go, and wait until they are gone.

    Args:
        shell: hears from the cluster that they are.
        pods: tells them.
        gone_seconds: how long those that are told may take.
    """
    _await_gone(shell, LEAVE_SECONDS, Role.WORKER)
    for pod in live(shell, Role.WORKER, Role.PS):
        pods.do(DeletePod(pod.uid, GRACE_SECONDS))
    _await_gone(shell, gone_seconds, Role.WORKER, Role.PS)


def live(shell: Shell, *roles: Role) -> list[Pod]:
    """The pods of these roles that have not ended."""
    with shell.lock:
        return [pod for role in roles for pod in shell.state.fleet.live(role)]


def _await_gone(shell: Shell, seconds: float, *roles: Role) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and live(shell, *roles):
        shell.pause(_LOOK_SECONDS)
