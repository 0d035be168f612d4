"""How a run ended: decided from what the master left behind, how the supervisor ended, and who asked to stop."""

from __future__ import annotations

from dataclasses import dataclass

from edl.api.events import JobEnded
from edl.api.status import Summary

INTERRUPTED_EXIT, OUTPUT_CLOSED_EXIT, SIGTERM_EXIT = 130, 141, 143
"""Exit codes after Ctrl-C, after the reader of the output left, and after SIGTERM, as shells expect them."""

_STOP_REASONS = {
    INTERRUPTED_EXIT: "Ctrl-C",
    OUTPUT_CLOSED_EXIT: "nobody reads the output any more",
    SIGTERM_EXIT: "SIGTERM",
}


@dataclass(frozen=True, slots=True)
class RunFailure:
    """What the master says about a failed job.

    Attributes:
        kind: ``input``, ``nan``, ``crash`` or ``refused``; empty when unknown.
        detail: the user's own traceback, or another long text; empty when there is none.
    """

    kind: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended, and with which exit code ``edl run`` tells it."""

    phase: str
    reason: str
    summary: Summary
    exit_code: int
    detail: str = ""


def decide_outcome(ended: JobEnded, failure: RunFailure, stopped_by: int | None) -> RunOutcome:
    """The outcome of a run whose last event is known.

    Args:
        ended: the last event.
        failure: what the master left about a failure.
        stopped_by: exit code that the signal which stopped ``edl run`` asks for; None when none came.
    """
    code = 0 if ended.phase == "Done" else 1
    if ended.phase == "Interrupted":
        code = stopped_by or INTERRUPTED_EXIT
    elif ended.phase == "Failed" and failure.kind == "input":
        code = 2
    return RunOutcome(ended.phase, ended.reason, ended.summary, code, failure.detail if ended.phase == "Failed" else "")


def explain_missing_end(supervisor_exit: int, stopped_by: int | None) -> tuple[str, str]:
    """Phase and reason of a run whose master did not end it."""
    if stopped_by is not None:
        return "Interrupted", _STOP_REASONS[stopped_by]
    if supervisor_exit < 0:  # its roles are tied to it
        return "Failed", f"the supervisor was killed by signal {-supervisor_exit}, and all processes with it"
    if supervisor_exit in (INTERRUPTED_EXIT, SIGTERM_EXIT):
        return "Interrupted", "the supervisor was told to stop"
    return "Failed", "the master could not go on; the logs of supervisor and master say why"
