"""Wishes survive the way through an annotation, stay together, and are refused when they contradict each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.in_memory_cluster import InMemoryCluster
from support.job_objects import put_job
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.cluster import desired_state
from edl.cluster.desired_state import ANY_BOUNDS
from edl.cluster.kubernetes import names, status_publisher
from edl.cluster.kubernetes.api_errors import ConflictError, error_from_response
from edl.cluster.kubernetes.resource_kinds import JOBS
from edl.cluster.status_port import DesiredState
from edl.ops.job_view import find_job

COUNTS = st.none() | st.integers(0, 100)
DESIRED = st.builds(DesiredState, COUNTS, st.none() | st.integers(1, 100), st.booleans())


@given(DESIRED)
def test_a_wish_survives_the_way(desired: DesiredState) -> None:
    assert desired_state.parse_desired_state(desired_state.format_desired_state(desired), "it") == desired


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", ("JSON",)),
        ("[]", ("JSON object",)),
        ('{"max": "4"}', ("max", "1 to 10000")),
        ('{"max": 0}', ("max", "1 to 10000")),
        ('{"min": -1, "max": 3}', ("min", "from 0")),
        ('{"max": true}', ("max", "number")),
        ('{"max": 100000}', ("max", "1 to 10000")),
        ('{"stop": "yes"}', ("stop", "true")),
        ('{"maximum": 4}', ("maximum",)),
    ],
)
def test_what_is_no_wish_wants_nothing_and_says_why(text: str, why: tuple[str, ...]) -> None:
    desired = desired_state.parse_desired_state(text, "the request")
    assert (desired.min, desired.max, desired.stop) == (None, None, False)
    assert not missing_keys(desired.unreadable, "the request", "ignored", *why)


def test_no_wish_is_nothing_wrong() -> None:
    assert desired_state.parse_desired_state("", "it") == DesiredState()


def test_who_wants_it_to_stop_is_heard_whatever_else_is_wrong() -> None:
    assert desired_state.parse_desired_state('{"max": "4", "stop": true}', "it").stop


def test_a_wish_stands_in_for_one_that_could_not_be_read() -> None:
    assert desired_state.merge_desired_state(
        desired_state.parse_desired_state("{", "it"), DesiredState(max=3), (1, 4)
    ) == DesiredState(max=3)


@pytest.mark.parametrize("wanted", [DesiredState(max=10_001), DesiredState(min=10_001, max=10_000)])
def test_more_workers_than_a_job_may_have_are_refused(wanted: DesiredState) -> None:
    with pytest.raises(BadInputError, match=r"10001: .*10000 workers"):
        desired_state.merge_desired_state(DesiredState(), wanted, (1, 4))


@given(DESIRED, DESIRED, st.integers(0, 10), st.integers(1, 10))
def test_wishes_never_contradict_themselves(known: DesiredState, wanted: DesiredState, low: int, more: int) -> None:
    spec = (low, low + more)
    try:
        merged = desired_state.merge_desired_state(known, wanted, spec)
    except BadInputError:
        return
    assert (spec[0] if merged.min is None else merged.min) <= (spec[1] if merged.max is None else merged.max)
    assert merged.stop is (known.stop or wanted.stop)
    assert wanted.max is None or merged.max == wanted.max


@pytest.mark.parametrize(
    ("known", "wanted", "hint"),
    [
        (DesiredState(), DesiredState(min=8), "--max too"),
        (DesiredState(min=3), DesiredState(max=2), "--min too"),
        (DesiredState(), DesiredState(5, 2), ""),
    ],
)
def test_more_than_max_is_refused_with_what_is_missing(known: DesiredState, wanted: DesiredState, hint: str) -> None:
    with pytest.raises(BadInputError, match="more than max") as refused:
        desired_state.merge_desired_state(known, wanted, (1, 4))
    assert hint in (refused.value.hint or "")


def test_what_is_wrong_with_an_annotation_names_it() -> None:
    cluster = InMemoryCluster()
    put_job(cluster, annotations={names.DESIRED_ANNOTATION: '{"max": 0}'})
    assert not missing_keys(find_job(cluster, "mnist").desired_state.unreadable, names.DESIRED_ANNOTATION, "Job")


def test_a_wish_is_added_to_those_before() -> None:
    cluster = InMemoryCluster()
    put_job(cluster, annotations={names.DESIRED_ANNOTATION: '{"min": 2}', "other": "stays"})
    assert status_publisher.update_desired_state(cluster, "mnist", DesiredState(max=6), (1, 4)) == DesiredState(2, 6)
    job = find_job(cluster, "mnist")
    assert job.desired_state == DesiredState(2, 6)
    assert job.manifest["metadata"]["annotations"]["other"] == "stays"


def test_a_job_that_changes_meanwhile_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, patch, conflicts = InMemoryCluster(), InMemoryCluster.patch, [error_from_response(409, b"{}", where="")]

    def once(self: InMemoryCluster, kind: object, *args: object, **options: object) -> object:
        if kind is JOBS and conflicts:
            raise conflicts.pop()
        return patch(self, kind, *args, **options)  # type: ignore[arg-type]

    put_job(cluster)
    monkeypatch.setattr(InMemoryCluster, "patch", once)
    assert status_publisher.update_desired_state(cluster, "mnist", DesiredState(stop=True), ANY_BOUNDS).stop
    assert find_job(cluster, "mnist").desired_state.stop


def test_a_job_that_changes_again_and_again_is_given_up_after_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    def conflict(*_: object, **__: object) -> object:
        raise error_from_response(409, b"{}", where="")

    cluster, pauses = InMemoryCluster(), list[float]()
    put_job(cluster)
    monkeypatch.setattr(InMemoryCluster, "patch", conflict)
    with pytest.raises(ConflictError):
        status_publisher.update_desired_state(
            cluster, "mnist", DesiredState(stop=True), ANY_BOUNDS, sleep=pauses.append
        )
    assert len(pauses) == 4
    assert min(pauses) > 0
    assert sum(pauses) < 1
