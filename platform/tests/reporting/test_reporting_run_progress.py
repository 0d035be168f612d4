"""The model of progress, and what is decided from it."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.text_keys import missing_keys

from edl.api.exit_codes import INTERRUPTED_EXIT, SIGTERM_EXIT
from edl.api.job_spec import DataSpec, JobSpec, ModelSpec, TrainSpec
from edl.api.run_events import (
    CheckpointSaved,
    EvaluationEnded,
    JobEnded,
    JobEvent,
    ModelExported,
    RangeQuarantined,
    RecordsRequeued,
    RequeuedRecordsLeased,
    RoleEnded,
    RoleLeaving,
    RoleRequested,
    RoleStarted,
    RollbackDone,
    RunStarted,
    StallBegan,
    WarningRaised,
    WorkerCountChanged,
)
from edl.api.status import PHASES, ParametersStatus, RoleStatus, Status, Summary, TableStatus, WorldStatus
from edl.api.strategy import Strategy
from edl.ops.local_run_plan import total_steps
from edl.reporting import json_lines, plain_text
from edl.reporting.event_text import describe_event, status_headline
from edl.reporting.run_progress import (
    RECENT_EVENTS,
    RunFailure,
    RunProgress,
    decide_outcome,
    explain_missing_end,
)
from edl.reporting.unit_formats import format_duration

SUMMARY = Summary(records_total=10, records_done=4)


def status(updated: float, done: int = 0, total: int = 1000, phase: str = "Training", **more: object) -> Status:
    known = {"job": "j", "run": "r1", "run_dir": "/r1", "records_total": total, "records_done": done}
    return Status(phase=phase, updated=updated, **{**known, **more})  # type: ignore[arg-type]


def ended_event(phase: str) -> JobEnded:
    return JobEnded(phase, "because", SUMMARY, time=9.0)


def test_statuses_of_the_time_before_the_start_change_nothing() -> None:
    progress = RunProgress(start_time=100.0)
    assert progress.with_status(status(99.0, 7)) == progress
    first = progress.with_status(status(101.0, 7))
    assert first.share == 0.007
    assert first.with_status(status(100.5, 9)) == first


def test_a_run_that_goes_on_has_not_ended_and_counts_anew() -> None:
    before: list[JobEvent] = [
        RoleEnded("worker", 0, 7, "Killed", 137, time=1.0),
        RecordsRequeued(0, 10, "train", 3, "lost", time=2.0),
        RollbackDone(20, None, "ps-0", updates=5, time=3.0),
        ended_event("Interrupted"),
    ]
    progress = RunProgress(start_time=0.0).with_status(status(1.0, 7))
    for event in before:
        progress = progress.with_event(event)
    assert progress.end_event is not None
    again = RunStarted("r1", "/r1", resumed=True, time=10.0)
    resumed = progress.with_event(again)
    assert resumed == RunProgress(start_time=0.0, recent_events=(*before, again))
    assert resumed.phase == "Starting"
    assert resumed.with_event(ended_event("Done")).phase == "Done"


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 1000))))
def test_the_newest_status_counts(seen: list[tuple[float, int]]) -> None:
    progress = RunProgress(start_time=50.0)
    for updated, done in seen:
        progress = progress.with_status(status(updated, done))
    valid = [entry for entry in seen if entry[0] >= 50.0]
    if not valid:
        assert progress.status is None
    else:
        assert progress.status is not None
        assert progress.status.updated == max(updated for updated, _ in valid)
        assert 0.0 <= progress.share <= 1.0


def test_losses_are_counted_from_events() -> None:
    progress = RunProgress(start_time=0.0).with_status(status(1.0, 500))
    events: list[JobEvent] = [
        RoleStarted("master", 0, 11, time=1.0),
        RoleEnded("worker", 0, 12, "Killed (SIGKILL)", 137, time=2.0),
        RoleEnded("worker", 1, 13, "Deleted", 143, time=2.0),
        RecordsRequeued(64, 96, "train", 0, "worker-0 is gone", time=2.0),
        RecordsRequeued(0, 1, "export", 0, "worker-0 is gone", time=2.0),
        RollbackDone(128, 2, "ps-0 is gone", updates=5, time=3.0),
    ]
    for event in events:
        progress = progress.with_event(event)
    assert progress.master_pid == 11
    summary = progress.with_status(status(4.0, 700)).partial_summary(10.0, "/logs")
    assert (summary.workers_lost, summary.records_repeated, summary.records_rolled_back) == (1, 32, 128)
    assert (summary.updates_rolled_back, summary.records_done, summary.seconds) == (5, 700, 10.0)
    assert summary.samples_per_second == 20.0  # 200 since this start


def test_an_evaluation_that_was_told_is_that_of_the_status() -> None:
    """Events and statuses come from two files, and a line of before must not follow the newer evaluation."""
    before = status(101.0, metrics={"accuracy": 0.5})
    progress = (
        RunProgress(start_time=100.0).with_status(before).with_event(EvaluationEnded(7, {"accuracy": 0.8}, time=102.0))
    )
    assert progress.status == status(101.0, metrics={"accuracy": 0.8})
    assert progress.with_status(status(101.5, 9, metrics={"accuracy": 0.5})).status == status(
        101.5, 9, metrics={"accuracy": 0.8}
    )
    best = status(103.0, metrics={"accuracy": 0.9})  # of the weights that a callback restored
    assert progress.with_status(best).status == best
    assert progress.with_status(best).with_status(status(104.0)).status == status(104.0)


def test_only_the_newest_events_are_kept() -> None:
    progress = RunProgress(start_time=0.0)
    for number in range(100):
        progress = progress.with_event(WarningRaised("m", time=float(number)))
    assert [event.time for event in progress.recent_events] == [float(n) for n in range(100 - RECENT_EVENTS, 100)]


@pytest.mark.parametrize(
    ("phase", "kind", "stopped_by", "code"),
    [
        ("Done", "", None, 0),
        ("Done", "", INTERRUPTED_EXIT, 0),
        ("Failed", "", None, 1),
        ("Failed", "nan", None, 1),
        ("Failed", "input", None, 2),
        ("Interrupted", "", INTERRUPTED_EXIT, 130),
        ("Interrupted", "", SIGTERM_EXIT, 143),
        ("Interrupted", "", None, 130),
    ],
)
def test_exit_codes(phase: str, kind: str, stopped_by: int | None, code: int) -> None:
    assert decide_outcome(ended_event(phase), RunFailure(kind, "detail"), stopped_by).exit_code == code


@settings(deadline=None)
@given(st.integers(-64, 255), st.sampled_from([None, INTERRUPTED_EXIT, SIGTERM_EXIT]))
def test_every_end_without_a_word_of_the_master_has_a_phase_and_a_reason(code: int, stopped_by: int | None) -> None:
    phase, reason = explain_missing_end(code, stopped_by)
    assert phase in PHASES
    assert reason
    assert (phase == "Interrupted") >= (stopped_by is not None)


def test_plain_lines_speak_seldom() -> None:
    first = status(10.0, 100)
    assert plain_text.is_status_due(None, first)
    assert not plain_text.is_status_due(first, status(10.5, 400))
    assert plain_text.is_status_due(first, status(11.0, 200))
    assert not plain_text.is_status_due(first, status(14.0, 110))
    assert plain_text.is_status_due(first, status(15.0, 110))
    assert plain_text.is_status_due(first, status(10.1, 100, phase="Evaluating"))


def test_plain_lines_repeat_a_stall_each_minute_unless_its_reason_changes() -> None:
    def stalled(updated: float, reason: str, done: int = 100) -> Status:
        return status(updated, done, phase="Stalled", reason=reason)

    first = stalled(10.0, "waiting for ps-0, it has not answered for 6 s")
    assert plain_text.is_status_due(status(9.9, 100), first)
    assert not plain_text.is_status_due(first, stalled(69.0, "waiting for ps-0, it has not answered for 65 s"))
    assert plain_text.is_status_due(first, stalled(70.0, "waiting for ps-0, it has not answered for 66 s"))
    assert plain_text.is_status_due(first, stalled(15.0, "waiting for ps-0, a new one was requested"))
    # Steps that were under way still end.
    assert plain_text.is_status_due(first, stalled(15.0, first.reason, done=110))


def test_json_tells_every_change_of_phase_or_roles_at_once() -> None:
    first = status(10.0, 100, step=1)
    assert not json_lines.is_status_due(first, status(10.2, 200, step=2))
    assert json_lines.is_status_due(first, status(10.5, 200, step=2))
    assert not json_lines.is_status_due(first, status(99.0, 100, step=1))
    assert json_lines.is_status_due(first, status(10.1, 100, step=1, workers=(RoleStatus(0, 5, "training"),)))


def test_steps_count_the_short_minibatch_of_each_source_and_epoch() -> None:
    spec = JobSpec("j", ModelSpec("m.f"), data=DataSpec(("a",)), train=TrainSpec(epochs=3, minibatch_size=4))
    assert total_steps(spec, (10, 1)) == 3 * (3 + 1)
    assert total_steps(JobSpec("j", ModelSpec("m.f"), train=TrainSpec(max_steps=5)), (10_000,)) == 5
    assert total_steps(spec, None) is None


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (RoleStarted("ps", 1, 7, time=0.0), ["ps 1 ", "pid 7"]),
        (RoleEnded("master", 0, 7, "Error", 1, time=0.0), ["master ", "pid 7", "Error", "exit code 1"]),
        (RoleEnded("worker", 0, 7, "Killed (SIGKILL)", 137, time=0.0), ["worker 0 ", "pid 7", "Killed (SIGKILL)"]),
        (RecordsRequeued(0, 64, "/d/a.recordio", 2, "gone", time=0.0), ["0 to 64", "a.recordio", "worker 2", "gone"]),
        (RecordsRequeued(0, 1, "export", 2, "gone", time=0.0), ["the export", "worker 2", "gone"]),
        (CheckpointSaved(3, 1200, 0.0124, time=0.0), ["checkpoint 3", "step 1,200", "0.012 s"]),
        (RoleRequested("worker", 4, "refused before:\n  quota", time=0.0), ["worker 4 ", "refused before: quota"]),
        (RoleLeaving("worker", 0, "preempted", "by b", time=0.0), ["worker 0 ", "preempted", "by b"]),
        (RoleLeaving("ps", 1, "", time=0.0), ["ps 1 "]),
        (WorkerCountChanged(1, 4, time=0.0), ["4 workers", "at least 1"]),
        (RequeuedRecordsLeased(0, 64, "/d/a.recordio", 2, time=0.0), ["0 to 64", "a.recordio", "worker 2"]),
        (RollbackDone(9, None, "lost", time=0.0), ["the start", "9 records", "lost"]),
        (RangeQuarantined("a", 0, 4, "crashes", time=0.0), ["0 to 4 of a ", "crashes"]),
        (JobEnded("Failed", "first\nsecond", SUMMARY, time=0.0), ["failed", "first"]),
    ],
)
def test_an_event_is_one_line_with_its_names_and_numbers(event: JobEvent, words: list[str]) -> None:
    line = describe_event(event)
    assert "\n" not in line
    positions = [line.find(word) for word in words]
    assert -1 not in positions, line
    assert positions == sorted(positions), line


def test_what_happens_to_one_role_or_range_is_told_apart() -> None:
    of_worker = [
        RoleRequested("worker", 0, "", time=0.0),
        RoleStarted("worker", 0, None, time=0.0),
        RoleLeaving("worker", 0, "", time=0.0),
        RoleEnded("worker", 0, None, "", None, time=0.0),
    ]
    of_records = [RecordsRequeued(0, 64, "/d/a", 2, "", time=0.0), RequeuedRecordsLeased(0, 64, "/d/a", 2, time=0.0)]
    for events in (of_worker, of_records):
        assert len({describe_event(event) for event in events}) == len(events)


def test_a_status_in_words() -> None:
    shown = status(
        1.0, 250, epoch=2, epochs=4, loss=0.51234, metrics={"loss": 0.6, "accuracy": 0.9}, samples_per_second=1234.5,
        seconds_left=75.0, workers=(RoleStatus(0, 5, "training"), RoleStatus(1, 6, "starting")),
    )  # fmt: skip
    assert status_headline(shown) == (
        "training: 250 of 1,000 records (25 %), epoch 2/4, loss 0.5123, evaluated accuracy 0.9, 1,234 samples/s, "
        "1:15 left, 1/2 workers ready"
    )


def test_workers_that_join_a_round_are_not_ready() -> None:
    workers = (RoleStatus(0, 5, "training"), RoleStatus(1, 6, "joining"))
    assert status_headline(status(1.0, 250, workers=workers)).endswith(", 1/2 workers ready")


def test_while_no_worker_trains_the_line_says_what_they_wait_for() -> None:
    waits = WorldStatus(round=3, running=False, reason="1 worker is ready, 2 are needed")
    line = status_headline(status(1.0, 250, world=waits, workers=(RoleStatus(0, 5, "waiting"),)))
    assert line.startswith("waiting: 250 of 1,000 records")
    assert line.endswith("1 worker, no worker trains: 1 worker is ready, 2 are needed")
    assert status_headline(status(1.0, 250, world=replace(waits, running=True))).startswith("training: ")
    assert status_headline(status(1.0, 250, world=waits, phase="Done")).startswith("done: ")


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.6, "1:00"), (60, "1:00"), (3725, "1:02:05")])
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_tables_that_are_served_are_told_once() -> None:
    with_tables = ParametersStatus(
        Strategy(), tables=(TableStatus("users", 1, 4), TableStatus("items", 0, 0)), tables_total=2
    )
    out = io.StringIO()
    face = plain_text.PlainTextRenderer(out, io.StringIO())
    for at, parameters in ((1.0, ParametersStatus(Strategy())), (20.0, with_tables), (40.0, with_tables)):
        face.refresh(RunProgress(0.0).with_status(status(at, 5, parameters=parameters)), at)
    lines = [line for line in out.getvalue().splitlines() if "served" in line]
    assert [line.partition("  ")[2] for line in lines] == ["2 tables served by the parameter servers: users, items"]


def test_an_export_that_no_code_loads_is_not_told_to_be_loaded_with_a_comment() -> None:
    description = describe_event(ModelExported("/somewhere", "# load_model cannot make Mine again", time=0.0))
    assert description.endswith("; load_model cannot make Mine again")
    assert describe_event(ModelExported("/somewhere", "import mine; load()", time=0.0)).endswith(" import mine; load()")


def test_ranges_that_are_leased_again_one_after_the_other_make_one_line() -> None:
    out = io.StringIO()
    face = plain_text.PlainTextRenderer(out, io.StringIO())
    progress = RunProgress(0.0)
    for start in range(0, 300, 10):
        leased = RequeuedRecordsLeased(start=start, end=start + 10, source="/d/a.csv", worker=start // 10 % 2, time=5.0)
        face.show_event(leased, progress)
    assert out.getvalue() == ""
    face.show_event(StallBegan(reason="x", time=6.0), progress)
    line, stalled = out.getvalue().splitlines()
    assert not missing_keys(line, "300 records of a.csv", "30 ranges", "worker 0, worker 1")
    assert "stalled" in stalled
    face.show_event(RequeuedRecordsLeased(start=0, end=10, source="/d/a.csv", worker=2, time=7.0), progress)
    face.show_notice("Stopping")
    *_, one, notice = out.getvalue().splitlines()
    assert not missing_keys(one, "records 0 to 10 of a.csv", "worker 2")
    assert notice == "Stopping"
