"""Tables for people and for pipes: aligned columns, no frames."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from textwrap import TextWrapper

from edl.reporting.terminal_text import to_single_line

_LABEL_WIDTH = 10
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def align_columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Each row as one line; columns as wide as their widest cell, those in ``right`` aligned to the right."""
    if not rows:
        return []
    rows = [[to_single_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "   ".join(_pad_cell(row, at, widths[at], at in right) for at in range(len(widths))).rstrip() for row in rows
    ]


def wrap_text(text: str, width: int, *, first: str = "", then: str = "") -> list[str]:
    """A text as lines of ``width`` characters, broken between words only: a path can be copied, and may be longer.

    Args:
        first: what the first line begins with.
        then: what the others begin with.
    """
    lines = TextWrapper(
        width, initial_indent=first, subsequent_indent=then, break_long_words=False, break_on_hyphens=False
    )
    return lines.wrap(text)


def wrap_labelled(label: str, text: str, width: int) -> list[str]:
    """A text beside what it is, as lines."""
    head = f"  {label:<{_LABEL_WIDTH}}"
    return wrap_text(text, width, first=head, then=" " * len(head))


def format_age(seconds: float) -> str:
    """How long ago, as kubectl says it: ``45s``, ``12m``, ``3h``, ``2d``."""
    whole = max(0, int(seconds))
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "m")):
        if whole >= 2 * size or (unit == "m" and whole >= size):
            return f"{whole // size}{unit}"
    return f"{whole}s"


def _pad_cell(row: Sequence[str], at: int, width: int, right: bool) -> str:
    return row[at].rjust(width) if right else row[at].ljust(width)
