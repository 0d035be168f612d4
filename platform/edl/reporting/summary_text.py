"""A summary for people: what ``edl run`` and strategy Local say at the end of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edl.api.status import Summary
from edl.reporting import ps_statistics_text
from edl.reporting.terminal_text import to_single_line

_WIDTH = 10
_TABLES = 4


def summary_heading(phase: str, summary: Summary) -> str:
    """How it ended, in a line."""
    pace = f", {summary.samples_per_second:,.0f} samples/s" if summary.samples_per_second else ""
    done = f"{summary.records_done:,} of {summary.records_total:,} records"
    return f"{phase} after {format_duration(summary.seconds)}: {done}{pace}"


def summary_rows(summary: Summary, *, output: str | None = None) -> list[tuple[str, str]]:
    """The summary as names and values; ``output`` is where predictions are."""
    found = [("records", _format_record_counts(summary))]
    if summary.updates_rolled_back:
        found.append(("updates", f"{summary.updates_rolled_back:,} rolled back with a parameter server"))
    if summary.steps_not_applied:
        found.append(("steps", f"{summary.steps_not_applied:,} differ between what was reported and what was applied"))
    if summary.workers_lost:
        found.append(("workers", f"{summary.workers_lost} lost"))
    if summary.parameters:
        found += ps_statistics_text.push_rows(summary.parameters) + ps_statistics_text.table_rows(
            summary.parameters, _TABLES
        )
    if summary.metrics:
        found.append(("evaluated", format_metrics(summary.metrics)))
    places = (
        ("export", summary.export),
        ("load with", summary.export_loading),
        ("output", output),
        ("logs", summary.logs),
    )
    return [*found, *((name, place) for name, place in places if place)]


def format_block(title: str, values: Iterable[tuple[str, str]]) -> list[str]:
    """A title, and below it names and values; each is a line."""
    return [title, *(to_single_line(f"  {name:<{_WIDTH}}{value}") for name, value in values)]


def format_metrics(values: Mapping[str, float | None]) -> str:
    """Metrics by name."""
    return ", ".join(f"{to_single_line(name)} {format_metric(value)}" for name, value in values.items())


def format_metric(value: float | None) -> str:
    """A metric's value; None is one that is not finite."""
    return "not finite" if value is None else f"{value:.4g}"


def format_duration(seconds: float) -> str:
    """A time that people can read: ``8 s``, ``3:05``, ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _format_record_counts(summary: Summary) -> str:
    parts = [f"{summary.records_lost:,} lost", f"{summary.records_repeated:,} repeated"]
    parts.append(f"{summary.records_rolled_back:,} rolled back")
    if summary.records_skipped:
        parts.append(f"{summary.records_skipped:,} skipped")
    return ", ".join(parts)
