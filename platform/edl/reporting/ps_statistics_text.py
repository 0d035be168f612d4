"""Statistics of the parameter servers in words, for the status of a job and its summary."""

from __future__ import annotations

from collections.abc import Iterator

from edl.api.status import ParametersStatus, TableStatus
from edl.api.strategy import PushStrategy
from edl.reporting.unit_formats import format_bytes, format_percent


def push_rows(ps_status: ParametersStatus) -> list[tuple[str, str]]:
    """Statistics of pushes and updates, as names and values."""
    rows = [("mode", f"{describe_strategy(ps_status.strategy)}{_describe_staleness(ps_status)}")]
    if ps_status.strategy.mode == "sync" and ps_status.pushes + ps_status.refused:
        rows.append(("pushes", _describe_pushes(ps_status)))
    return rows


def table_rows(ps_status: ParametersStatus, max_tables: int) -> list[tuple[str, str]]:
    """Statistics of tables, one per row; only the first row has a name."""
    texts = [f"{table.name}: {_describe_table(table)}" for table in ps_status.tables[:max_tables]]
    if (more := ps_status.tables_total - len(texts)) > 0 and texts:
        texts.append(f"and {more} more")
    return [("" if index else "tables", text) for index, text in enumerate(texts)]


def describe_strategy(strategy: PushStrategy) -> str:
    """The strategy in words: ``sync, 2 gradients per update, tolerance 0``."""
    return ", ".join([strategy.mode, *_strategy_details(strategy)])


def _strategy_details(strategy: PushStrategy) -> Iterator[str]:
    if strategy.mode == "sync":
        wanted = strategy.grads_to_wait
        yield f"{wanted} gradient{'s' if wanted > 1 else ''} per update"
        yield f"tolerance {strategy.version_tolerance}"
    if strategy.staleness_aware:
        yield "staleness-aware"
    if strategy.overlap:
        yield "overlapped"
    if strategy.get_model_steps > 1:
        yield f"{strategy.get_model_steps} steps between pulls"


def _describe_staleness(parameters_status: ParametersStatus) -> str:
    if parameters_status.staleness is None:
        return ""
    if not parameters_status.stalest:
        return "; no gradient was stale"
    return f"; {parameters_status.staleness:.1f} updates stale on average, {parameters_status.stalest:,} at most"


def _describe_pushes(parameters_status: ParametersStatus) -> str:
    pushes_text = f"{parameters_status.pushes:,} in {parameters_status.updates:,} updates"
    if not parameters_status.refused:
        return f"{pushes_text}, none refused"
    share = format_percent(parameters_status.refused_share)
    return f"{pushes_text}; {parameters_status.refused:,} more were too old and computed again ({share} of all)"


def _describe_table(table: TableStatus) -> str:
    parts = [f"{table.rows:,} rows", format_bytes(table.bytes)]
    if table.full is not None:
        parts.append(f"{format_percent(table.full)} of ps.max_rows")
    if table.evicted:
        parts.append(f"{table.evicted:,} evicted")
    return ", ".join(parts)
