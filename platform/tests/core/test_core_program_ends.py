"""How programs that end after the last record change the outcome of a job that is done."""

from __future__ import annotations

import pytest
from support.text_keys import missing_keys

from edl.api.cluster_port import PodPhase, PodStatus, Role, TerminationCause
from edl.api.run_events import WarningRaised
from edl.core.events import (
    DatasetDescribed,
    EmitEvent,
    EndJob,
    LeaseReply,
    LeaseRequested,
    PodChanged,
    PodsSynced,
    TaskReported,
    WorkerFailed,
)
from edl.core.job import JobStateMachine
from edl.core.program_ends import running_programs
from edl.core.state import JobSettings

SETTINGS = JobSettings(
    minibatch=10, task_records=10, epochs=1, seed=0, workers=2, ps=0, durable=False, has_parameters=False
)


def worker(index: int, phase: PodPhase = PodPhase.RUNNING, **how: object) -> PodChanged:
    return PodChanged(PodStatus(f"w{index}", Role.WORKER, index, phase, **how))  # type: ignore[arg-type]


def ended(index: int, code: int, **how: object) -> PodChanged:
    return worker(index, PodPhase.SUCCEEDED if code == 0 else PodPhase.FAILED, exit_code=code, **how)


@pytest.fixture
def job() -> JobStateMachine:
    """A job of two workers, whose only record range is done."""
    job = JobStateMachine(SETTINGS)
    job.begin_incarnation(1)
    for event in (PodsSynced(), DatasetDescribed(training=(("a", 10),)), worker(0), worker(1)):
        job.handle(event, 0.0)
    (lease,) = (each for each in job.handle(LeaseRequested("w0", None), 0.0) if isinstance(each, LeaseReply))
    job.handle(TaskReported("w0", lease.lease), 0.0)
    assert job.phase == "Done"
    return job


def outcome(job: JobStateMachine, seconds: float | None = 600.0) -> EndJob | None:
    return next((each for each in job.judge_program_ends(seconds) if isinstance(each, EndJob)), None)


def test_programs_that_end_in_order_change_nothing(job: JobStateMachine) -> None:
    assert [pod.index for pod in running_programs(job)] == [0, 1]
    job.handle(ended(0, 0), 1.0)
    job.handle(ended(1, 0), 1.0)
    assert running_programs(job) == []
    assert outcome(job) is None
    assert job.phase == "Done"


def test_a_program_that_fails_fails_the_job_with_its_report(job: JobStateMachine) -> None:
    job.handle(WorkerFailed("w1", "crash", "OSError: no space left", "the traceback"), 1.0)
    job.handle(ended(0, 0), 1.0)
    job.handle(ended(1, 7), 1.0)
    end = outcome(job)
    assert end is not None
    assert (end.phase, end.failure_kind, end.detail) == ("Failed", "crash", "the traceback")
    assert not missing_keys(end.reason, "worker-1", "exit code 7", "after the last record", "no space left")
    assert (job.phase, job.reason) == ("Failed", end.reason)
    assert outcome(job) is None, "only once"


def test_a_program_that_goes_on_too_long_fails_the_job(job: JobStateMachine) -> None:
    job.handle(ended(0, 0), 1.0)
    end = outcome(job)
    assert end is not None
    assert not missing_keys(end.reason, "worker-1", "had not ended 600 s later")


def test_a_program_that_was_stopped_with_its_job_is_said_to_be(job: JobStateMachine) -> None:
    end = outcome(job, None)
    assert end is not None
    assert not missing_keys(end.reason, "worker-0", "worker-1", "when the job was stopped")


@pytest.mark.parametrize("cause", [TerminationCause.PREEMPTED, TerminationCause.EVICTED, TerminationCause.NODE_LOST])
def test_a_program_that_the_cluster_takes_away_is_a_warning_if_another_ended_in_order(
    job: JobStateMachine, cause: TerminationCause
) -> None:
    job.handle(ended(0, 137, cause=cause), 1.0)
    job.handle(ended(1, 0), 1.0)
    commands = job.judge_program_ends(600.0)
    assert not [each for each in commands if isinstance(each, EndJob)]
    assert job.phase == "Done"
    (warning,) = (each.event for each in commands if isinstance(each, EmitEvent))
    assert isinstance(warning, WarningRaised)
    assert not missing_keys(warning.message, "worker-0", "exit code 137", cause.value, "others ended in order")


def test_programs_of_which_all_were_taken_away_fail_the_job(job: JobStateMachine) -> None:
    job.handle(ended(0, 137, cause=TerminationCause.PREEMPTED), 1.0)
    job.handle(ended(1, 143, cause=TerminationCause.NODE_LOST), 1.0)
    end = outcome(job)
    assert end is not None
    assert not missing_keys(end.reason, "worker-0", "worker-1", "preempted", "node lost")


def test_a_program_that_ran_out_of_memory_fails_the_job(job: JobStateMachine) -> None:
    job.handle(ended(0, 137, cause=TerminationCause.OUT_OF_MEMORY), 1.0)
    job.handle(ended(1, 0), 1.0)
    end = outcome(job)
    assert end is not None
    assert not missing_keys(end.reason, "worker-0", "out of memory")


def test_a_worker_that_starts_after_the_last_record_does_not_count(job: JobStateMachine) -> None:
    job.handle(worker(2), 1.0)
    assert [pod.index for pod in running_programs(job)] == [0, 1]
    for event in (ended(0, 0), ended(1, 0), ended(2, 1)):
        job.handle(event, 1.0)
    assert outcome(job) is None


def test_the_next_master_finds_the_failure_in_the_journal(job: JobStateMachine) -> None:
    job.handle(ended(0, 1), 1.0)
    job.handle(ended(1, 0), 1.0)
    outcome(job)
    successor = JobStateMachine(SETTINGS)
    successor.replay_journal(job.to_snapshot(), [])
    assert (successor.phase, successor.reason) == ("Failed", job.reason)
