"""``data.max_corrupt_records`` is a limit of the job: what several workers skip is added up, for each epoch anew."""

from __future__ import annotations

from dataclasses import replace

from support.core_harness import CoreHarness

from edl.core.events import EndJob, LeaseProgress, LeaseReply, LeaseRequested, ProgressReported, TaskReported


def job(allowed: int) -> tuple[CoreHarness, int, int]:
    harness = CoreHarness()
    harness.settings = replace(harness.settings, max_corrupt=allowed, epochs=2)
    harness.restart()
    first = harness.train()
    (second,) = (x.lease for x in harness.see(LeaseRequested("worker-1")) if isinstance(x, LeaseReply))
    return harness, first, second


def skip(harness: CoreHarness, worker: str, lease: int, through: int, records: int) -> list[EndJob]:
    steps = LeaseProgress(lease, through, skipped_records=records)
    return [x for x in harness.see(ProgressReported(worker, (steps,))) if isinstance(x, EndJob)]


def test_two_workers_together_may_not_skip_more_than_one_may() -> None:
    harness, first, second = job(allowed=3)
    assert skip(harness, "worker-0", first, 1, 2) == []
    (end,) = skip(harness, "worker-1", second, 1, 2)
    assert (end.phase, end.failure_kind) == ("Failed", "input")
    assert "4 corrupt records in epoch 1" in end.reason
    assert "allows 3" in end.reason


def test_as_many_as_allowed_are_counted_also_over_a_restart_of_the_master() -> None:
    harness, first, second = job(allowed=4)
    assert skip(harness, "worker-0", first, 1, 2) == []
    harness.restart()
    assert skip(harness, "worker-1", second, 1, 2) == []
    (end,) = skip(harness, "worker-1", second, 2, 1)
    assert end.failure_kind == "input"


def test_the_same_records_may_be_skipped_in_every_epoch() -> None:
    harness, lease, _ = job(allowed=2)
    assert skip(harness, "worker-0", lease, 1, 2) == []
    for _ in range(9):  # ten tasks an epoch; the other worker keeps one of them
        harness.see(TaskReported("worker-0", lease, LeaseProgress(lease, 8), None))
        (lease,) = (x.lease for x in harness.see(LeaseRequested("worker-0")) if isinstance(x, LeaseReply))
    assert skip(harness, "worker-0", lease, 1, 2) == []
    (end,) = skip(harness, "worker-0", lease, 2, 1)
    assert "3 corrupt records in epoch 2" in end.reason
