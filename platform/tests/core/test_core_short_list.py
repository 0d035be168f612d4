"""Lists in messages."""

from __future__ import annotations

from edl.core.short_list import format_short_list


def test_the_first_are_named_and_the_others_counted() -> None:
    assert format_short_list([]) == ""
    assert format_short_list(["a", "b"], 2) == "a, b"
    assert format_short_list(["a", "b", "c"], 2) == "a, b, and 1 more"
    assert format_short_list(["a", "b", "c"], 2, hidden=1_000) == "a, b, and 1,001 more"
    assert format_short_list(["a", "b", "c"], 1, separator="; ") == "a; and 2 more"
