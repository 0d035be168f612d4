"""``high=0.5``: which of a job's workers are elevated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.core.priority_rule import PriorityRule, elevated_worker_count, next_is_elevated, parse_priority


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("high", PriorityRule("high")),
        ("team-a.batch", PriorityRule("team-a.batch")),
        ("high=0.5", PriorityRule("high", 0.5)),
    ],
)
def test_a_rule_is_a_class_or_a_class_and_a_share(text: str, rule: PriorityRule) -> None:
    assert parse_priority(text) == rule


@pytest.mark.parametrize(
    "text", ["", "=0.5", "high=", "high=0", "high=1", "high=1.5", "high=-0.5", "high=half", "high=nan"]
)
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"priority class|share of workers|could not convert"):
        parse_priority(text)


def test_elevated_workers_get_the_class_and_the_others_low() -> None:
    assert [parse_priority("high=0.5").priority_class(elevated=up) for up in (True, False)] == ["high", "low"]
    assert parse_priority("normal").priority_class(elevated=False) == "normal"


@pytest.mark.parametrize(
    ("share", "workers", "expected"), [(0.5, 4, 2), (0.5, 5, 3), (0.7, 10, 7), (0.1, 3, 1), (0.3, 10, 3), (0.01, 1, 1)]
)
def test_the_share_is_rounded_up(share: float, workers: int, expected: int) -> None:
    assert elevated_worker_count(share, workers) == expected


@given(st.floats(0.01, 0.99), st.integers(1, 50), st.randoms(use_true_random=False))
def test_whoever_is_lost_the_share_comes_back(share: float, workers: int, chance: object) -> None:
    live: list[bool] = []
    for _ in range(3 * workers):
        if live and chance.random() < 0.3:  # type: ignore[attr-defined]
            live.pop(chance.randrange(len(live)))  # type: ignore[attr-defined]
        elif len(live) < workers:
            live.append(next_is_elevated(share, workers, sum(live)))
        assert sum(live) <= elevated_worker_count(share, workers)
    while len(live) < workers:
        live.append(next_is_elevated(share, workers, sum(live)))
    assert sum(live) == elevated_worker_count(share, workers)
