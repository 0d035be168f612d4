"""What is said at the end of a run: what it came to, where things are, what to do next."""

from __future__ import annotations

from dataclasses import replace

from edl.cli.faces.outcome import Outcome
from edl.cli.faces.undertaking import Undertaking
from edl.spec.closing import block, heading, rows


def closing(plan: Undertaking, outcome: Outcome) -> list[str]:
    """The summary, for people."""
    summary = replace(outcome.summary, logs=plan.logs or outcome.summary.logs)
    return [*block(heading(outcome.phase, summary), rows(summary, output=plan.output)), *plan.next_steps(outcome)]


def complaint(outcome: Outcome) -> str:
    """Why the run is not done: the user's own traceback first."""
    return f"{outcome.detail.rstrip()}\n\n{outcome.reason}".strip()
