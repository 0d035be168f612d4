"""Counts and lists as people read them."""

from __future__ import annotations

import pytest

from edl.reporting.unit_formats import format_duration, join_words, pluralize


@pytest.mark.parametrize(("count", "text"), [(0, "0 rows"), (1, "1 row"), (2000, "2,000 rows")])
def test_a_noun_has_the_number_of_its_count(count: int, text: str) -> None:
    assert pluralize(count, "row") == text


@pytest.mark.parametrize(("words", "text"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")])
def test_the_last_word_of_a_list_follows_and(words: list[str], text: str) -> None:
    assert join_words(words) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (185, "3:05"), (3723, "1:02:03")])
def test_a_duration_is_exact_to_the_second(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
