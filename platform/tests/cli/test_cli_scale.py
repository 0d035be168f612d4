"""``edl scale``: wishes are pinned to the Job, or refused."""

from __future__ import annotations

import json

import pytest
from cli.cli_harness import Desk
from cli.jobs_desk import jobs_desk
from support.job_objects import conditions, put_job, with_status
from support.text_keys import missing_keys

from edl.cluster.kubernetes.resource_kinds import JOBS
from edl.cluster.status_port import DesiredState
from edl.ops.job_view import find_job


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return jobs_desk(monkeypatch, capsys)


def test_a_wish_is_pinned(desk: Desk) -> None:
    assert desk.edl("scale", "mnist", "--max", "8") == 0
    assert find_job(desk.cluster, "mnist").desired == DesiredState(max=8)
    assert not missing_keys(desk.out, "1 to 8 workers", "edl wait mnist --for workers=8")


def test_wishes_add_up(desk: Desk) -> None:
    desk.edl("scale", "mnist", "--max", "8")
    assert desk.edl("scale", "mnist", "--min", "6", "--json") == 0
    assert json.loads(desk.out) == {"job": "mnist", "min": 6, "max": 8}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), ()),
        (("--min", "5"), ("min", "5", "max", "4", "--max")),
        (("--min", "5", "--max", "2"), ("min", "5", "max", "2")),
        (("--max", "100000"), ("--max 100000", "10000 workers")),
        (("--max", "0"), ("--max",)),
    ],
)
def test_what_cannot_be_wanted(desk: Desk, options: tuple[str, ...], said: tuple[str, ...]) -> None:
    assert desk.edl("scale", "mnist", *options) == 2
    assert desk.err
    assert not missing_keys(desk.err, *said)
    assert find_job(desk.cluster, "mnist").desired == DesiredState()


def test_a_job_that_is_over(desk: Desk) -> None:
    put_job(desk.cluster, told=with_status(phase="Done"), status=conditions(Complete=""))
    assert desk.edl("scale", "mnist", "--max", "8") == 2
    assert "mnist is Done already" in desk.err


def test_who_may_not_hears_who_can_grant_it(desk: Desk) -> None:
    desk.cluster.deny("patch", JOBS)
    assert desk.edl("scale", "mnist", "--max", "8") == 2
    assert "cannot patch resource" in desk.err
    assert "edl-data-scientist" in desk.err
