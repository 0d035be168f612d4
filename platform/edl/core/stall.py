"""Whether training stands because parameter servers are missing, and which ones: for people.

Nothing is decided by it. A step needs all PS, so a job that lacks one does nothing, however many workers it has.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.cluster import Role
from edl.core.pod import Pod
from edl.core.state import State

SILENT_SECONDS = 10.0
"""Ten registrations: a PS that has not spoken for so long, while no worker made a step, does not answer."""
_PHASES = ("Training", "Evaluating", "Exporting")


@dataclass(frozen=True, slots=True)
class MissingPs:
    """A PS that the job waits for.

    Attributes:
        why: for people; what follows "ps-0, ".
        since: when that began, where the cluster says so: unix seconds; 0: it does not.
    """

    index: int
    why: str
    since: float = 0.0


def missing_ps(state: State, now: float) -> tuple[MissingPs, ...]:
    """The PS for want of which a job that was at work stands now."""
    if state.ended or not state.synced or state.phase not in _PHASES:
        return ()
    there = {pod.index: pod for pod in state.fleet.live(Role.PS)}
    found = (_missing(state, index, there.get(index), now) for index in range(state.fleet.ps))
    return tuple(missing for missing in found if missing is not None)


def _missing(state: State, index: int, pod: Pod | None, now: float) -> MissingPs | None:
    if pod is None:
        refusal = state.fleet.refusals.get((Role.PS, index), "")
        return MissingPs(index, f"the cluster does not start it: {refusal}" if refusal else "a new one is asked for")
    silent = now - max(pod.heard, state.stepped)
    if pod.unreachable and silent >= SILENT_SECONDS:
        return MissingPs(index, f"its node {pod.node} is unreachable", pod.unreachable)
    if not pod.ran:
        return MissingPs(index, f"it has no place yet: {pod.message}" if pod.message else "it is being started")
    if not (pod.attached and pod.initialized):
        return MissingPs(index, "it loads its checkpoint" if pod.loading else "it is being started")
    if silent >= SILENT_SECONDS:
        return MissingPs(index, f"it has not answered for {silent:.0f} s")
    return None
