"""Tables for people and for pipes: aligned columns, no frames."""

from __future__ import annotations

from collections.abc import Collection, Sequence

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Each row as a line; columns as wide as their widest cell, those in ``right`` aligned to the right."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["   ".join(_cell(row, at, widths[at], at in right) for at in range(len(widths))).rstrip() for row in rows]


def age(seconds: float) -> str:
    """How long ago, as kubectl says it: ``45s``, ``12m``, ``3h``, ``2d``."""
    whole = max(0, int(seconds))
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if whole >= 2 * size or (unit == "m" and whole >= size):
            return f"{whole // size}{unit}"
    return f"{whole}s"


def _cell(row: Sequence[str], at: int, width: int, right: bool) -> str:
    return row[at].rjust(width) if right else row[at].ljust(width)
