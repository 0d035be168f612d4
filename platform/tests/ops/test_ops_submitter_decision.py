"""The table of `edl.ops.release.submitter_decision`, row by row and by property."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.ops.release.submitter_decision import MasterJob, ReleaseView, SubmitterJob, SubmitterStep, decide_step

MINE = SubmitterJob("train-submit-b", "mine", created_at=200.0, revision=2)
OLDER = SubmitterJob("train-submit-a", "older", created_at=100.0, revision=1)
NEWER = SubmitterJob("train-submit-c", "newer", created_at=300.0, revision=3)
OWN = MasterJob("mnist", "m-2", "mine")
THEIRS = MasterJob("mnist", "m-1", "older")


@pytest.mark.parametrize(
    ("view", "step"),
    [
        pytest.param(ReleaseView(None), SubmitterStep.REPLACED, id="my Job is gone"),
        pytest.param(
            ReleaseView(None, master_jobs=[OWN]), SubmitterStep.REPLACED, id="my Job is gone, its job not yet"
        ),
        pytest.param(
            ReleaseView(replace(MINE, being_deleted=True), master_jobs=[OWN]), SubmitterStep.REPLACED, id="my Job goes"
        ),
        pytest.param(ReleaseView(MINE, [NEWER]), SubmitterStep.REPLACED, id="there is a newer one"),
        pytest.param(
            ReleaseView(MINE, [NEWER], [OWN]), SubmitterStep.REPLACED, id="there is a newer one, my job still runs"
        ),
        pytest.param(ReleaseView(MINE, [NEWER], [THEIRS]), SubmitterStep.REPLACED, id="the newer one will clear"),
        pytest.param(
            ReleaseView(MINE, [replace(NEWER, being_deleted=True)]),
            SubmitterStep.SUBMIT,
            id="the newer one was rolled back",
        ),
        pytest.param(
            ReleaseView(MINE, [replace(NEWER, is_scheduled=True)]),
            SubmitterStep.SUBMIT,
            id="a last Job of the old schedule",
        ),
        pytest.param(ReleaseView(MINE, [OLDER]), SubmitterStep.SUBMIT, id="the older one is still there"),
        pytest.param(ReleaseView(MINE), SubmitterStep.SUBMIT, id="first install"),
        pytest.param(ReleaseView(MINE, [OLDER], [THEIRS]), SubmitterStep.CLEAR, id="upgrade"),
        pytest.param(ReleaseView(MINE, [], [THEIRS]), SubmitterStep.CLEAR, id="the old submitter was deleted first"),
        pytest.param(
            ReleaseView(MINE, [], [replace(THEIRS, being_deleted=True)]),
            SubmitterStep.CLEAR,
            id="the old job goes already",
        ),
        pytest.param(ReleaseView(MINE, [], [OWN]), SubmitterStep.FOLLOW, id="my pod was restarted"),
        pytest.param(ReleaseView(MINE, [], [OWN, THEIRS]), SubmitterStep.FOLLOW, id="the job runs, an old one goes"),
        pytest.param(
            ReleaseView(MINE, [], [replace(OWN, has_begun=False)]),
            SubmitterStep.FINISH,
            id="killed before it could start",
        ),
        pytest.param(
            ReleaseView(replace(MINE, submitted_uid="m-2"), [], [replace(OWN, has_begun=False)]),
            SubmitterStep.FINISH,
            id="killed at the mark",
        ),
        pytest.param(
            ReleaseView(replace(MINE, submitted_uid="m-2"), [], [OWN]), SubmitterStep.FOLLOW, id="marked and running"
        ),
        pytest.param(
            ReleaseView(replace(MINE, submitted_uid="m-2")), SubmitterStep.DELETED, id="deleted while nobody looked"
        ),
        pytest.param(
            ReleaseView(MINE, [], [replace(OWN, being_deleted=True)]), SubmitterStep.DELETED, id="being deleted"
        ),
        pytest.param(
            ReleaseView(replace(MINE, submitted_uid="m-0"), [], [replace(OWN, has_begun=False)]),
            SubmitterStep.DELETED,
            id="a pod that was cut off submits late",
        ),
        pytest.param(
            ReleaseView(replace(MINE, is_scheduled=True), [replace(NEWER, is_scheduled=True)], [THEIRS]),
            SubmitterStep.SUBMIT,
            id="the Jobs of a schedule stand side by side",
        ),
        pytest.param(
            ReleaseView(replace(MINE, is_scheduled=True), [], [OWN]),
            SubmitterStep.FOLLOW,
            id="a schedule's pod restarted",
        ),
    ],
)
def test_the_table(view: ReleaseView, step: SubmitterStep) -> None:
    decision = decide_step(view)
    assert decision.step is step
    assert decision.reason


def test_a_rollback_has_an_old_revision_and_is_newer() -> None:
    back = replace(OLDER, created_at=400.0)
    assert decide_step(ReleaseView(MINE, [back])).step is SubmitterStep.REPLACED
    assert decide_step(ReleaseView(back, [MINE])).step is SubmitterStep.SUBMIT


def test_within_one_second_the_revision_decides() -> None:
    twin = replace(NEWER, created_at=MINE.created_at)
    assert decide_step(ReleaseView(MINE, [twin])).step is SubmitterStep.REPLACED
    assert decide_step(ReleaseView(twin, [MINE])).step is SubmitterStep.SUBMIT


def test_what_is_cleared_is_all_of_the_release() -> None:
    renamed = MasterJob("digits", "m-0", "oldest")
    decision = decide_step(ReleaseView(MINE, [OLDER], [THEIRS, renamed]))
    assert decision.master_jobs == (THEIRS, renamed)
    assert "mnist, digits" in decision.reason


SUBMITTERS = st.lists(
    st.builds(
        SubmitterJob,
        st.from_regex(r"\A[a-z]{1,4}\Z"),
        st.uuids().map(str),
        st.integers(0, 3).map(float),
        st.integers(0, 2),
        being_deleted=st.booleans(),
        is_scheduled=st.just(False),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda each: each.name,
)


@given(SUBMITTERS)
def test_exactly_one_of_those_that_stay_may_act(found: list[SubmitterJob]) -> None:
    acting = [
        mine
        for mine in found
        if decide_step(ReleaseView(mine, [other for other in found if other is not mine])).step
        is not SubmitterStep.REPLACED
    ]
    assert len(acting) == (1 if any(not each.being_deleted for each in found) else 0)


@given(st.data())
def test_nobody_submits_who_has_submitted_or_is_not_the_newest(data: st.DataObject) -> None:
    mine = data.draw(st.sampled_from([MINE, replace(MINE, submitted_uid="m-2"), replace(MINE, is_scheduled=True)]))
    others = data.draw(st.lists(st.sampled_from([OLDER, NEWER]), unique=True))
    masters = data.draw(
        st.lists(st.sampled_from([OWN, replace(OWN, has_begun=False), THEIRS]), max_size=2, unique=True)
    )
    decision = decide_step(ReleaseView(mine, others, masters))
    if decision.step is SubmitterStep.SUBMIT:
        assert not mine.submitted_uid
        assert mine.is_scheduled or not masters
        assert mine.is_scheduled or NEWER not in others
        assert all(master.owner_uid != mine.uid for master in masters)
    if decision.step is SubmitterStep.CLEAR:
        assert all(master.owner_uid != mine.uid for master in decision.master_jobs)
