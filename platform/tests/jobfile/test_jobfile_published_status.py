"""What a master publishes comes back as it was, and never outgrows a ConfigMap."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.api.run_events import JobEvent, RecordsRequeued, RunStarted, WarningRaised
from edl.api.status import (
    NAME_LENGTH,
    TABLES_SHOWN,
    JobFailure,
    ParametersStatus,
    RoleStatus,
    Status,
    Summary,
    TableStatus,
    TimelinePoint,
)
from edl.api.strategy import Strategy
from edl.jobfile.document_tree import SpecError
from edl.jobfile.published_status import (
    MAX_EVENTS,
    MAX_EVENTS_BYTES,
    MAX_TIMELINE_POINTS,
    PublishedStatus,
    extend_timeline,
)

STATUS = Status(job="digits", run="r", run_dir="/data/r", phase="Training", updated=2.0, loss=0.5)
EVENTS: tuple[JobEvent, ...] = (
    RunStarted("r", "/data/r", time=1.0),
    RecordsRequeued(0, 10, "train", 3, "preempted", time=2.0),
)
WHOLE = PublishedStatus(
    STATUS,
    EVENTS,
    (TimelinePoint(1.0, 2), TimelinePoint(2.0, 1, 1, 12.5, 100)),
    Summary(10, 10, metrics={"accuracy": 0.9}),
    JobFailure("crash", "all workers crashed", "Traceback …"),
)


def test_it_comes_back_as_it_was() -> None:
    assert PublishedStatus.from_configmap_data(WHOLE.to_configmap_data()) == WHOLE
    assert PublishedStatus.from_configmap_data({}) == PublishedStatus()
    assert PublishedStatus.from_configmap_data(PublishedStatus().to_configmap_data()) == PublishedStatus()
    assert WHOLE.failure_detail == "Traceback …"


@pytest.mark.parametrize(
    ("page", "text", "why"),
    [
        ("status.json", "{", "status.json"),
        ("status.json", "{}", "is missing"),
        ("timeline.json", '{"a": 1}', "list of moments"),
        ("timeline.json", '[{"time": 1, "workers": "many"}]', "workers"),
        ("events.jsonl", '{"event": "new_year"}', "new_year"),
        ("summary.json", '{"records_total": 1, "records_done": 1, "extra": 1}', "extra"),
        ("failure.json", "[]", "failure.json"),
    ],
)
def test_what_this_version_did_not_write_is_refused(page: str, text: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        PublishedStatus.from_configmap_data({page: text})


def test_the_newest_events_are_kept() -> None:
    many = tuple(WarningRaised(f"warning {n}", time=float(n)) for n in range(1000))
    assert (
        PublishedStatus.from_configmap_data(PublishedStatus(events=many).to_configmap_data()).events
        == many[-MAX_EVENTS:]
    )
    long = tuple(WarningRaised("x" * 5000, time=float(n)) for n in range(50))
    events = PublishedStatus.from_configmap_data(PublishedStatus(events=long).to_configmap_data()).events
    assert events == long[-len(events) :]
    assert 5000 * len(events) <= MAX_EVENTS_BYTES < 5100 * (len(events) + 1)


def test_no_page_outgrows_a_configmap() -> None:
    worker = RoleStatus(1, None, "waiting", "5f2b7f5c-9c2e-4ab0-a1a5-93f5bbb38a10")
    status = Status(job="j", run="r", run_dir="/r", phase="Failed", updated=1.0, reason="ü" * 10**6)
    table = TableStatus("ü" * NAME_LENGTH, 10**12, 10**15, 10**12, 10**12, 1.0)
    parameters = ParametersStatus(Strategy(), tables=(table,) * TABLES_SHOWN, tables_total=10**6)
    many = {"workers": (worker,) * 20_000, "parameters": parameters}
    huge = PublishedStatus(
        Status(**{**_fields(status), **many}),  # type: ignore[arg-type]
        summary=Summary(1, 1, parameters=parameters),
        failure=JobFailure("crash", "r" * 10**6, "d" * 10**6),
    )
    pages = huge.to_configmap_data()
    assert sum(len(page.encode()) for page in pages.values()) < 900_000
    again = PublishedStatus.from_configmap_data(pages)
    assert again.status is not None
    assert 1000 < len(again.status.workers) < 20_000


def _fields(status: Status) -> dict[str, object]:
    return {name: getattr(status, name) for name in status.__dataclass_fields__}


@given(st.lists(st.floats(0.2, 5.0), min_size=1, max_size=3000))
def test_a_timeline_covers_the_whole_life_in_bounded_space(steps: list[float]) -> None:
    timeline: tuple[TimelinePoint, ...] = ()
    now = 0.0
    for step in steps:
        now += step
        timeline = extend_timeline(timeline, TimelinePoint(now, 1))
    assert len(timeline) <= MAX_TIMELINE_POINTS
    times = [moment.time for moment in timeline]
    assert times == sorted(times)
    assert times[0] == steps[0]
    assert times[-1] == now
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert max(gaps, default=0.0) <= max(10.0, 12 * now / MAX_TIMELINE_POINTS)
