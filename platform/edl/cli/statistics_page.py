"""A page with the statistics of a table: one HTML file without scripts and links, for light and dark screens."""

from __future__ import annotations

from html import escape
from typing import Any

from edl.cli.data_statistics import describe_errors, format_value

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #57606a; --page: #fff; --line: #d0d7de; --bar: #2f6fb5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --dim: #9198a1; --page: #0d1117; --line: #30363d; --bar: #6cb0f5; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
  max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin: 0; overflow-wrap: anywhere; }
p, small, dt { color: var(--dim); } small { font-weight: normal; }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr)); gap: 1rem; }
section { border: 1px solid var(--line); border-radius: 6px; padding: 1rem; min-width: 0; }
svg { width: 100%; height: 6rem; margin: .75rem 0 0; } rect { fill: var(--bar); }
dl { display: grid; grid-template-columns: auto 1fr auto 1fr; gap: 0 .75rem; margin: .75rem 0 0; font-size: .85rem; }
dd { margin: 0; text-align: right; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.ends { display: flex; justify-content: space-between; font-size: .8rem; color: var(--dim); }
table { width: 100%; font-size: .85rem; border-collapse: collapse; margin-top: .75rem; table-layout: fixed; }
td { padding: 0 .25rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
td:last-child { text-align: right; width: 6rem; font-variant-numeric: tabular-nums; }
td:first-child { background: linear-gradient(var(--bar), var(--bar)) 0 100% / var(--share) 2px no-repeat; }
"""
_LISTED_VALUES = 8
_QUANTILES = {"1 %": 10, "25 %": 250, "median": 500, "75 %": 750, "99 %": 990}
"""Places in the list of quantiles of the JSON result."""


def render_page(result: dict[str, Any], title: str) -> str:
    """The page of a result of ``TableStatistics.to_json``."""
    sections = "\n".join(_render_column(column) for column in result["columns"])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{escape(title)}</h1>\n<p>{escape(describe_errors(result))}</p>\n<main>\n{sections}\n</main></body></html>\n"
    )


def _render_column(column: dict[str, Any]) -> str:
    quantiles = column.get("quantiles") or []
    figures = {"count": column["count"], "missing": column["missing"], "distinct": column["distinct"]}
    if column["kind"] != "text":
        figures |= {"infinite": column["infinite"], "mean": column["mean"], "std": column["std"]}
    figures |= {"min": column["min"], "max": column["max"]}
    figures |= {name: quantiles[place] for name, place in _QUANTILES.items() if quantiles}
    listed = "".join(f"<dt>{name}</dt><dd>{escape(format_value(value))}</dd>" for name, value in figures.items())
    return (
        f"<section><h2>{escape(column['name'])} <small>{escape(column['type'])}</small></h2>"
        f"{_render_histogram(column)}<dl>{listed}</dl>{_render_values(column)}</section>"
    )


def _render_histogram(column: dict[str, Any]) -> str:
    histogram = column.get("histogram")
    if histogram is None:
        return ""
    counts, edges = histogram["counts"], histogram["edges"]
    highest, bars = max(counts), []
    for number, count in enumerate(counts):
        height = 100 * count / highest
        label = f"{format_value(edges[number])} to {format_value(edges[number + 1])}: {count:,}"
        bars.append(
            f'<rect x="{number}" y="{100 - height:.2f}" width=".9" height="{height:.2f}"><title>{label}</title></rect>'
        )
    return (
        f'<svg role="img" aria-label="Histogram" viewBox="0 0 {len(counts)} 100" preserveAspectRatio="none">'
        f'{"".join(bars)}</svg><div class="ends"><span>{format_value(edges[0])}</span>'
        f"<span>{format_value(edges[-1])}</span></div>"
    )


def _render_values(column: dict[str, Any]) -> str:
    top = column["top"][:_LISTED_VALUES]
    if not top or column["kind"] == "number":
        return ""
    rows = "".join(
        f'<tr><td style="--share: {100 * count / column["count"]:.1f}%">{escape(format_value(value))}</td>'
        f"<td>{count:,}</td></tr>"
        for value, count in top
    )
    return f"<table>{rows}</table>"
