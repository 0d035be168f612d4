"""How the programs of a job with a command ended after the last record.

The records decide when such a job is done. What a program does afterwards, such as writing its model, is a part of
the job too: if a program fails there, the job has failed, although all of its records are done. A worker that the
cluster takes away is no failure here either, as long as the program of another one has ended in order.
"""

from __future__ import annotations

from edl.api.journal_entries import JobPhaseChanged
from edl.api.run_events import WarningRaised
from edl.core.events import EndJob
from edl.core.job_pods import JobPod
from edl.core.journal_application import record_entry
from edl.core.pod_lifecycle import PodState
from edl.core.short_list import format_short_list
from edl.core.state import JobState

_TAKEN_AWAY = (PodState.PREEMPTED, PodState.EVICTED, PodState.NODE_LOST, PodState.DELETED)
_NAMED = 3
"""Programs that a reason names; there may be a thousand."""


def running_programs(state: JobState) -> list[JobPod]:
    """The workers that had started when the last record was done, and whose programs still run."""
    return [pod for pod in _programs_at_end(state) if pod.live]


def fail_for_program_ends(state: JobState, seconds: float | None) -> None:
    """Let a done job fail if a program did not end in order after the last record.

    Args:
        seconds: how long programs had for it; None: the job was stopped meanwhile.
    """
    programs = _programs_at_end(state)
    failed = [pod for pod in programs if pod.state is not PodState.SUCCEEDED]
    if state.phase != "Done" or not failed:
        return
    problems = [_describe_program_end(pod, seconds) for pod in failed]
    named = format_short_list(problems, _NAMED, separator="; ")
    if len(failed) < len(programs) and all(pod.state in _TAKEN_AWAY for pod in failed):
        state.emit(WarningRaised(f"{named}; others ended in order"))
        return
    reason = f"{named}: {state.reason}, but what programs do after them, such as writing a model, may be missing"
    message, detail = state.last_failure or ("", "")
    if message:
        reason += f": {message}"
    # The next master must find it, if this one ends before it has reported the end.
    record_entry(state, JobPhaseChanged(name="Failed", reason=reason))
    state.add_commands(EndJob("Failed", reason, detail, "crash"))


def _programs_at_end(state: JobState) -> list[JobPod]:
    """Without workers that were on their way out: nothing waits for them."""
    workers = (state.pods.by_uid.get(uid) for uid in state.pods.worker_indices if uid not in state.pods.leaving_workers)
    return sorted((pod for pod in workers if pod is not None and not pod.has_left), key=lambda pod: pod.index)


def _describe_program_end(pod: JobPod, seconds: float | None) -> str:
    program = f"worker-{pod.index}'s program"
    if pod.live:
        when = "when the job was stopped" if seconds is None else f"{seconds:g} s later"
        return f"{program} went on after the last record, and had not ended {when}"
    if pod.exit_code is None:
        return f"{program} ended after the last record, and nobody knows how ({pod.describe_end()})"
    cause = f" ({pod.describe_end()})" if pod.cause else ""
    return f"{program} ended with exit code {pod.exit_code} after the last record{cause}"
