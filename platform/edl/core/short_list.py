"""Many things in one sentence of a message: the first by name, the others as a number."""

from __future__ import annotations

from collections.abc import Sequence


def format_short_list(items: Sequence[object], most: int = 4, *, hidden: int = 0, separator: str = ", ") -> str:
    """``worker-1, worker-2, and 5 more``.

    Args:
        most: how many are shown.
        hidden: how many more there are, beside ``items``.
    """
    more = max(0, len(items) - most) + hidden
    return separator.join([*map(str, items[:most]), *([f"and {more:,} more"] if more > 0 else [])])
