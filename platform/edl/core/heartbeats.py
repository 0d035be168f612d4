"""When workers were last heard of."""

from __future__ import annotations

from edl.core.lease_timeouts import LeaseHolder
from edl.core.state import JobState


def record_heartbeat(state: JobState, worker: str, now: float) -> None:
    """A worker spoke. What arrives late from one that has ended says nothing."""
    if state.pods.has_ended(worker):
        return
    holder = state.holders.get(worker)
    if holder is None:
        pod = state.pods.pods.get(worker)
        state.holders[worker] = LeaseHolder(now, starting=pod is not None and pod.building)
        return
    if holder.stepped:
        state.patience.heard(now - holder.heard, now)
    holder.heard = now
