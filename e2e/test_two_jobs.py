"""Two jobs share a cluster: nobody waits for their full size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from e2e.baseline import UndisturbedBaseline
from e2e.capacity import node_offers, worker_cpu
from e2e.jobs import ClusterJob, digits
from e2e.ledger import finish_and_count
from e2e.namespaces import Namespace

SLOTS = 3


@pytest.mark.alone
@pytest.mark.in_turn(2)
def test_two_jobs(namespace: Namespace, undisturbed: Callable[[int], UndisturbedBaseline]) -> None:
    """The second starts at once with what is left, and grows when the first ends."""
    cpu = worker_cpu(node_offers(namespace.api), SLOTS, small_pods=4)
    first, second = (
        ClusterJob.write(namespace, digits(name, image=namespace.images.zoo, seconds=60, workers=2, cpu=cpu))
        for name in ("first", "second")
    )
    first.submit()
    first.wait_training(workers=2)

    second.submit()
    second.wait_training(workers=1)
    assert second.in_phase("Pending") == [1]
    second.wait_step(1)
    assert first.end_condition() is None, "the second began beside the first"

    summaries = [finish_and_count(first)[0]]
    second.wait_training(workers=2)
    summaries.append(finish_and_count(second)[0])
    for summary in summaries:
        undisturbed(2).check_summary(summary)
    for job in (first, second):
        job.run_edl("delete", "--yes")
        assert job.leftovers() == []
