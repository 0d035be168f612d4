from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.api.cluster_port import PodPhase, PodStatus, Role, TerminationCause
from edl.core.pod_lifecycle import (
    MAX_CRASHES,
    TERMINAL_STATES,
    TRANSITIONS,
    EndBlame,
    PodState,
    assign_blame,
    decide_relaunch,
    next_state,
    reported_state,
)

REPORTED = frozenset(PodState) - {PodState.ASKED}


def test_the_table_has_an_answer_to_everything() -> None:
    assert TRANSITIONS.keys() == set(PodState)
    assert all(row.keys() == REPORTED for row in TRANSITIONS.values())


@given(st.sampled_from(PodState), st.lists(st.sampled_from(sorted(REPORTED))))
def test_terminal_states_stay_terminal(state: PodState, reports: list[PodState]) -> None:
    for report in reports:
        before, state = state, next_state(state, report)
        assert before not in TERMINAL_STATES or state is before


@given(st.lists(st.sampled_from(sorted(REPORTED))))
def test_a_pod_never_runs_backwards(reports: list[PodState]) -> None:
    """Reports that were overtaken by newer ones change nothing."""
    order = [PodState.ASKED, PodState.PENDING, PodState.RUNNING, PodState.LEAVING]
    state = PodState.ASKED
    for report in reports:
        before, state = state, next_state(state, report)
        assert state in TERMINAL_STATES or order.index(state) >= order.index(before)


@pytest.mark.parametrize(
    ("phase", "exit_code", "expected"),
    [
        (PodPhase.PENDING, None, PodState.PENDING),
        (PodPhase.RUNNING, None, PodState.RUNNING),
        (PodPhase.SUCCEEDED, 0, PodState.SUCCEEDED),
        (PodPhase.SUCCEEDED, None, PodState.SUCCEEDED),
        (PodPhase.FAILED, 143, PodState.PREEMPTED),
        (PodPhase.FAILED, 137, PodState.KILLED),
        (PodPhase.FAILED, 1, PodState.CRASHED),
        (PodPhase.FAILED, 139, PodState.CRASHED),
        (PodPhase.FAILED, None, PodState.DELETED),
        (PodPhase.GONE, None, PodState.DELETED),
        (PodPhase.GONE, 143, PodState.PREEMPTED),
    ],
)
def test_what_a_cluster_says_is_told_apart_by_the_exit_code(
    phase: PodPhase, exit_code: int | None, expected: PodState
) -> None:
    assert reported_state(PodStatus("u", Role.WORKER, 0, phase, exit_code)) is expected


@pytest.mark.parametrize("phase", [PodPhase.FAILED, PodPhase.GONE])
@pytest.mark.parametrize("exit_code", [None, 1, 137, 143])
@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (TerminationCause.PREEMPTED, PodState.PREEMPTED),
        (TerminationCause.EVICTED, PodState.EVICTED),
        (TerminationCause.OUT_OF_MEMORY, PodState.OUT_OF_MEMORY),
        (TerminationCause.NODE_LOST, PodState.NODE_LOST),
        (TerminationCause.DELETED, PodState.DELETED),
    ],
)
def test_a_cause_explains_an_end_whatever_the_exit_code(
    cause: TerminationCause, expected: PodState, exit_code: int | None, phase: PodPhase
) -> None:
    what = reported_state(PodStatus("u", Role.WORKER, 0, phase, exit_code, cause=cause))
    assert next_state(PodState.RUNNING, what) is expected


@pytest.mark.parametrize("cause", list(TerminationCause))
def test_a_pod_that_was_done_with_its_work_succeeded_whoever_told_it_to_go(cause: TerminationCause) -> None:
    assert reported_state(PodStatus("u", Role.WORKER, 0, PodPhase.SUCCEEDED, 0, cause=cause)) is PodState.SUCCEEDED


@pytest.mark.parametrize("phase", [PodPhase.PENDING, PodPhase.RUNNING])
def test_a_pod_that_was_told_to_go_leaves_until_it_has_ended(phase: PodPhase) -> None:
    what = PodStatus("u", Role.WORKER, 0, phase, leaving=True, cause=TerminationCause.PREEMPTED)
    assert reported_state(what) is PodState.LEAVING
    assert next_state(next_state(PodState.RUNNING, reported_state(what)), PodState.RUNNING) is PodState.LEAVING


@pytest.mark.parametrize("ended", sorted(TERMINAL_STATES - {PodState.CRASHED}))
@given(crashes=st.integers(0, 100))
def test_only_a_crash_is_a_failure(ended: PodState, crashes: int) -> None:
    assert decide_relaunch(ended, crashes).value == 0.0


def test_crashes_wait_longer_each_time_and_end_the_job_at_last() -> None:
    decisions = [decide_relaunch(PodState.CRASHED, n) for n in range(1, MAX_CRASHES + 2)]
    delays = [decision.value for decision in decisions]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, None, None]
    assert "6 times" in decisions[5].reason


@pytest.mark.parametrize("cause", list(TerminationCause))
def test_a_worker_that_exits_before_it_was_told_to_is_told_apart(cause: TerminationCause) -> None:
    ended = PodStatus("u", Role.WORKER, 0, PodPhase.SUCCEEDED, 0, cause=cause)
    assert reported_state(ended, leaving_expected=False) is (PodState.SUCCEEDED if cause else PodState.EXITED)
    assert reported_state(ended, leaving_expected=True) is PodState.SUCCEEDED


@given(st.sampled_from(PodState), st.booleans(), st.booleans(), st.booleans())
def test_what_somebody_wanted_is_laid_to_nothing(
    ended: PodState, wanted: bool, working: bool, in_minibatch: bool
) -> None:
    blame = assign_blame(ended, is_explained=wanted, is_working=working, in_minibatch=in_minibatch)
    if wanted or not working or ended not in (PodState.KILLED, PodState.EXITED):
        assert blame is EndBlame.NOTHING
    else:
        assert blame is (EndBlame.MINIBATCH if in_minibatch else EndBlame.ROLE)


@pytest.mark.parametrize("ended", [PodState.KILLED, PodState.EXITED])
def test_an_end_without_a_word_that_is_laid_to_the_role_waits_as_a_crash_does(ended: PodState) -> None:
    for crashes in range(1, MAX_CRASHES + 1):
        delay = decide_relaunch(ended, crashes, crashed=True)
        assert delay.value == decide_relaunch(PodState.CRASHED, crashes).value
