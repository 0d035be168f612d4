from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.api.cluster_port import Cause, Phase, PodSeen, Role
from edl.core.pod_lifecycle import (
    MOST_CRASHES,
    TERMINAL,
    TRANSITIONS,
    Blame,
    Seen,
    State,
    blame,
    relaunch,
    seen,
    transition,
)


def test_the_table_has_an_answer_to_everything() -> None:
    assert TRANSITIONS.keys() == set(State)
    assert all(row.keys() == set(Seen) for row in TRANSITIONS.values())


@given(st.sampled_from(State), st.lists(st.sampled_from(list(Seen))))
def test_terminal_states_stay_terminal(state: State, reports: list[Seen]) -> None:
    for report in reports:
        before, state = state, transition(state, report)
        assert before not in TERMINAL or state is before


@given(st.lists(st.sampled_from(list(Seen))))
def test_a_pod_never_runs_backwards(reports: list[Seen]) -> None:
    """Reports that were overtaken by newer ones change nothing."""
    order = [State.ASKED, State.PENDING, State.RUNNING, State.LEAVING]
    state = State.ASKED
    for report in reports:
        before, state = state, transition(state, report)
        assert state in TERMINAL or order.index(state) >= order.index(before)


@pytest.mark.parametrize(
    ("phase", "exit_code", "expected"),
    [
        (Phase.PENDING, None, Seen.PENDING),
        (Phase.RUNNING, None, Seen.RUNNING),
        (Phase.SUCCEEDED, 0, Seen.EXIT_0),
        (Phase.SUCCEEDED, None, Seen.EXIT_0),
        (Phase.FAILED, 143, Seen.EXIT_SIGTERM),
        (Phase.FAILED, 137, Seen.EXIT_SIGKILL),
        (Phase.FAILED, 1, Seen.EXIT_ERROR),
        (Phase.FAILED, 139, Seen.EXIT_ERROR),
        (Phase.FAILED, None, Seen.GONE),
        (Phase.GONE, None, Seen.GONE),
        (Phase.GONE, 143, Seen.EXIT_SIGTERM),
    ],
)
def test_what_a_cluster_says_is_told_apart_by_the_exit_code(
    phase: Phase, exit_code: int | None, expected: Seen
) -> None:
    assert seen(PodSeen("u", Role.WORKER, 0, phase, exit_code)) is expected


@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.GONE])
@pytest.mark.parametrize("exit_code", [None, 1, 137, 143])
@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (Cause.PREEMPTED, State.PREEMPTED),
        (Cause.EVICTED, State.EVICTED),
        (Cause.OUT_OF_MEMORY, State.OUT_OF_MEMORY),
        (Cause.NODE_LOST, State.NODE_LOST),
        (Cause.DELETED, State.DELETED),
    ],
)
def test_a_cause_explains_an_end_whatever_the_exit_code(
    cause: Cause, expected: State, exit_code: int | None, phase: Phase
) -> None:
    what = seen(PodSeen("u", Role.WORKER, 0, phase, exit_code, cause=cause))
    assert transition(State.RUNNING, what) is expected


@pytest.mark.parametrize("cause", list(Cause))
def test_a_pod_that_was_done_with_its_work_succeeded_whoever_told_it_to_go(cause: Cause) -> None:
    assert seen(PodSeen("u", Role.WORKER, 0, Phase.SUCCEEDED, 0, cause=cause)) is Seen.EXIT_0


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.RUNNING])
def test_a_pod_that_was_told_to_go_leaves_until_it_has_ended(phase: Phase) -> None:
    what = PodSeen("u", Role.WORKER, 0, phase, leaving=True, cause=Cause.PREEMPTED)
    assert seen(what) is Seen.LEAVING
    assert transition(transition(State.RUNNING, seen(what)), Seen.RUNNING) is State.LEAVING


@pytest.mark.parametrize("ended", sorted(TERMINAL - {State.CRASHED}))
@given(crashes=st.integers(0, 100))
def test_only_a_crash_is_a_failure(ended: State, crashes: int) -> None:
    assert relaunch(ended, crashes).value.delay == 0.0


def test_crashes_wait_longer_each_time_and_end_the_job_at_last() -> None:
    decisions = [relaunch(State.CRASHED, n) for n in range(1, MOST_CRASHES + 2)]
    delays = [decision.value.delay for decision in decisions]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, None, None]
    assert "6 times with next to no work done between" in decisions[5].reason


@pytest.mark.parametrize("cause", list(Cause))
def test_a_worker_that_exits_before_it_was_told_to_is_told_apart(cause: Cause) -> None:
    ended = PodSeen("u", Role.WORKER, 0, Phase.SUCCEEDED, 0, cause=cause)
    assert seen(ended, told=False) is (Seen.EXIT_0 if cause else Seen.EXIT_EARLY)
    assert seen(ended, told=True) is Seen.EXIT_0


@given(st.sampled_from(State), st.booleans(), st.booleans(), st.booleans())
def test_what_somebody_wanted_is_laid_to_nothing(ended: State, wanted: bool, working: bool, in_minibatch: bool) -> None:
    found = blame(ended, wanted=wanted, working=working, in_minibatch=in_minibatch)
    if wanted or not working or ended not in (State.KILLED, State.EXITED):
        assert found is Blame.NOTHING
    else:
        assert found is (Blame.MINIBATCH if in_minibatch else Blame.ROLE)


@pytest.mark.parametrize("ended", [State.KILLED, State.EXITED])
def test_an_end_without_a_word_that_is_laid_to_the_role_waits_as_a_crash_does(ended: State) -> None:
    for crashes in range(1, MOST_CRASHES + 1):
        found = relaunch(ended, crashes, crashed=True)
        assert found.value == relaunch(State.CRASHED, crashes).value
