"""Which workers of AllReduce are replaced because nothing has been heard of them for minutes.

A worker that is stopped (SIGSTOP, a debugger, a machine that hangs) has no part in the rounds after seconds, and the
others train on. But its process lives, so it keeps its place, and the job has one worker less than it wants. After
minutes it is asked to stop, as an excess worker is. The usual rules then find its place empty.
"""

from __future__ import annotations

from edl.api.cluster_port import Role
from edl.api.run_events import WarningRaised
from edl.core.grants import record_heartbeat
from edl.core.lease_timeouts import SILENCE_FLOOR
from edl.core.scaling import terminate_worker
from edl.core.state import JobState

REPLACEMENT_SILENCE_SECONDS = 300.0
"""Seconds without any message after which a worker is replaced.

Many times longer than what makes it lose its rank: a worker that comes back keeps its process and its traced model.
"""


def replace_silent_workers(state: JobState, now: float) -> None:
    """Ask workers to stop that have been silent for too long, while another one is heard.

    Call this in a tick, after the silence that the master caused is excused. While no worker is heard, the master may
    be the one that is cut off, and the workers train on without it: such a time does not count.
    """
    if state.world is None or state.has_ended or not state.pods_synced:
        return
    # While a worker starts, large libraries may keep its threads from running.
    workers = [pod for pod in state.pods.by_role[Role.WORKER].staying.values() if pod.has_run and not pod.building]
    for pod in workers:
        if pod.uid not in state.holders:
            # This master has not heard it yet.
            record_heartbeat(state, pod.uid, now)
    latest = max((state.holders[pod.uid].last_seen for pod in workers if pod.uid in state.holders), default=now)
    if now - latest >= SILENCE_FLOOR:
        state.workers_heard_since = None
        return
    if state.workers_heard_since is None:
        state.workers_heard_since = now
    for pod in workers:
        holder = state.holders.get(pod.uid)
        if holder is None:
            continue
        silent = now - max(holder.last_seen, state.workers_heard_since)
        if silent >= REPLACEMENT_SILENCE_SECONDS:
            state.emit(WarningRaised(f"worker-{pod.index} has sent nothing for {silent:.0f} s: it is replaced"))
            terminate_worker(state, pod, f"it sent nothing for {silent:.0f} s", now)
