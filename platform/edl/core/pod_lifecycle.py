"""The life of a pod, and whether one that ended is started again.

Transitions are a table; ``docs/design/0004-pods.md`` shows it as a diagram. Losing a pod to somebody else is not a
failure: one that ends by itself with an error counts as crashed, one that ran out of memory has its own rule
(``decide_after_oom``), and a worker that a signal ended, or that exited before anybody told it to, is laid to what it
was doing (``assign_blame``).
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
    """What the master believes of a pod."""

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
    # Where nobody names a cause (processes of one machine), a SIGTERM is somebody's who needs the room.
    SIGTERM_EXIT: PodState.PREEMPTED,
    SIGKILL_EXIT: PodState.KILLED,
}
"""How a pod ended by its exit code; any other code is its own error."""

_LIVE_STATES: tuple[PodState, ...] = (PodState.PENDING, PodState.RUNNING, PodState.LEAVING)
TERMINAL_STATES = frozenset(PodState) - {PodState.ASKED, *_LIVE_STATES}
_REPORTS: Mapping[PodState, PodState] = {state: state for state in PodState if state is not PodState.ASKED}
TRANSITIONS: Mapping[PodState, Mapping[PodState, PodState]] = {
    PodState.ASKED: _REPORTS,
    PodState.PENDING: _REPORTS,
    # A running pod that is reported pending is an old report: it stays running. Nobody calls back what was told to go.
    PodState.RUNNING: {**_REPORTS, PodState.PENDING: PodState.RUNNING},
    PodState.LEAVING: {**_REPORTS, **dict.fromkeys(_LIVE_STATES, PodState.LEAVING)},
    # An end is believed once: a watch that began anew may show a pod alive that was seen to end.
    **{end: dict.fromkeys(_REPORTS, end) for end in PodState if end in TERMINAL_STATES},
}
"""What the master believes of a pod, by what it believed before and what the cluster reports now."""


def reported_state(pod: PodStatus, *, leaving_expected: bool = True) -> PodState:
    """The state that a cluster's report amounts to by itself, without what was known of the pod before.

    Args:
        pod: what it said.
        leaving_expected: the pod was told to go, or has said goodbye: an exit code of 0 is what was expected of it.
    """
    if not pod.has_ended:
        running = PodState.RUNNING if pod.phase is PodPhase.RUNNING else PodState.PENDING
        return PodState.LEAVING if pod.leaving else running
    # Whoever is told to go when its work is done ends as it should, whatever the cause: 0 comes before the cause.
    if pod.exit_code == 0:
        is_done = leaving_expected or pod.cause is not TerminationCause.NONE
        return PodState.SUCCEEDED if is_done else PodState.EXITED
    # The cause comes before other codes: a pod that is preempted ends by SIGTERM, by SIGKILL or by an error of its own
    # that it would not have had otherwise.
    if pod.cause in _CAUSE_STATES:
        return _CAUSE_STATES[pod.cause]
    if pod.exit_code is None:
        return PodState.SUCCEEDED if pod.phase is PodPhase.SUCCEEDED else PodState.DELETED
    return _EXIT_CODE_STATES.get(pod.exit_code, PodState.CRASHED)


def next_state(state: PodState, reported: PodState) -> PodState:
    """The table, applied."""
    return TRANSITIONS[state][reported]


class EndBlame(StrEnum):
    """What an end that nobody else wanted is laid to."""

    NOTHING = "nothing"
    MINIBATCH = "the minibatch at work"
    ROLE = "the role"


_UNEXPLAINED_STATES = frozenset({PodState.KILLED, PodState.EXITED})


def assign_blame(ended: PodState, *, is_explained: bool, is_working: bool, in_minibatch: bool) -> EndBlame:
    """What the end of a worker is laid to when it left without a word: a model can exit 0 or exhaust the memory.

    The kernel kills with SIGKILL when the memory of a machine runs out, which looks as if a person had done it. So one
    end proves nothing. Three in the same minibatch of training do, and so do six (``MAX_CRASHES``) with next to no
    work between of workers that trained on no minibatch yet: kills from outside hit different ones.

    Args:
        ended: how it ended.
        wanted: the cluster says why, the worker was told to go, or it said goodbye.
        working: it had work, or had never been given any: it was starting.
        in_minibatch: it had built its model, and was in a minibatch of training.
    """
    if is_explained or ended not in _UNEXPLAINED_STATES or not is_working:
        return EndBlame.NOTHING
    return EndBlame.MINIBATCH if in_minibatch else EndBlame.ROLE


MAX_CRASHES = 6
STEPS_PER_CRASH = 16
"""Steps of all workers that make good for one crash: what gets a few steps further each time is still broken."""
_CRASH_BACKOFF = ExponentialBackoff(first_seconds=0.5, max_seconds=30.0)
_LOSS_REASONS: Mapping[PodState, str] = {
    PodState.SUCCEEDED: "it had nothing left to do",
    PodState.PREEMPTED: "it was preempted",
    PodState.EVICTED: "its node evicted it",
    PodState.NODE_LOST: "its node is gone",
    PodState.DELETED: "it was deleted",
    PodState.KILLED: "it was ended by a signal",
    PodState.EXITED: "it exited without an error",
    PodState.OUT_OF_MEMORY: "what replaces it gets more memory",
}


def decide_relaunch(ended: PodState, crash_count: int, *, crashed: bool | None = None) -> Decision[float | None]:
    """After how many seconds a worker or PS that ended while it was needed is replaced; None: the job is given up.

    Args:
        ended: how it ended. Whether the job can live with a lack of memory is decided before (module ``memory``).
        crashes: of pods of its role, this one included, that no work has made good for.
        crashed: whether this one counts as a crash; by default one that ended with an error.
    """
    if not (ended is PodState.CRASHED if crashed is None else crashed):
        return Decision(0.0, f"{ended}: {_LOSS_REASONS[ended]}; replaced at once, this is not a failure of the job")
    if crash_count >= MAX_CRASHES:
        return Decision(None, f"crashed {crash_count} times with almost no progress in between")
    delay = _CRASH_BACKOFF.delay(crash_count)
    return Decision(delay, f"crashed: replaced after {delay:g} s")


# --------------------------------------------------------------------------------------------------
# What follows when a pod ran out of memory: successors get more, or the job ends and says which field is too small.


MAX_RAISES = 3
"""A model that needs more than three times the factor has a leak or a wrong spec."""


@dataclass(frozen=True, slots=True)
class MemoryRaise:
    """What workers that are asked for now get; survives the master.

    Attributes:
        raise_count: how often it was raised.
        first_worker: workers with a lower index were asked for with less.
    """

    raise_count: int = 0
    first_worker: int = 0

    def memory_factor(self, raise_factor: float) -> float:
        """Of the memory that the spec says, when each raise multiplies it by ``raise_factor``."""
        return raise_factor**self.raise_count


NO_MEMORY_RAISE = MemoryRaise()


def decide_after_oom(
    memory: MemoryRaise, worker_index: int, next_worker_index: int, raise_factor: float, requested_memory: str
) -> Decision[MemoryRaise | None]:
    """What workers get after the one with ``worker_index`` ran out of memory; None: the job cannot go on.

    Several that run out of it together raise it once: the index says what each of them had.

    Args:
        next_index: of the worker that is asked for next.
        each: ``workers.oom_memory_factor``.
        size: what the spec asks for, for people.
    """
    message = f"worker-{worker_index} ran out of memory"
    if worker_index < memory.first_worker:
        return Decision(memory, f"{message}: workers requested since then already get more")
    if raise_factor <= 1:
        return Decision(
            None,
            f"{message}: workers.resources.memory{_size_suffix(requested_memory)} is too little. Raise it, or set"
            " workers.oom_memory_factor above 1 to have successors ask for more",
        )
    if memory.raise_count >= MAX_RAISES:
        return Decision(
            None,
            f"{message} with {memory.memory_factor(raise_factor):.3g} times "
            f"workers.resources.memory{_size_suffix(requested_memory)}: raise that; "
            f"workers.oom_memory_factor multiplies it {MAX_RAISES} times at most",
        )
    raised = MemoryRaise(memory.raise_count + 1, next_worker_index)
    return Decision(
        raised, f"{message}: the next ones get {raised.memory_factor(raise_factor):.3g} times workers.resources.memory"
    )


def ps_oom_reason(ps_index: int, requested_memory: str) -> str:
    """Why a job ends whose PS ran out of memory: the one after it would have to hold as much."""
    return (
        f"ps-{ps_index} ran out of memory: ps.resources.memory{_size_suffix(requested_memory)} is too "
        "little for its share of the"
        " parameters"
    )


def _size_suffix(size: str) -> str:
    return f" of {size}" if size else ""
