from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.text_keys import missing_keys

from edl.core.cuts import CutStage, PendingCut, is_due

servers = st.sampled_from(["ps-0", "ps-1", "ps-2"])
leases = st.dictionaries(st.integers(1, 5), st.integers(0, 9))


def cut(**applied: dict[int, int]) -> PendingCut:
    pending = PendingCut(7, checkpoint=True, pin=False)
    pending.applied_steps = {name.replace("_", "-"): steps for name, steps in applied.items()}
    return pending


@given(st.sets(servers), st.lists(st.tuples(st.sampled_from(CutStage), servers)))
def test_a_cut_waits_for_every_ps_in_each_stage(parts: set[str], answers: list[tuple[CutStage, str]]) -> None:
    coming, missing = cut(), set(parts)
    coming.enter_stage(CutStage.HOLDING, parts)
    for stage, ps in answers:
        assert coming.record_answer(stage, ps) == (stage is CutStage.HOLDING and ps in missing)
        if stage is CutStage.HOLDING:
            missing.discard(ps)
        assert coming.is_complete == (not missing)


def test_updates_are_held_for_a_while_only_and_nobody_waits_for_room_or_a_disk() -> None:
    coming = cut()
    for stage in CutStage:
        coming.enter_stage(stage, ["ps-0"], 105.0)
        assert not coming.is_overdue(104.9)
        assert coming.is_overdue(105.1) == (stage in (CutStage.HOLDING, CutStage.SNAPSHOT))


@given(st.dictionaries(servers, leases, min_size=1), st.sets(st.integers(1, 7)))
def test_a_cut_has_the_steps_that_any_ps_has(applied: dict[str, dict[int, int]], live: set[int]) -> None:
    coming = cut()
    coming.applied_steps = dict(applied)
    expected = {lease: max(steps.get(lease, 0) for steps in applied.values()) for lease in live}
    assert coming.decide_included_steps(dict.fromkeys(live, 0)).value == expected


def test_a_step_that_is_on_its_way_to_a_ps_is_part_of_the_cut() -> None:
    assert cut(ps_0={1: 3, 5: 2}, ps_1={5: 2}).decide_included_steps({1: 3, 5: 1}).value == {1: 3, 5: 2}


def test_a_ps_that_went_back_must_have_met_a_lease_that_was_granted_before() -> None:
    coming = cut(ps_0={1: 3, 5: 2}, ps_1={5: 2})
    assert coming.find_unconfirmed_leases({1: 3, 5: 1}, {}) == {}
    assert coming.find_unconfirmed_leases({1: 3, 5: 1}, {"ps-1": 4}) == {1: "ps-1"}, (
        "it may be one that ps-1 had and has lost"
    )
    assert coming.find_unconfirmed_leases({5: 1}, {"ps-1": 4}) == {}, "lease 5 was granted later"


@pytest.mark.parametrize(("known", "applied"), [(1, {}), (0, {1: 1})])
def test_a_lease_is_unmet_when_the_ledger_or_a_ps_has_a_step_of_it(known: int, applied: dict[int, int]) -> None:
    assert cut(ps_0=applied, ps_1={}).find_unconfirmed_leases({1: known}, {"ps-1": 4}) == {1: "ps-1"}


def test_a_lease_of_which_nothing_is_in_does_not_matter_to_a_ps_that_went_back() -> None:
    coming = cut(ps_0={}, ps_1={})
    assert coming.find_unconfirmed_leases({1: 0}, {"ps-1": 4}) == {}
    assert coming.decide_included_steps({1: 0}).value == {1: 0}


def test_steps_that_the_ledger_has_and_no_ps_knows_of_are_no_cut() -> None:
    decision = cut(ps_0={1: 3}, ps_1={1: 3}).decide_included_steps({1: 4})
    assert decision.value is None
    assert not missing_keys(decision.reason, "4 steps", "lease 1", "3")


@given(st.integers(0, 100), st.integers(0, 100), st.none() | st.integers(1, 50))
def test_a_cut_is_due_when_enough_steps_have_passed(step: int, last: int, every: int | None) -> None:
    passed = every is not None and any(last < multiple <= step for multiple in range(0, step + 1, every))
    assert is_due(step, last, every) == passed
