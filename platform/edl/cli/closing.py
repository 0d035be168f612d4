"""What is said at the end of a run: what it came to, where things are, what to do next."""

from __future__ import annotations

from dataclasses import replace

from edl.cli.outcome import Outcome
from edl.cli.plan import Plan
from edl.spec.closing import block, heading, rows


def closing(plan: Plan, outcome: Outcome) -> list[str]:
    """The summary, for people."""
    summary = replace(outcome.summary, logs=str(plan.run.logs))
    return [*block(heading(outcome.phase, summary), rows(summary, output=plan.output)), *_next(plan, outcome)]


def complaint(outcome: Outcome) -> str:
    """Why the run is not done: the user's own traceback first."""
    return f"{outcome.detail.rstrip()}\n\n{outcome.reason}".strip()


def _next(plan: Plan, outcome: Outcome) -> list[str]:
    if plan.output:
        return []
    if outcome.phase != "Done":
        what = "Go on" if outcome.phase == "Interrupted" else "Go on when the cause is gone"
        return [f"{what} with: edl run {plan.job_file} --resume {plan.run.run_id}"]
    if plan.can_predict:
        return [f"Predict with: edl predict {plan.job_file} --from {plan.run.run_id} --output predictions"]
    return []
