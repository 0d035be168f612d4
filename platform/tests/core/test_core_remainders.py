"""Done records of steps that are not full, counted from the ledger alone."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from edl.core.ledger import Ledger
from edl.core.record_ranges import RecordSource, ShardPlan


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=3),
    st.integers(1, 7),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 99),
)
def test_the_count_is_that_of_steps_whatever_is_lost(
    counts: list[int], minibatch: int, per_lease: int, splits: bool, seed: int
) -> None:
    sources = tuple(RecordSource(f"s{at}", records) for at, records in enumerate(counts))
    size = minibatch * per_lease
    ledger = Ledger(ShardPlan(sources, size * 2 if splits else size, seed), 2, minibatch, size if splits else 0)
    chance, number, short = random.Random(seed), 0, 0
    while (work := ledger.next_range(worker="w")) is not None:
        number += 1
        lease = ledger.grant_range(number, work, "w")
        done = chance.randint(0, lease.step_count)
        short += sum(min(minibatch, lease.record_range.records - step * minibatch) % minibatch for step in range(done))
        ledger.record_progress(number, done)
        assert ledger.count_done_remainders() == short
        if done == lease.step_count:
            ledger.finish_lease(number)
        else:
            ledger.return_lease(number, done)
        assert ledger.count_done_remainders() == short
    assert short == 2 * sum(records % minibatch for records in counts)
