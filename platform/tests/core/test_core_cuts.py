from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.core.cuts import ACKNOWLEDGE_FLOOR, Cut, Stage, begin, due

workers = st.sampled_from("abcdef")
leases = st.dictionaries(st.integers(1, 5), st.integers(0, 9))


def cut(*holders: str, slowest: float = 0.1) -> Cut:
    return begin(7, checkpoint=True, pin=False, step=0, holders=holders, slowest_step=slowest, now=100.0)


@given(st.sets(workers), st.lists(st.tuples(workers, st.integers(0, 9), st.booleans())))
def test_a_cut_waits_for_every_holder_until_it_acknowledges_or_holds_nothing(
    holders: set[str], said: list[tuple[str, int, bool]]
) -> None:
    coming, expected = cut(*holders), set(holders)
    for worker, known, gone in said:
        if gone:
            coming.let_go(worker)
        else:
            coming.acknowledged(worker, known)
        if gone or known >= 7:
            expected.discard(worker)
        assert coming.holders == expected


@given(st.floats(0.0, 100.0))
def test_a_stopped_worker_holds_a_cut_up_for_a_few_of_the_slowest_steps(slowest: float) -> None:
    coming = cut("a", slowest=slowest)
    patience = max(ACKNOWLEDGE_FLOOR, 4 * slowest)
    assert not coming.overdue(100.0 + 0.99 * patience)
    assert coming.overdue(100.1 + patience)
    coming.stage = Stage.SAVING
    assert not coming.overdue(10_000.0), "nobody waits for a disk"


@given(leases, st.integers(1, 3))
def test_a_cut_is_the_same_on_all_ps(applied: dict[int, int], count: int) -> None:
    coming = cut()
    coming.applied = {f"ps-{i}": dict(applied) for i in range(count)}
    assert coming.steps({}).value == applied


def test_two_ps_that_disagree_are_named() -> None:
    coming = cut()
    coming.applied = {"ps-0": {1: 3}, "ps-1": {1: 4}}
    decision = coming.steps({})
    assert decision.value is None
    assert decision.reason == "ps-1 holds 4 steps of lease 1, another PS 3"


def test_a_ps_that_came_later_has_no_say_about_older_leases() -> None:
    coming = cut()
    coming.applied = {"ps-0": {1: 3, 5: 2}, "ps-1": {1: 1, 5: 2}}
    assert coming.steps({"ps-1": 4}).value == {1: 3, 5: 2}


def test_if_every_ps_came_later_the_one_that_knows_most_is_right() -> None:
    coming = cut()
    coming.applied = {"ps-0": {1: 3}, "ps-1": {1: 2}}
    assert coming.steps({"ps-0": 4, "ps-1": 6}).value == {1: 3}


@given(st.integers(0, 100), st.integers(0, 100), st.none() | st.integers(1, 50))
def test_a_cut_is_due_when_enough_steps_have_passed(step: int, last: int, every: int | None) -> None:
    passed = every is not None and any(last < multiple <= step for multiple in range(0, step + 1, every))
    assert due(step, last, every) == passed
