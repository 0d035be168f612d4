"""Losses are counted over a job's whole life, whoever wanted them."""

from __future__ import annotations

from edl.api.run_events import RecordsRequeued, RequeuedRecordsLeased, RoleEnded, RoleLeaving, RollbackDone
from edl.api.status import DisruptionReport
from edl.jobfile.disruptions import DisruptionCounter
from edl.jobfile.published_status import MAX_EVENTS, PublishedStatus


def ended_event(index: int, reason: str, role: str = "worker") -> RoleEnded:
    return RoleEnded(role, index, None, reason, 143, time=1.0)


def test_losses_are_counted_and_planned_ends_are_not() -> None:
    report = DisruptionCounter.from_events(
        [
            ended_event(0, "preempted: by default/serving"),
            ended_event(1, "preempted"),
            RoleLeaving("worker", 2, "only 1 of 2 workers are wanted", "", time=1.0),
            ended_event(2, "Terminated"),
            ended_event(3, "Completed"),
            ended_event(0, "its node is unreachable", "ps"),
            ended_event(0, "killed", "supervisor"),
            RollbackDone(640, 2, "ps-0: killed", time=1.0),
            RecordsRequeued(0, 30, "a", None, "killed", time=1.0),
            RequeuedRecordsLeased(0, 10, "a", None, time=1.0),
        ]
    ).report
    assert report == DisruptionReport(
        {"preempted": 2}, {"its node is unreachable": 1}, {}, 1, 640, "ps-0: killed", 30, 10
    )


def test_they_are_published_and_outlive_the_events() -> None:
    counter = DisruptionCounter()
    events = [ended_event(index, "deleted") for index in range(3 * MAX_EVENTS)]
    for event in events:
        counter.count_event(event)
    pages = PublishedStatus(events=events, losses=counter.report).to_configmap_data()
    status = PublishedStatus.from_configmap_data(pages)
    assert len(status.events) <= MAX_EVENTS
    assert status.losses is not None
    assert status.losses.workers == {"deleted": 3 * MAX_EVENTS}
    assert PublishedStatus.from_configmap_data({}).losses is None
