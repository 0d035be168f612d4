"""Jobs that nobody disturbs: what all others are compared with."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import pytest
from e2e.baseline import CAP, UndisturbedBaseline


@pytest.mark.parametrize("workers", [2, 4])
def test_the_comparison_would_see_lost_updates(undisturbed: Callable[[int], UndisturbedBaseline], workers: int) -> None:
    """A tenth fewer updates are not within noise, and a run without training (2.3) even less."""
    found = undisturbed(workers)
    assert not found.noise.allows(found.loss_with_fewer_updates), (
        f"{found.loss_with_fewer_updates:.4f} would pass for {found.noise}"
    )
    assert abs(found.loss_with_fewer_updates - fmean(found.noise.values)) > CAP
