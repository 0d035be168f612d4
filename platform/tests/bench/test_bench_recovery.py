"""What the recovery benchmark takes for the end of a loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.mark.parametrize("source", ["/data/records", ""], ids=["unshuffled", "shuffled"])
def test_a_returned_range_counts_as_leased_again_whether_or_not_the_epoch_is_shuffled(
    monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    from recovery import leased_after_return

    def leased(start: int) -> dict[str, Any]:
        return {"kind": "leased", "work": [0, source, start, start + 512]}

    lost = [leased(0), leased(512), {"kind": "returned", "lease": 1}]
    assert not leased_after_return(lost, 0)
    assert not leased_after_return([*lost, leased(1024)], 0)
    assert leased_after_return([*lost, leased(0)], 0)
