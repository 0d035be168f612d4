"""The table of `edl.ops.release.submitter_decision`, row by row and by property."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.ops.release.submitter_decision import Master, Step, Submitter, View, decide

MINE = Submitter("train-submit-b", "mine", created=200.0, revision=2)
OLDER = Submitter("train-submit-a", "older", created=100.0, revision=1)
NEWER = Submitter("train-submit-c", "newer", created=300.0, revision=3)
OWN = Master("mnist", "m-2", "mine")
THEIRS = Master("mnist", "m-1", "older")


@pytest.mark.parametrize(
    ("view", "step"),
    [
        pytest.param(View(None), Step.REPLACED, id="my Job is gone"),
        pytest.param(View(None, masters=[OWN]), Step.REPLACED, id="my Job is gone, its job not yet"),
        pytest.param(View(replace(MINE, leaving=True), masters=[OWN]), Step.REPLACED, id="my Job goes"),
        pytest.param(View(MINE, [NEWER]), Step.REPLACED, id="there is a newer one"),
        pytest.param(View(MINE, [NEWER], [OWN]), Step.REPLACED, id="there is a newer one, my job still runs"),
        pytest.param(View(MINE, [NEWER], [THEIRS]), Step.REPLACED, id="the newer one will clear"),
        pytest.param(View(MINE, [replace(NEWER, leaving=True)]), Step.SUBMIT, id="the newer one was rolled back"),
        pytest.param(View(MINE, [replace(NEWER, scheduled=True)]), Step.SUBMIT, id="a last Job of the old schedule"),
        pytest.param(View(MINE, [OLDER]), Step.SUBMIT, id="the older one is still there"),
        pytest.param(View(MINE), Step.SUBMIT, id="first install"),
        pytest.param(View(MINE, [OLDER], [THEIRS]), Step.CLEAR, id="upgrade"),
        pytest.param(View(MINE, [], [THEIRS]), Step.CLEAR, id="the old submitter was deleted first"),
        pytest.param(View(MINE, [], [replace(THEIRS, leaving=True)]), Step.CLEAR, id="the old job goes already"),
        pytest.param(View(MINE, [], [OWN]), Step.FOLLOW, id="my pod was restarted"),
        pytest.param(View(MINE, [], [OWN, THEIRS]), Step.FOLLOW, id="the job runs, an old one goes"),
        pytest.param(View(MINE, [], [replace(OWN, begun=False)]), Step.FINISH, id="killed before it could start"),
        pytest.param(
            View(replace(MINE, submitted="m-2"), [], [replace(OWN, begun=False)]), Step.FINISH, id="killed at the mark"
        ),
        pytest.param(View(replace(MINE, submitted="m-2"), [], [OWN]), Step.FOLLOW, id="marked and running"),
        pytest.param(View(replace(MINE, submitted="m-2")), Step.DELETED, id="deleted while nobody looked"),
        pytest.param(View(MINE, [], [replace(OWN, leaving=True)]), Step.DELETED, id="being deleted"),
        pytest.param(
            View(replace(MINE, submitted="m-0"), [], [replace(OWN, begun=False)]),
            Step.DELETED,
            id="a pod that was cut off submits late",
        ),
        pytest.param(
            View(replace(MINE, scheduled=True), [replace(NEWER, scheduled=True)], [THEIRS]),
            Step.SUBMIT,
            id="the Jobs of a schedule stand side by side",
        ),
        pytest.param(View(replace(MINE, scheduled=True), [], [OWN]), Step.FOLLOW, id="a schedule's pod restarted"),
    ],
)
def test_the_table(view: View, step: Step) -> None:
    decision = decide(view)
    assert decision.step is step
    assert decision.reason


def test_a_rollback_has_an_old_revision_and_is_newer() -> None:
    back = replace(OLDER, created=400.0)
    assert decide(View(MINE, [back])).step is Step.REPLACED
    assert decide(View(back, [MINE])).step is Step.SUBMIT


def test_within_one_second_the_revision_decides() -> None:
    twin = replace(NEWER, created=MINE.created)
    assert decide(View(MINE, [twin])).step is Step.REPLACED
    assert decide(View(twin, [MINE])).step is Step.SUBMIT


def test_what_is_cleared_is_all_of_the_release() -> None:
    renamed = Master("digits", "m-0", "oldest")
    decision = decide(View(MINE, [OLDER], [THEIRS, renamed]))
    assert decision.masters == (THEIRS, renamed)
    assert "mnist, digits" in decision.reason


SUBMITTERS = st.lists(
    st.builds(
        Submitter,
        st.from_regex(r"\A[a-z]{1,4}\Z"),
        st.uuids().map(str),
        st.integers(0, 3).map(float),
        st.integers(0, 2),
        leaving=st.booleans(),
        scheduled=st.just(False),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda each: each.name,
)


@given(SUBMITTERS)
def test_exactly_one_of_those_that_stay_may_act(found: list[Submitter]) -> None:
    acting = [
        mine
        for mine in found
        if decide(View(mine, [other for other in found if other is not mine])).step is not Step.REPLACED
    ]
    assert len(acting) == (1 if any(not each.leaving for each in found) else 0)


@given(st.data())
def test_nobody_submits_who_has_submitted_or_is_not_the_newest(data: st.DataObject) -> None:
    mine = data.draw(st.sampled_from([MINE, replace(MINE, submitted="m-2"), replace(MINE, scheduled=True)]))
    others = data.draw(st.lists(st.sampled_from([OLDER, NEWER]), unique=True))
    masters = data.draw(st.lists(st.sampled_from([OWN, replace(OWN, begun=False), THEIRS]), max_size=2, unique=True))
    decision = decide(View(mine, others, masters))
    if decision.step is Step.SUBMIT:
        assert not mine.submitted
        assert mine.scheduled or not masters
        assert mine.scheduled or NEWER not in others
        assert all(master.owner != mine.uid for master in masters)
    if decision.step is Step.CLEAR:
        assert all(master.owner != mine.uid for master in decision.masters)
