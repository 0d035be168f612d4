"""Pod states and transitions, and the decision whether to relaunch a pod that ended.

Transitions are a table; ``docs/design/0004-pods.md`` shows it as a diagram. A pod that somebody else
ended (preemption, eviction, a lost node) is no failure. A pod that ends with an error has crashed.
``decide_after_oom`` is the rule for a pod that ran out of memory. ``assign_blame`` decides about a
worker that a signal ended, or that exited early without an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from edl.api.cluster_port import PodPhase, PodStatus, TerminationCause
from edl.api.exit_codes import SIGKILL_EXIT, SIGTERM_EXIT
from edl.core.backoff import ExponentialBackoff
from edl.core.decision import Decision


class PodState(StrEnum):
    """The master's view of a pod."""

    ASKED = "asked"
    PENDING = "pending"
    RUNNING = "running"
    LEAVING = "leaving"
    SUCCEEDED = "succeeded"
    EXITED = "exited early"
    PREEMPTED = "preempted"
    EVICTED = "evicted"
    OUT_OF_MEMORY = "out of memory"
    CRASHED = "crashed"
    NODE_LOST = "node lost"
    DELETED = "deleted"
    KILLED = "killed"


_CAUSE_STATES: Mapping[TerminationCause, PodState] = {
    TerminationCause.PREEMPTED: PodState.PREEMPTED,
    TerminationCause.EVICTED: PodState.EVICTED,
    TerminationCause.OUT_OF_MEMORY: PodState.OUT_OF_MEMORY,
    TerminationCause.NODE_LOST: PodState.NODE_LOST,
    TerminationCause.DELETED: PodState.DELETED,
}
_EXIT_CODE_STATES: Mapping[int, PodState] = {
    # Without a cluster that reports causes (local processes), SIGTERM is taken as a preemption.
    SIGTERM_EXIT: PodState.PREEMPTED,
    SIGKILL_EXIT: PodState.KILLED,
}
"""Pod end by exit code; any other code is an error of the pod itself."""

_LIVE_STATES: tuple[PodState, ...] = (PodState.PENDING, PodState.RUNNING, PodState.LEAVING)
TERMINAL_STATES = frozenset(PodState) - {PodState.ASKED, *_LIVE_STATES}
_REPORTS: Mapping[PodState, PodState] = {state: state for state in PodState if state is not PodState.ASKED}
TRANSITIONS: Mapping[PodState, Mapping[PodState, PodState]] = {
    PodState.ASKED: _REPORTS,
    PodState.PENDING: _REPORTS,
    # A report of "pending" about a running pod is stale and ignored. A pod that was asked to stop
    # stays in that state.
    PodState.RUNNING: {**_REPORTS, PodState.PENDING: PodState.RUNNING},
    PodState.LEAVING: {**_REPORTS, **dict.fromkeys(_LIVE_STATES, PodState.LEAVING)},
    # An end is final: a restarted watch may report a pod alive that was already seen to end.
    **{end: dict.fromkeys(_REPORTS, end) for end in PodState if end in TERMINAL_STATES},
}
"""The next state, by the current state and the state that the cluster reports."""


def reported_state(pod: PodStatus, *, leaving_expected: bool = True) -> PodState:
    """The state that a cluster's report implies by itself, regardless of the current state.

    Args:
        pod: the cluster's report.
        leaving_expected: whether the pod was asked to stop or announced that it leaves, so that exit code 0
            is expected.
    """
    if not pod.has_ended:
        running = PodState.RUNNING if pod.phase is PodPhase.RUNNING else PodState.PENDING
        return PodState.LEAVING if pod.leaving else running
    # A pod that was asked to stop after its work was done has ended as expected, whatever the
    # reported cause: exit code 0 takes precedence over the cause.
    if pod.exit_code == 0:
        is_done = leaving_expected or pod.cause is not TerminationCause.NONE
        return PodState.SUCCEEDED if is_done else PodState.EXITED
    # The cause takes precedence over other exit codes: a preempted pod may end by SIGTERM, by
    # SIGKILL, or with an error that the preemption provoked.
    if pod.cause in _CAUSE_STATES:
        return _CAUSE_STATES[pod.cause]
    if pod.exit_code is None:
        return PodState.SUCCEEDED if pod.phase is PodPhase.SUCCEEDED else PodState.DELETED
    return _EXIT_CODE_STATES.get(pod.exit_code, PodState.CRASHED)


def next_state(state: PodState, reported: PodState) -> PodState:
    """The transition table, applied."""
    return TRANSITIONS[state][reported]


class EndBlame(StrEnum):
    """What an end is attributed to if nothing external wanted it."""

    NOTHING = "nothing"
    MINIBATCH = "the minibatch at work"
    ROLE = "the role"


_UNEXPLAINED_STATES = frozenset({PodState.KILLED, PodState.EXITED})


def assign_blame(ended: PodState, *, is_explained: bool, is_working: bool, in_minibatch: bool) -> EndBlame:
    """Attribute the end of a worker that reported no error: the model may call exit(0) or exhaust the memory.

    The kernel sends SIGKILL when the memory of a machine runs out, which looks like a kill by a person. So
    a single end proves nothing. Three in the same minibatch of training do, because kills from outside
    hit different ones. So do six (``MAX_CRASHES``), with almost no work in between, of workers that were
    not training a minibatch.

    Args:
        ended: how the worker ended.
        is_explained: whether the cluster reports a cause, or the worker was told to leave or announced that
            it leaves.
        is_working: whether it had work, or was still starting and had never had any.
        in_minibatch: whether it had built its model and was training a minibatch.
    """
    if is_explained or ended not in _UNEXPLAINED_STATES or not is_working:
        return EndBlame.NOTHING
    return EndBlame.MINIBATCH if in_minibatch else EndBlame.ROLE


MAX_CRASHES = 6
"""Crashes of a role after which the job fails, less those that completed steps have offset."""
STEPS_PER_CRASH = 16
"""Steps of all workers that offset one crash: a job that advances only a few steps per crash is still broken."""
_CRASH_BACKOFF = ExponentialBackoff(first_seconds=0.5, max_seconds=30.0)
_LOSS_REASONS: Mapping[PodState, str] = {
    PodState.SUCCEEDED: "it had no work left",
    PodState.PREEMPTED: "it was preempted",
    PodState.EVICTED: "its node evicted it",
    PodState.NODE_LOST: "its node is lost",
    PodState.DELETED: "it was deleted",
    PodState.KILLED: "a signal ended it",
    PodState.EXITED: "it exited without an error",
    PodState.OUT_OF_MEMORY: "its replacement gets more memory",
}


def decide_relaunch(ended: PodState, crash_count: int, *, crashed: bool | None = None) -> Decision[float | None]:
    """Seconds until a pod that ended while it was needed is replaced; None: the job fails.

    Args:
        ended: how the pod ended. ``decide_after_oom`` has decided before whether the job can continue after
            a lack of memory.
        crash_count: crashes of the role that no progress has offset, including this one.
        crashed: whether this end counts as a crash; by default if the pod ended with an error.
    """
    if not (ended is PodState.CRASHED if crashed is None else crashed):
        return Decision(0.0, f"{ended}: {_LOSS_REASONS[ended]}; replaced at once, this is not a failure of the job")
    if crash_count >= MAX_CRASHES:
        return Decision(None, f"crashed {crash_count} times with almost no progress in between")
    delay = _CRASH_BACKOFF.delay(crash_count)
    return Decision(delay, f"crashed: replaced after {delay:g} s")


# --------------------------------------------------------------------------------------------------
# Out of memory: successors get more memory, or the job ends and names the field to raise.


MAX_RAISES = 3
"""How often the memory is raised. A model that needs still more has a memory leak or a wrong spec."""


@dataclass(frozen=True, slots=True)
class MemoryRaise:
    """The memory of workers that are requested from now on; survives a master restart.

    Attributes:
        raise_count: how often the memory was raised.
        first_worker: workers with a lower index were requested with less memory.
    """

    raise_count: int = 0
    first_worker: int = 0

    def memory_factor(self, raise_factor: float) -> float:
        """The multiple of the spec's memory, given that each raise multiplies it by ``raise_factor``."""
        return raise_factor**self.raise_count


NO_MEMORY_RAISE = MemoryRaise()


def decide_after_oom(
    memory: MemoryRaise, worker_index: int, next_worker_index: int, raise_factor: float, requested_memory: str
) -> Decision[MemoryRaise | None]:
    """The memory of new workers after ``worker_index`` ran out of memory; None: the job cannot continue.

    Args:
        next_worker_index: the index of the next new worker.
        raise_factor: ``workers.oom_memory_factor``.
        requested_memory: the memory that the spec requests, for messages.
    """
    message = f"worker-{worker_index} ran out of memory"
    # Workers that run out of memory together raise it once: the index shows how much each of them had.
    if worker_index < memory.first_worker:
        return Decision(memory, f"{message}: workers requested since then already get more")
    if raise_factor <= 1:
        return Decision(
            None,
            f"{message}: workers.resources.memory{_size_suffix(requested_memory)} is too little. Raise it, or set"
            " workers.oom_memory_factor above 1, so that new workers request more",
        )
    if memory.raise_count >= MAX_RAISES:
        return Decision(
            None,
            f"{message} with {memory.memory_factor(raise_factor):.3g} times "
            f"workers.resources.memory{_size_suffix(requested_memory)}: raise that field; "
            f"workers.oom_memory_factor multiplies it at most {MAX_RAISES} times",
        )
    raised = MemoryRaise(memory.raise_count + 1, next_worker_index)
    return Decision(
        raised, f"{message}: new workers get {raised.memory_factor(raise_factor):.3g} times workers.resources.memory"
    )


def ps_oom_reason(ps_index: int, requested_memory: str) -> str:
    """Why a job fails when a PS runs out of memory: a successor would have to hold the same parameters."""
    return (
        f"ps-{ps_index} ran out of memory: ps.resources.memory{_size_suffix(requested_memory)} is too little for its"
        " share of the parameters"
    )


def _size_suffix(size: str) -> str:
    return f" of {size}" if size else ""
