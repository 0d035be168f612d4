"""Jobs that nobody disturbs: what all others are compared with."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import pytest
from e2e.baseline import CAP, UndisturbedBaseline


@pytest.mark.parametrize("workers", [2, 4])
def test_the_comparison_would_see_lost_updates(undisturbed: Callable[[int], UndisturbedBaseline], workers: int) -> None:
    """A tenth fewer updates are not within noise, and a run without training (2.3) even less."""
    baseline = undisturbed(workers)
    assert not baseline.noise.allows(baseline.loss_with_fewer_updates), (
        f"{baseline.loss_with_fewer_updates:.4f} would pass for {baseline.noise}"
    )
    assert abs(baseline.loss_with_fewer_updates - fmean(baseline.noise.values)) > CAP
