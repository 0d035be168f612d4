"""The life of a pod, and whether one that ended is started again.

Transitions are a table; ``docs/design/0004-pods.md`` shows it as a diagram. Losing a pod to somebody else is not a
failure: one that ends by itself with an error counts as crashed, one that ran out of memory has its own rule (module
``memory``), and a worker that a signal ended, or that exited before anybody told it to, is laid to what it was doing
(``blame``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from edl.api.cluster_port import Cause, Phase, PodSeen
from edl.core.decision import Decision

SIGKILL_EXIT, SIGTERM_EXIT = 137, 143


class State(StrEnum):
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


class Seen(StrEnum):
    """What can be seen of a pod: how far it is, and of one that ended, how."""

    PENDING = "pending"
    RUNNING = "running"
    LEAVING = "told to go"
    EXIT_0 = "exit 0"
    EXIT_EARLY = "exit 0 before it was told to go"
    EXIT_SIGTERM = "exit after SIGTERM"
    EXIT_SIGKILL = "SIGKILL"
    EXIT_ERROR = "exit with an error"
    GONE = "gone"
    PREEMPTED = "end by preemption"
    EVICTED = "end by eviction"
    OUT_OF_MEMORY = "end by lack of memory"
    NODE_LOST = "end with its node"
    DELETED = "end by deletion"


_ENDS: Mapping[Seen, State] = {
    Seen.EXIT_0: State.SUCCEEDED,
    Seen.EXIT_EARLY: State.EXITED,
    Seen.EXIT_SIGTERM: State.PREEMPTED,
    Seen.EXIT_SIGKILL: State.KILLED,
    Seen.EXIT_ERROR: State.CRASHED,
    Seen.GONE: State.DELETED,
    Seen.PREEMPTED: State.PREEMPTED,
    Seen.EVICTED: State.EVICTED,
    Seen.OUT_OF_MEMORY: State.OUT_OF_MEMORY,
    Seen.NODE_LOST: State.NODE_LOST,
    Seen.DELETED: State.DELETED,
}
_BEGINS = {Seen.PENDING: State.PENDING, Seen.RUNNING: State.RUNNING, Seen.LEAVING: State.LEAVING}
TRANSITIONS: Mapping[State, Mapping[Seen, State]] = {
    State.ASKED: {**_BEGINS, **_ENDS},
    State.PENDING: {**_BEGINS, **_ENDS},
    # A running pod that is reported pending is an old report: it stays running. Nobody calls back what was told to go.
    State.RUNNING: {**_BEGINS, Seen.PENDING: State.RUNNING, **_ENDS},
    State.LEAVING: {**dict.fromkeys(_BEGINS, State.LEAVING), **_ENDS},
    **{end: dict.fromkeys(Seen, end) for end in _ENDS.values()},
}
TERMINAL = frozenset(_ENDS.values())

_CODES: Mapping[int, Seen] = {0: Seen.EXIT_0, SIGTERM_EXIT: Seen.EXIT_SIGTERM, SIGKILL_EXIT: Seen.EXIT_SIGKILL}
_CAUSES: Mapping[Cause, Seen] = {
    Cause.PREEMPTED: Seen.PREEMPTED,
    Cause.EVICTED: Seen.EVICTED,
    Cause.OUT_OF_MEMORY: Seen.OUT_OF_MEMORY,
    Cause.NODE_LOST: Seen.NODE_LOST,
    Cause.DELETED: Seen.DELETED,
}


def seen(pod: PodSeen, *, told: bool = True) -> Seen:
    """Classify what a cluster said. A cause explains an end better than an exit code, unless that is 0.

    Args:
        pod: what it said.
        told: the pod was told to go, or has said goodbye: an exit code of 0 is what was expected of it.
    """
    if not pod.ended:
        running = Seen.RUNNING if pod.phase is Phase.RUNNING else Seen.PENDING
        return Seen.LEAVING if pod.leaving else running
    if pod.exit_code == 0:
        return Seen.EXIT_0 if told or pod.cause is not Cause.NONE else Seen.EXIT_EARLY
    if pod.cause in _CAUSES:
        return _CAUSES[pod.cause]
    if pod.exit_code is None:
        return Seen.EXIT_0 if pod.phase is Phase.SUCCEEDED else Seen.GONE
    return _CODES.get(pod.exit_code, Seen.EXIT_ERROR)


def transition(state: State, what: Seen) -> State:
    """The table, applied."""
    return TRANSITIONS[state][what]


class Blame(StrEnum):
    """What an end that nobody else wanted is laid to."""

    NOTHING = "nothing"
    MINIBATCH = "the minibatch at work"
    ROLE = "the role"


_UNEXPLAINED = frozenset({State.KILLED, State.EXITED})


def blame(ended: State, *, wanted: bool, working: bool, in_minibatch: bool) -> Blame:
    """What the end of a worker is laid to when it left without a word: a model can exit 0 or exhaust the memory.

    The kernel kills with SIGKILL when the memory of a machine runs out, which looks as if a person had done it. So one
    end proves nothing. Three in the same minibatch of training do, and so do six (``MOST_CRASHES``) with next to no
    work between of workers that trained on no minibatch yet: kills from outside hit different ones.

    Args:
        ended: how it ended.
        wanted: the cluster says why, the worker was told to go, or it said goodbye.
        working: it had work, or had never been given any: it was starting.
        in_minibatch: it had built its model, and was in a minibatch of training.
    """
    if wanted or ended not in _UNEXPLAINED or not working:
        return Blame.NOTHING
    return Blame.MINIBATCH if in_minibatch else Blame.ROLE


@dataclass(frozen=True, slots=True)
class Relaunch:
    """Start a replacement after ``delay`` seconds; with None, give the job up."""

    delay: float | None


MOST_CRASHES = 6
STEPS_PER_CRASH = 16
"""Steps of all workers that make good for one crash: what gets a few steps further each time is still broken."""
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0
_LOST: Mapping[State, str] = {
    State.SUCCEEDED: "it had nothing left to do",
    State.PREEMPTED: "others need the room more",
    State.EVICTED: "its node had to let it go",
    State.NODE_LOST: "its node is gone",
    State.DELETED: "somebody deleted it",
    State.KILLED: "a signal ended it",
    State.EXITED: "it ended by itself, without an error",
    State.OUT_OF_MEMORY: "what replaces it gets more memory",
}


def relaunch(ended: State, crashes: int, *, crashed: bool | None = None) -> Decision[Relaunch]:
    """Whether a worker or PS that ended while it was needed is replaced.

    Args:
        ended: how it ended. Whether the job can live with a lack of memory is decided before (module ``memory``).
        crashes: of pods of its role, this one included, that no work has made good for.
        crashed: whether this one counts as a crash; by default one that ended with an error.
    """
    if not (ended is State.CRASHED if crashed is None else crashed):
        return Decision(Relaunch(0.0), f"{ended}: {_LOST[ended]}; replaced at once, this is not a failure of the job")
    if crashes >= MOST_CRASHES:
        return Decision(Relaunch(None), f"crashed {crashes} times with next to no work done between")
    delay = min(_FIRST_DELAY * 2 ** (crashes - 1), _LONGEST_DELAY)
    return Decision(Relaunch(delay), f"crashed: replaced after {delay:g} s")
