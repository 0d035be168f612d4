"""Rounds: who is waited for, and that nobody waits for ever."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ps.rounds_simulator import RoundsSimulator
from support.examples import examples
from support.sleep_clock import SleepClock

from edl.ps.applied_steps import PushId
from edl.ps.sync_rounds import (
    MAX_WAIT_SECONDS,
    NEWCOMER_WAIT_SECONDS,
    FollowerPush,
    FollowerRounds,
    SyncRounds,
    WaitingPush,
)

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=examples(150))


def waiting_push(worker: int, step: int = 0, *, last: bool = False) -> WaitingPush:
    return WaitingPush(worker, PushId(worker, step), 0 if last else worker)


def join_round(rounds: SyncRounds, *pushes: WaitingPush) -> list[list[int]]:
    """The rounds that close while these sit down, as the workers in them."""
    closed = []
    for push in pushes:
        rounds.join(push)
        closed.append([other.worker for other in rounds.close_round()])
    return closed


def test_the_first_worker_waits_for_nobody_and_the_second_is_waited_for_from_then_on() -> None:
    rounds = SyncRounds(2)
    assert join_round(rounds, waiting_push(1), waiting_push(2), waiting_push(2, 1)) == [[1], [], []]
    assert join_round(rounds, waiting_push(1, 1)) == [[1, 2]]


def test_a_round_closes_with_as_many_as_are_wanted() -> None:
    rounds = SyncRounds(2)
    for worker in (1, 2, 3):
        rounds.expect_push(worker, worker)
    assert join_round(rounds, waiting_push(3), waiting_push(1), waiting_push(2)) == [[], [1, 3], []]


def test_nobody_waits_for_a_worker_with_nothing_in_hand() -> None:
    rounds = SyncRounds(2)
    rounds.expect_push(1, 1)
    assert join_round(rounds, waiting_push(2), waiting_push(1, last=True), waiting_push(2, 1)) == [[], [1, 2], [2]]


@pytest.mark.parametrize("gone", ["parted", "revoked"])
def test_a_worker_that_cannot_come_is_not_waited_for(gone: str) -> None:
    rounds = SyncRounds(2)
    for worker in (1, 2):
        rounds.bind_connection(worker, f"link {worker}")
        rounds.expect_push(worker, worker)
    assert join_round(rounds, waiting_push(1)) == [[]]
    if gone == "parted":
        rounds.handle_disconnect(2, "link 2")
    else:
        rounds.stop_expecting_refused(lambda lease: lease == 2)
    assert [push.worker for push in rounds.close_round()] == [1]


def test_a_connection_that_was_replaced_may_close() -> None:
    rounds = SyncRounds(2)
    rounds.expect_push(2, 2)
    rounds.bind_connection(2, "new")
    rounds.handle_disconnect(2, "old")
    assert join_round(rounds, waiting_push(1), waiting_push(2)) == [[], [1, 2]]


def test_no_round_closes_before_one_that_was_refused_has_come_again() -> None:
    rounds = SyncRounds(1)
    rounds.expect_push(1, 1)
    rounds.guarantee_next_round(2, 2)
    assert join_round(rounds, waiting_push(1), waiting_push(3), waiting_push(2)) == [[], [], [1, 2, 3]]


def test_a_push_sent_again_takes_the_place_of_the_first_try() -> None:
    rounds = SyncRounds(2)
    rounds.expect_push(2, 2)
    assert rounds.join(waiting_push(1)) is None
    assert rounds.join(waiting_push(1)) == waiting_push(1)
    assert join_round(rounds, waiting_push(2)) == [[1, 2]]


def test_one_that_is_taken_back_is_waited_for() -> None:
    rounds = SyncRounds(2)
    rounds.expect_push(2, 2)
    rounds.join(waiting_push(1))
    rounds.withdraw_push(1)
    assert rounds.expected_leases == {1: 1, 2: 2}
    assert join_round(rounds, waiting_push(2), waiting_push(1)) == [[], [1, 2]]


# ------------------------------------------------------------ names that nobody proves

INVENTED = 4242


def in_training(wanted: int, *workers: int, clock: SleepClock) -> SyncRounds:
    """Rounds that have had a push of each of these workers, whose leases have their numbers."""
    rounds = SyncRounds(wanted, clock)
    for worker in workers:
        rounds.join(waiting_push(worker))
    while rounds.waiting_pushes:
        assert rounds.close_round()
    return rounds


@pytest.mark.parametrize("when", ["before", "while it waits"])
def test_an_invented_worker_gets_no_guarantee_for_a_lease_of_another(when: str) -> None:
    rounds = in_training(2, 1, 2, clock=SleepClock())
    if when == "before":
        rounds.guarantee_next_round(INVENTED, 1)
    assert join_round(rounds, waiting_push(1, 1)) == [[]]
    if when != "before":
        rounds.guarantee_next_round(INVENTED, 1)
    assert join_round(rounds, waiting_push(2, 1)) == [[1, 2]]


def test_an_invented_worker_is_not_expected_with_a_lease_of_another() -> None:
    rounds = in_training(3, 1, 2, clock=SleepClock())
    for lease in (1, 2):
        rounds.expect_push(INVENTED, lease)
    assert join_round(rounds, waiting_push(1, 1), waiting_push(2, 1)) == [[], [1, 2]]


def test_a_lease_has_one_guarantee_and_a_push_of_it_ends_those_of_others() -> None:
    rounds = in_training(1, 1, clock=SleepClock())
    for worker in (INVENTED, INVENTED + 1, 2):
        rounds.guarantee_next_round(worker, 2)
    assert rounds.expected_leases == {1: 1, 2: 2}
    assert join_round(rounds, waiting_push(1, 1), waiting_push(2)) == [[], [1, 2]]
    rounds.guarantee_next_round(INVENTED, 3)
    assert join_round(rounds, waiting_push(1, 2), waiting_push(3)) == [[], [1, 3]]


@pytest.mark.parametrize("busy", [False, True])
def test_a_round_waits_for_a_newcomer_for_a_limited_time_however_often_it_announces_itself(busy: bool) -> None:
    clock = SleepClock()
    rounds = in_training(1, 1, clock=clock)
    rounds.guarantee_next_round(INVENTED, 9)
    assert join_round(rounds, waiting_push(1, 1)) == [[]]
    for number in range(1, 3):
        clock.now += NEWCOMER_WAIT_SECONDS / 3
        if busy:
            rounds.withdraw_push(1)
        rounds.guarantee_next_round(INVENTED + number, 9 + number)
        assert join_round(rounds, waiting_push(1, 1)) == [[]]
    clock.now += NEWCOMER_WAIT_SECONDS / 3
    assert [push.worker for push in rounds.close_round()] == [1]


def test_the_retry_of_a_stale_push_is_in_the_next_round_within_that_time() -> None:
    clock = SleepClock()
    rounds = in_training(1, 1, clock=clock)
    rounds.guarantee_next_round(2, 2)
    clock.now += 10 * NEWCOMER_WAIT_SECONDS
    assert join_round(rounds, waiting_push(1, 1)) == [[]], "the time counts from the round's first push"
    clock.now += NEWCOMER_WAIT_SECONDS - 1
    assert join_round(rounds, waiting_push(2)) == [[1, 2]]


def test_a_worker_of_earlier_rounds_is_waited_for_longer_but_not_for_ever() -> None:
    clock = SleepClock()
    rounds = in_training(2, 1, 2, clock=clock)
    assert join_round(rounds, waiting_push(1, 1)) == [[]]
    clock.now += MAX_WAIT_SECONDS - 1
    assert rounds.close_round() == ()
    clock.now += 1
    assert [push.worker for push in rounds.close_round()] == [1]


ONE, TWO, THREE = PushId(1, 0), PushId(2, 0), PushId(3, 0)


def test_followers_wait_for_all_of_their_round() -> None:
    followed = FollowerRounds()
    followed.join(FollowerPush(ONE, frozenset([ONE, TWO]), is_retry=False))
    assert followed.close_round(lambda share: True) == ()
    followed.join(FollowerPush(THREE, frozenset([THREE]), is_retry=False))
    assert followed.close_round(lambda share: True) == (THREE,)
    followed.join(FollowerPush(TWO, frozenset([ONE, TWO]), is_retry=False))
    assert followed.close_round(lambda share: True) == (ONE, TWO)
    assert followed.close_round(lambda share: True) == ()


def test_followers_do_not_wait_for_what_cannot_come() -> None:
    followed = FollowerRounds()
    followed.join(FollowerPush(ONE, frozenset([ONE, TWO]), is_retry=False))
    assert followed.close_round(lambda share: share != TWO) == (ONE,)


def test_a_follower_that_is_sent_again_waits_for_nobody() -> None:
    """The others may have had their answer of a process that is gone, and will never send theirs again."""
    followed = FollowerRounds()
    followed.join(FollowerPush(ONE, frozenset([ONE, TWO]), is_retry=True))
    assert followed.close_round(lambda share: True) == (ONE,)


# ------------------------------------------------------------ all together

CASTS = st.fixed_dictionaries(
    {
        "workers": st.integers(1, 4),
        "servers": st.integers(1, 3),
        "wanted": st.integers(1, 4),
        "steps": st.integers(1, 4),
    }
)


@PATIENT
@given(st.integers(0, 2**32), CASTS, st.integers(0, 2), st.integers(0, 3))
def test_every_step_enters_once_on_all_and_all_make_the_same_updates(seed, cast, tolerance, cuts) -> None:
    simulator = RoundsSimulator(seed, **cast, tolerance=tolerance, cuts=cuts)
    simulator.play()
    assert simulator.done == dict.fromkeys(range(simulator.total), 1)
    for server, entered in zip(simulator.servers, simulator.entered, strict=True):
        assert entered == simulator.done
        assert {frozenset(shares) for shares in server.rounds} == {frozenset(s) for s in simulator.servers[0].rounds}
        assert server.contents.version == len(server.rounds)


@PATIENT
@given(st.integers(0, 2**32), CASTS)
def test_a_minibatch_is_refused_once_at_most(seed, cast) -> None:
    simulator = RoundsSimulator(seed, **cast)
    simulator.play()
    assert all(times == 1 for worker in simulator.workers for times in worker.refused.values())


@PATIENT
@given(st.integers(0, 2**32), CASTS, st.integers(1, 3), st.integers(0, 2))
def test_nobody_waits_for_a_worker_that_is_gone(seed, cast, kills, cuts) -> None:
    """What a worker left half-way is on some servers only, and is what the master learns of and enters as partial."""
    simulator = RoundsSimulator(seed, **cast, kills=kills, cuts=cuts)
    simulator.play()
    assert simulator.done == dict.fromkeys(range(simulator.total), 1)


@PATIENT
@given(st.integers(0, 2**32), CASTS, st.integers(0, 2), st.integers(0, 2), st.integers(1, 3))
def test_nobody_waits_for_what_a_lost_server_knew(seed, cast, kills, cuts, restarts) -> None:
    simulator = RoundsSimulator(seed, **cast, kills=kills, cuts=cuts, restarts=restarts)
    simulator.play()
    assert simulator.done == dict.fromkeys(range(simulator.total), 1)
