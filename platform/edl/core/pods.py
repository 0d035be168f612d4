"""The life of a pod, and whether one that ended is started again.

Transitions are a table; ``docs/design/0004-pods.md`` shows it as a diagram. Preemption is not a failure: only a pod
that ends by itself with an error counts as crashed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from edl.core.cluster import Phase, PodSeen
from edl.core.decision import Decision

SIGKILL_EXIT, SIGTERM_EXIT = 137, 143


class State(StrEnum):
    """What the master believes of a pod."""

    ASKED = "asked"
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    PREEMPTED = "preempted"
    KILLED = "killed"
    CRASHED = "crashed"
    DELETED = "deleted"


class Seen(StrEnum):
    """What can be seen of a pod, with the exit code told apart."""

    PENDING = "pending"
    RUNNING = "running"
    EXIT_0 = "exit 0"
    EXIT_SIGTERM = "exit after SIGTERM"
    EXIT_SIGKILL = "SIGKILL from outside"
    EXIT_ERROR = "exit with an error"
    GONE = "gone"


_ENDS: Mapping[Seen, State] = {
    Seen.EXIT_0: State.SUCCEEDED,
    Seen.EXIT_SIGTERM: State.PREEMPTED,
    Seen.EXIT_SIGKILL: State.KILLED,
    Seen.EXIT_ERROR: State.CRASHED,
    Seen.GONE: State.DELETED,
}
TRANSITIONS: Mapping[State, Mapping[Seen, State]] = {
    State.ASKED: {Seen.PENDING: State.PENDING, Seen.RUNNING: State.RUNNING, **_ENDS},
    State.PENDING: {Seen.PENDING: State.PENDING, Seen.RUNNING: State.RUNNING, **_ENDS},
    # A running pod that is reported pending is an old report: it stays running.
    State.RUNNING: {Seen.PENDING: State.RUNNING, Seen.RUNNING: State.RUNNING, **_ENDS},
    **{end: dict.fromkeys(Seen, end) for end in _ENDS.values()},
}
TERMINAL = frozenset(_ENDS.values())


def seen(pod: PodSeen) -> Seen:
    """Classify what a cluster said."""
    if pod.phase is Phase.PENDING:
        return Seen.PENDING
    if pod.phase is Phase.RUNNING:
        return Seen.RUNNING
    known = {0: Seen.EXIT_0, SIGTERM_EXIT: Seen.EXIT_SIGTERM, SIGKILL_EXIT: Seen.EXIT_SIGKILL}
    if pod.exit_code is None:
        return Seen.EXIT_0 if pod.phase is Phase.SUCCEEDED else Seen.GONE
    return known.get(pod.exit_code, Seen.EXIT_ERROR)


def transition(state: State, what: Seen) -> State:
    """The table, applied."""
    return TRANSITIONS[state][what]


@dataclass(frozen=True, slots=True)
class Relaunch:
    """Start a replacement after ``delay`` seconds; with None, give the job up."""

    delay: float | None


CRASHES_WITHOUT_A_STEP = 6
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0


def relaunch(ended: State, crashes_in_a_row: int) -> Decision[Relaunch]:
    """Whether a worker or PS that ended while it was needed is replaced.

    Args:
        ended: how it ended.
        crashes_in_a_row: pods of its role that crashed, this one included, since one of them last got work done.
    """
    if ended is not State.CRASHED:
        return Decision(Relaunch(0.0), f"{ended}: replaced at once, this is not a failure of the job")
    if crashes_in_a_row >= CRASHES_WITHOUT_A_STEP:
        return Decision(Relaunch(None), f"crashed {crashes_in_a_row} times in a row without getting any work done")
    delay = min(_FIRST_DELAY * 2 ** (crashes_in_a_row - 1), _LONGEST_DELAY)
    return Decision(Relaunch(delay), f"crashed: replaced after {delay:g} s")
