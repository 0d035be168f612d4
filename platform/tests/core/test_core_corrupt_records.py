"""``data.max_corrupt_records`` is a limit of the job: what several workers skip is added up, for each epoch anew."""

from __future__ import annotations

from dataclasses import replace

from core.core_harness import CoreHarness

from edl.core.events import EndJob, LeaseProgress, LeaseReply, LeaseRequested, ProgressReported, TaskReported


def job(allowed: int) -> tuple[CoreHarness, int, int]:
    masters = CoreHarness()
    masters.settings = replace(masters.settings, max_corrupt=allowed, epochs=2)
    masters.restart()
    first = masters.train()
    (second,) = (x.lease for x in masters.see(LeaseRequested("worker-1")) if isinstance(x, LeaseReply))
    return masters, first, second


def skip(masters: CoreHarness, worker: str, lease: int, through: int, records: int) -> list[EndJob]:
    steps = LeaseProgress(lease, through, skipped_records=records)
    return [x for x in masters.see(ProgressReported(worker, (steps,))) if isinstance(x, EndJob)]


def test_two_workers_together_may_not_skip_more_than_one_may() -> None:
    masters, first, second = job(allowed=3)
    assert skip(masters, "worker-0", first, 1, 2) == []
    (end,) = skip(masters, "worker-1", second, 1, 2)
    assert (end.phase, end.failure_kind) == ("Failed", "input")
    assert "4 corrupt records in epoch 1" in end.reason
    assert "allows 3" in end.reason


def test_as_many_as_allowed_are_counted_also_over_a_restart_of_the_master() -> None:
    masters, first, second = job(allowed=4)
    assert skip(masters, "worker-0", first, 1, 2) == []
    masters.restart()
    assert skip(masters, "worker-1", second, 1, 2) == []
    (end,) = skip(masters, "worker-1", second, 2, 1)
    assert end.failure_kind == "input"


def test_the_same_records_may_be_skipped_in_every_epoch() -> None:
    masters, lease, _ = job(allowed=2)
    assert skip(masters, "worker-0", lease, 1, 2) == []
    for _ in range(9):  # ten tasks an epoch; the other worker keeps one of them
        masters.see(TaskReported("worker-0", lease, LeaseProgress(lease, 8), None))
        (lease,) = (x.lease for x in masters.see(LeaseRequested("worker-0")) if isinstance(x, LeaseReply))
    assert skip(masters, "worker-0", lease, 1, 2) == []
    (end,) = skip(masters, "worker-0", lease, 2, 1)
    assert "3 corrupt records in epoch 2" in end.reason
