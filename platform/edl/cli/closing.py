"""What is said at the end of a run: what it came to, where things are, what to do next."""

from __future__ import annotations

from edl.cli.outcome import Outcome
from edl.cli.plan import Plan
from edl.cli.wording import duration, measures
from edl.spec.status import Summary

_WIDTH = 10


def closing(plan: Plan, outcome: Outcome) -> list[str]:
    """The summary, for people."""
    return [
        heading(outcome),
        *(f"  {name:<{_WIDTH}}{value}" for name, value in rows(plan, outcome)),
        *_next(plan, outcome),
    ]


def heading(outcome: Outcome) -> str:
    """How it ended, in a line."""
    summary = outcome.summary
    pace = f", {summary.samples_per_second:,.0f} samples/s" if summary.samples_per_second else ""
    done = f"{summary.records_done:,} of {summary.records_total:,} records"
    return f"{outcome.phase} after {duration(summary.seconds)}: {done}{pace}"


def rows(plan: Plan, outcome: Outcome) -> list[tuple[str, str]]:
    """The summary as names and values."""
    summary = outcome.summary
    found = [("records", _records(summary))]
    if summary.updates_rolled_back:
        found.append(("updates", f"{summary.updates_rolled_back:,} rolled back with a parameter server"))
    if summary.workers_lost:
        found.append(("workers", f"{summary.workers_lost} lost"))
    if summary.metrics:
        found.append(("metrics", measures(summary.metrics)))
    if summary.export:
        found.append(("export", summary.export))
    if plan.output:
        found.append(("output", plan.output))
    return [*found, ("logs", str(plan.run.logs))]


def complaint(outcome: Outcome) -> str:
    """Why the run is not done: the user's own traceback first."""
    return f"{outcome.detail.rstrip()}\n\n{outcome.reason}".strip()


def _records(summary: Summary) -> str:
    parts = [f"{summary.records_lost:,} lost", f"{summary.records_repeated:,} repeated"]
    parts.append(f"{summary.records_rolled_back:,} rolled back")
    if summary.records_skipped:
        parts.append(f"{summary.records_skipped:,} skipped")
    return ", ".join(parts)


def _next(plan: Plan, outcome: Outcome) -> list[str]:
    if plan.output:
        return []
    if outcome.phase != "Done":
        what = "Go on" if outcome.phase == "Interrupted" else "Go on when the cause is gone"
        return [f"{what} with: edl run {plan.job_file} --resume {plan.run.run_id}"]
    if plan.can_predict:
        return [f"Predict with: edl predict {plan.job_file} --from {plan.run.run_id} --output predictions"]
    return []
