"""What people read: rates, events, status and summary."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from master.master_stubs import FIRST_CUT, ShellHarness
from support.all_reduce_master import AllReduceMaster

from edl.api.cluster_port import PodPhase, PodStatus, Role, TerminationCause
from edl.api.run_events import (
    EVENTS,
    NOT_STAMPED,
    CallbackDecided,
    EvaluationEnded,
    EvaluationStarted,
    JobEnded,
    JobEvent,
    LeaseRevoked,
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
    StallEnded,
    WarningRaised,
    WorkerCountChanged,
    WorldChanged,
)
from edl.api.run_events import CheckpointSaved as CheckpointSavedEvent
from edl.api.status import Status, Summary
from edl.core.events import (
    CheckpointSaveFinished,
    EmitEvent,
    LeaseProgress,
    LeaseReply,
    LeaseRequested,
    MissingPs,
    ModelDeclared,
    PhaseEntered,
    PodChanged,
    ProgressReported,
    ScaleRequested,
    StartRefused,
    Tick,
    TrainingStalled,
)
from edl.core.rank_state import RankPhase
from edl.jobfile.event_json import parse_event_line
from edl.jobfile.section_type import from_json, to_json
from edl.master.status_reporter import (
    JOINING,
    WINDOW_SECONDS,
    StatusReporter,
    ThroughputMeter,
    count_total_records,
    describe_pod,
    find_run_start,
    restore_throughput,
)
from edl.storage.durable_files import append_json_line, read_json
from edl.storage.run_directory import RunDirectory

# ---------------------------------------------------------------------------------------------- rates


def test_the_rate_is_that_of_the_last_seconds_and_overall_from_the_first_record() -> None:
    rate = ThroughputMeter()
    for now, done in ((0.0, 0), (10.0, 0), (11.0, 10), (12.0, 20), (30.0, 20)):
        rate.observe(now, done)
    assert rate.recent_rate == 0.0
    assert rate.overall_rate == 10.0


def test_after_a_rollback_the_rate_begins_anew_and_what_was_done_counts_on() -> None:
    rate = ThroughputMeter()
    for now, done in ((0.0, 0), (1.0, 100), (2.0, 40), (3.0, 50)):
        rate.observe(now, done)
    assert rate.recent_rate == 10.0
    assert (rate.records, rate.seconds) == (110, 3.0)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.floats(0.001, 2 * WINDOW_SECONDS), st.integers(0, 1000)), min_size=1))
def test_no_history_makes_a_rate_negative_or_infinite(history: list[tuple[float, int]]) -> None:
    rate, now = ThroughputMeter(), 0.0
    for passed, done in history:
        now += passed
        rate.observe(now, done)
        assert 0.0 <= rate.recent_rate < math.inf
        assert 0.0 <= rate.overall_rate < math.inf


# ---------------------------------------------------------------------------------------------- a reporter


class ReporterHarness:
    def __init__(self, folder: Path) -> None:
        self.run = RunDirectory(folder / "r1")
        self.run.path.mkdir()
        self.stubs = ShellHarness()
        self.shell = self.stubs.shell
        self.failures: list[Exception] = []
        self.reporter = StatusReporter(self.run, "digits", self.shell.state, self.failures.append)

    def train(self) -> LeaseReply:
        self.stubs.populate()
        for event in (
            Tick(),
            *FIRST_CUT,
            CheckpointSaveFinished(1),
        ):
            self.shell.handle(event)
        answer = self.shell.handle(LeaseRequested("worker-0"))
        assert isinstance(answer, LeaseReply)
        return answer

    def lines(self) -> list[str]:
        self.reporter.close()
        return self.run.events.read_text().splitlines()


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ReporterHarness]:
    harness = ReporterHarness(tmp_path)
    yield harness
    harness.reporter.close()
    assert not harness.failures


EMITTED: tuple[JobEvent, ...] = (
    RoleRequested(role="worker", index=4, reason="4 wanted, 3 running or pending"),
    RoleLeaving(role="worker", index=0, cause="preempted"),
    WorkerCountChanged(min=1, max=4),
    WorldChanged(round=2, workers=3, step=40, reason="worker-1 was lost: Killed"),
    RequeuedRecordsLeased(source="s", start=0, end=4, worker=0),
    RoleStarted(role="worker", index=0, pid=7),
    RoleEnded(role="ps", index=0, pid=None, reason="Killed", exit_code=137),
    LeaseRevoked(source="s", start=0, end=4, worker=0, reason="x"),
    RecordsRequeued(source="s", start=0, end=4, worker=None, reason="x"),
    StallEnded(seconds=61.5, reason="ps-0 serves again"),
    EvaluationStarted(step=3),
    EvaluationEnded(step=3, metrics={"accuracy": 0.5, "loss": None}),
    CheckpointSavedEvent(cut=1, step=3, pause_seconds=0.01),
    RollbackDone(records=4, updates=0, to_cut=1, reason="ps-0: Killed"),
    RangeQuarantined(source="s", start=0, end=4, reason="x"),
    WarningRaised("cut 3 is off"),
    CallbackDecided(step=40, callback="ReduceLROnPlateau", decision="the learning rate is now 0.1"),
    ModelExported(path="/somewhere", loading=None),
)
STALLED = TrainingStalled((MissingPs(0, "its node n1 is unreachable", 1_700_000_000.0),), "no space")


def test_whatever_the_core_emits_is_a_line_with_its_time_that_can_be_read_back(harness: ReporterHarness) -> None:
    began = time.time()
    for event in (*EMITTED, STALLED):
        harness.reporter.emit_core_event(EmitEvent(event))
    events = [parse_event_line(line) for line in harness.lines()]
    assert all(began <= event.time <= time.time() for event in events)
    assert [replace(event, time=NOT_STAMPED) for event in events[:-1]] == list(EMITTED)
    assert {event.kind for event in events} | {"run_started", "job_ended"} == set(EVENTS)


def test_every_event_that_may_happen_reaches_the_file(harness: ReporterHarness) -> None:
    summary = Summary(records_total=4, records_done=4)
    own = (RunStarted(run="r1", run_dir="/r1"), JobEnded(phase="Done", reason="all records are done", summary=summary))
    happened = [replace(event, time=2.0) for event in (*EMITTED, StallBegan("waiting for ps-0"), *own)]
    for event in happened:
        harness.reporter.emit_event(event)
    assert [parse_event_line(line) for line in harness.lines()] == happened
    assert {type(event) for event in happened} == set(EVENTS.values())


def test_a_stall_is_told_in_the_words_of_the_status(harness: ReporterHarness) -> None:
    harness.reporter.emit_core_event(EmitEvent(STALLED))
    reason = (
        "waiting for ps-0, its node n1 is unreachable since 2023-11-14 22:13:20 UTC; "
        "waiting until a checkpoint can be written: no space"
    )
    assert [json.loads(line)["reason"] for line in harness.lines()] == [reason]


def test_what_is_not_for_people_goes_to_the_log(harness: ReporterHarness, caplog: Any) -> None:
    caplog.set_level("INFO")
    harness.reporter.emit_core_event(EmitEvent(PhaseEntered("Training", "the first checkpoint is on disk")))
    assert not harness.run.events.exists() or not harness.lines()
    assert "the first checkpoint is on disk" in caplog.text


def test_a_disk_that_is_full_loses_a_line_and_not_the_master(harness: ReporterHarness, caplog: Any) -> None:
    harness.run.events.mkdir()
    harness.reporter.emit_event(RoleStarted(time=1.0, role="master", index=0, pid=1))
    harness.reporter.close()
    assert "events.jsonl" in caplog.text
    harness.run.events.rmdir()


def test_status_and_summary_say_where_the_job_is(harness: ReporterHarness) -> None:
    lease = harness.train()
    harness.shell.handle(ProgressReported("worker-0", (LeaseProgress(lease.lease, 1, 3.0, 2),)))
    status, summary = harness.reporter.build_status(), harness.reporter.build_summary()
    assert (status.records_total, status.records_done, status.step, status.loss) == (8, 2, 1, 1.5)
    assert (status.epoch, status.epochs, status.phase) == (1, 1, "Training")
    assert [(worker.index, worker.state) for worker in status.workers] == [(0, "training")]
    harness.shell.handle(ModelDeclared("worker-0"))
    assert harness.reporter.build_status().workers[0].state == "training"
    assert [(ps.index, ps.state) for ps in status.ps] == [(0, "serving")]
    assert (summary.records_total, summary.records_done, summary.records_lost) == (8, 2, 0)
    harness.reporter.write_status(status)
    assert read_json(harness.run.status) == to_json(status)


def test_a_resumed_run_that_is_to_end_before_what_it_has_done_is_whole(harness: ReporterHarness) -> None:
    lease = harness.train()
    harness.shell.handle(ProgressReported("worker-0", (LeaseProgress(lease.lease, 1, 3.0, 2),)))
    state = harness.shell.state
    for limit, total in ((1, 2), (2, 4), (100, 8)):
        state.settings = replace(state.settings, max_steps=limit)
        assert count_total_records(state) == total, limit
    state.settings = replace(state.settings, max_steps=0)
    assert count_total_records(state) == 2


def test_a_run_that_max_steps_ends_has_done_all_of_its_records(harness: ReporterHarness) -> None:
    harness.train()
    state = harness.shell.state
    assert state.main_ledger is not None
    state.settings = replace(state.settings, max_steps=3)
    state.main_ledger.done_records, state.main_ledger.done_steps = (
        3,
        2,
    )  # one minibatch of two was the single record of a range's end
    assert count_total_records(state) == 5
    state.main_ledger.done_records, state.main_ledger.done_steps = 5, 3
    assert count_total_records(state) == 5
    state.main_ledger.done_records = 4
    assert harness.reporter.build_status().records_total == harness.reporter.build_summary().records_total == 4


def test_the_summary_counts_the_steps_that_a_fixed_batch_would_not_need(harness: ReporterHarness) -> None:
    """Eight records in batches of four: a worker was lost, and two of them were tried alone."""
    lease = harness.train()
    state = harness.shell.state
    assert state.main_ledger is not None
    harness.reporter.build_status()
    harness.shell.handle(ProgressReported("worker-0", (LeaseProgress(lease.lease, 1, 3.0, 2),)))
    state.main_ledger.done_records = 4
    assert harness.reporter.build_summary().steps_added == 0, "no fixed batch"
    state.settings = replace(state.settings, global_batch=4)
    assert harness.reporter.build_summary().steps_added == 0
    state.main_ledger.done_records, state.main_ledger.done_steps = 8, state.main_ledger.done_steps + 3
    assert harness.reporter.build_summary().steps_added == 2


def seen(harness: ReporterHarness, index: int, phase: PodPhase, **more: Any) -> None:
    harness.shell.handle(PodChanged(PodStatus(f"worker-{index}", Role.WORKER, index, phase, **more)))


def test_a_pod_without_room_is_pending_with_the_schedulers_own_words(harness: ReporterHarness) -> None:
    harness.stubs.populate()
    harness.shell.handle(ScaleRequested(min=2, max=3))
    seen(harness, 0, PodPhase.RUNNING, node="node-a")
    seen(harness, 1, PodPhase.PENDING, reason="Unschedulable", message="0/3 nodes are available")
    status = harness.reporter.build_status()
    assert [(role.state, role.reason, role.node) for role in status.workers] == [
        ("starting", "", "node-a"),
        ("pending", "0/3 nodes are available", ""),
    ]
    assert (status.workers_min, status.workers_wanted, status.starved) == (2, 3, True)
    assert from_json(Status, to_json(status)) == status


def test_a_worker_that_was_told_to_go_is_leaving_and_says_why(harness: ReporterHarness) -> None:
    harness.stubs.populate()
    seen(harness, 0, PodPhase.RUNNING, leaving=True, cause=TerminationCause.PREEMPTED, message="by default/serving-7")
    (worker,) = harness.reporter.build_status().workers
    assert (worker.state, worker.reason) == ("leaving", "preempted: by default/serving-7")


def test_a_worker_outside_the_running_round_is_joining() -> None:
    """Under AllReduce it follows the others for some seconds: a count of running workers alone says too much."""
    master = AllReduceMaster(started=2)
    master.start_round("w0")
    master.report("w1", RankPhase.FOLLOWING)
    shown = {pod.uid: describe_pod(master.state, pod) for pod in master.state.pods.live_pods(Role.WORKER)}
    assert shown == {"w0": "waiting", "w1": JOINING}
    master.start_round("w0", "w1")
    shown = {pod.uid: describe_pod(master.state, pod) for pod in master.state.pods.live_pods(Role.WORKER)}
    assert shown == {"w0": "waiting", "w1": "waiting"}


def test_what_the_cluster_refused_is_in_the_status_until_it_starts(harness: ReporterHarness) -> None:
    harness.stubs.populate()
    harness.shell.handle(ScaleRequested(max=2))
    harness.shell.handle(StartRefused(Role.WORKER, 1, "exceeded quota: pods=3", retry=True))
    assert harness.reporter.build_status().refusals == {"worker-1": "exceeded quota: pods=3"}
    seen(harness, 1, PodPhase.PENDING)
    assert harness.reporter.build_status().refusals == {}


def test_records_that_are_planned_leased_returned_or_done_are_not_lost(harness: ReporterHarness) -> None:
    lease = harness.train()
    assert harness.reporter.build_summary().records_lost == 0
    harness.shell.state.training_ledger.return_lease(lease.lease, 1)  # type: ignore[union-attr]
    assert harness.reporter.build_summary().records_lost == 0
    assert harness.reporter.build_summary().records_done == 2


def test_what_is_put_aside_is_skipped_and_not_lost(harness: ReporterHarness) -> None:
    lease = harness.train()
    harness.shell.state.training_ledger.return_lease(lease.lease, 1, quarantine_records=2)  # type: ignore[union-attr]
    summary = harness.reporter.build_summary()
    assert (summary.records_lost, summary.records_skipped) == (0, 2)


def test_before_anything_is_known_there_is_a_status(harness: ReporterHarness) -> None:
    status, summary = harness.reporter.build_status(), harness.reporter.build_summary()
    assert (status.phase, status.records_total, status.seconds_left) == ("Starting", 0, None)
    assert (summary.records_total, summary.records_lost) == (0, 0)


def test_time_is_counted_from_the_last_start_of_the_run_whoever_was_master(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for at in (100.0, 200.0):
        append_json_line(run.events, {"event": "run_started", "time": at, "run": "r1", "run_dir": "/r1"})
        append_json_line(run.events, {"event": "warning", "time": at + 1, "message": "run_started"})
    with run.events.open("a") as file:
        file.write('{"event":"run_started","ti')
    assert find_run_start(run) == 200.0
    run.events.unlink()
    assert find_run_start(run) > 200.0


def test_the_rate_survives_a_master_and_begins_anew_when_the_run_is_resumed(harness: ReporterHarness) -> None:
    append_json_line(harness.run.events, {"event": "run_started", "time": 100.0, "run": "r1", "run_dir": "/r1"})
    status = replace(
        harness.reporter.build_status(), updated=110.0, records_done=500, records_worked=500, seconds_worked=5.0
    )
    harness.reporter.write_status(status)
    again = restore_throughput(harness.run, find_run_start(harness.run))
    assert again.overall_rate == 100.0
    again.observe(time.monotonic(), 500)
    assert again.overall_rate == 100.0, "no record was done since"
    assert restore_throughput(harness.run, run_start=120.0).overall_rate == 0.0
    harness.run.status.write_text("{")
    assert restore_throughput(harness.run, find_run_start(harness.run)).overall_rate == 0.0
