"""The end of a run in words: totals, locations, next steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edl.reporting.event_text import format_block, summary_heading, summary_rows
from edl.reporting.run_progress import RunInfo, RunOutcome


def summary_lines(run_info: RunInfo, outcome: RunOutcome) -> list[str]:
    """The summary and the next steps, as lines for people.

    The output directory is listed only if it has predictions: a failed job, or a module that processes predictions
    itself, writes none.
    """
    summary = replace(outcome.summary, logs=run_info.logs or outcome.summary.logs)
    output = run_info.output if run_info.output and any(Path(run_info.output).glob("*.npz")) else None
    return [
        *format_block(summary_heading(outcome.phase, summary), summary_rows(summary, output=output)),
        *run_info.next_steps(outcome),
    ]


def failure_text(outcome: RunOutcome) -> str:
    """Why the run failed, with the user's traceback first."""
    return f"{outcome.detail.rstrip()}\n\n{outcome.reason}".strip()
