"""Which workers are asked for, with what, and which are told to go: what the scenarios do not show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.core_harness import CoreHarness, CoreJob, alive

from edl.api.cluster_port import PodOptions, PodPhase, PodStatus, Role, TerminationCause
from edl.api.run_events import WarningRaised
from edl.cluster.status_port import DesiredState
from edl.core.events import DeletePod, EmitEvent, PodChanged, PodsSynced, ScaleRequested, StartPod, Tick
from edl.core.job import JobStateMachine
from edl.core.job_pods import REQUEST_TIMEOUT
from edl.core.scaling import DELETE_AGAIN_SECONDS, is_starved
from edl.core.state import JobSettings
from edl.master.master_process import desired_state_events

SETTINGS = JobSettings(minibatch=8, task_records=64, ps=0, predict=True, workers=4, workers_min=2)


class NewJob(CoreJob):
    """A job that has just begun, at a time that the test says."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(replace(SETTINGS, **changes))

    def begin(self, workers: int) -> None:
        self.see(PodsSynced())
        self.see(*(alive(Role.WORKER, index) for index in range(workers)))


def started(commands: list[Any]) -> list[tuple[int, PodOptions]]:
    return [(command.index, command.options) for command in commands if isinstance(command, StartPod)]


def deleted(commands: list[Any]) -> list[tuple[str, float]]:
    return [(command.uid, command.grace) for command in commands if isinstance(command, DeletePod)]


def pending(index: int) -> PodChanged:
    return PodChanged(PodStatus(f"worker-{index}", Role.WORKER, index, PodPhase.PENDING))


def test_half_of_the_workers_are_elevated_and_their_replacements_are_too() -> None:
    job = NewJob(elevated_share=0.5)
    assert [wish.elevated for _, wish in started(job.see(PodsSynced()))] == [True, True, False, False]
    for index in range(4):
        job.see(PodChanged(PodStatus(f"worker-{index}", Role.WORKER, index, PodPhase.RUNNING, elevated=index < 2)))
    lost = [PodChanged(PodStatus(f"worker-{i}", Role.WORKER, i, PodPhase.RUNNING, leaving=True)) for i in (1, 3)]
    assert started(job.see(*lost)) == [(4, PodOptions(elevated=True)), (5, PodOptions())]


def test_an_order_to_go_that_nobody_followed_is_repeated() -> None:
    job = NewJob(grace=5.0)
    job.begin(4)
    assert deleted(job.see(ScaleRequested(max=3))) == [("worker-3", 5.0)]
    assert deleted(job.see(Tick(), after=DELETE_AGAIN_SECONDS)) == []
    assert deleted(job.see(Tick(), after=5.0)) == [("worker-3", 0.0)]
    assert deleted(job.see(Tick(), after=5.0)) == []


def test_a_new_master_tells_again_who_was_told_to_go_and_counts_nobody_as_lost() -> None:
    harness = CoreHarness()
    harness.train()
    assert deleted(harness.see(ScaleRequested(max=1))) == [("worker-1", 5.0)]
    harness.restart()
    harness.see(alive(Role.PS, 0), alive(Role.WORKER, 0), alive(Role.WORKER, 1))
    assert deleted(harness.see(PodsSynced())) == [("worker-1", 5.0)]
    harness.see(PodChanged(PodStatus("worker-1", Role.WORKER, 1, PodPhase.GONE, 143)))
    assert harness.state.counters.workers_lost == 0
    assert harness.state.workers_max == 1


def test_what_was_scaled_and_raised_survives_a_compaction() -> None:
    job = NewJob(oom_memory_factor=2.0)
    job.begin(4)
    job.see(ScaleRequested(min=1, max=3))
    job.see(
        PodChanged(PodStatus("worker-0", Role.WORKER, 0, PodPhase.FAILED, 137, cause=TerminationCause.OUT_OF_MEMORY))
    )
    again = JobStateMachine(job.state.settings)
    again.replay_journal(job.state.to_snapshot(), [])
    assert (again.workers_min, again.workers_max, again.pods.worker_memory) == (1, 3, job.state.pods.worker_memory)
    assert again.pods.worker_memory.raise_count == 1
    assert again.pods.leaving_workers == {"worker-3"}


def test_what_was_asked_for_and_never_shown_is_asked_for_again_unless_it_is_not_wanted() -> None:
    job = NewJob(elevated_share=0.25)
    job.see(PodsSynced())
    job.see(*(alive(Role.WORKER, index) for index in (1, 2)), ScaleRequested(max=3))
    again = job.see(Tick(), after=REQUEST_TIMEOUT)
    assert started(again) == [(3, PodOptions())], "two that run and one on its way are enough"
    assert (Role.WORKER, 0) not in job.state.pods.requests


def test_a_job_is_starved_while_fewer_run_than_it_should_have_at_least() -> None:
    job = NewJob()
    job.begin(1)
    job.see(pending(1))
    assert is_starved(job.state)
    job.see(alive(Role.WORKER, 1))
    assert not is_starved(job.state)


def test_a_wish_that_cannot_be_read_is_told_and_changes_nothing() -> None:
    job = NewJob()
    job.begin(4)
    job.see(ScaleRequested(max=3))
    (command,) = job.see(*desired_state_events([DesiredState(unreadable="it is ignored")]))
    assert command == EmitEvent(WarningRaised("it is ignored"))
    assert job.state.workers_max == 3


def test_a_job_keeps_one_worker_and_says_what_is_wanted_once() -> None:
    job = NewJob()
    job.begin(4)
    job.see(ScaleRequested(max=0))
    assert (job.state.workers_max, len(job.state.pods.staying_pods(Role.WORKER))) == (1, 1)
    assert job.see(ScaleRequested(max=0)) == []


@given(st.lists(st.tuples(st.sampled_from(["scale", "pending", "running", "leaving", "gone"]), st.integers(0, 12))))
def test_never_more_workers_than_are_wanted(happened: list[tuple[str, int]]) -> None:
    job = NewJob()
    job.begin(2)
    for what, number in happened:
        phase = {"pending": PodPhase.PENDING, "gone": PodPhase.GONE}.get(what, PodPhase.RUNNING)
        pod = PodStatus(f"worker-{number}", Role.WORKER, number, phase, leaving=what == "leaving")
        commands = job.see(ScaleRequested(max=number) if what == "scale" else PodChanged(pod))
        job_pods = job.state.pods
        assert len(job_pods.staying_pods(Role.WORKER)) <= job.state.workers_max
        assert not started(commands) or job_pods.count_expected_workers() <= job.state.workers_max


def test_there_are_no_more_workers_than_a_step_has_records() -> None:
    """Whoever writes the wish: ``edl scale`` refuses it, but a Job's annotation may be edited."""
    job = NewJob(predict=False, all_reduce=True, global_batch=3, workers=2)
    job.see(PodsSynced())
    assert len(started(job.see(ScaleRequested(max=9)))) <= 3
    assert job.state.workers_max == 3
