"""``edl stop``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from cli.cli_harness import Desk
from cli.jobs_desk import jobs_desk
from support import job_objects
from support.job_objects import conditions, put_job, with_status
from support.text_keys import missing_keys

from edl.cli.wait import TIMED_OUT_EXIT, wait_for_goal
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.resource_kinds import JOBS
from edl.cluster.status_port import DesiredState
from edl.jobfile.published_status import PublishedStatus
from edl.ops.job_view import find_job


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return jobs_desk(monkeypatch, capsys, with_job=False)


def test_the_wish_is_added_to_those_before(desk: Desk) -> None:
    put_job(desk.cluster, annotations={names.DESIRED_ANNOTATION: '{"min": 9}'})
    assert desk.edl("stop", "mnist") == 0
    assert find_job(desk.cluster, "mnist").desired == DesiredState(min=9, stop=True)
    assert not missing_keys(desk.out, "checkpoint", "30 s", "edl stop --wait")
    assert desk.out.endswith(": edl submit JOB.yaml --resume 0a1b\n")


def test_a_job_without_a_volume_is_not_promised_to_go_on(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(job_objects.SPEC, "volumes", [])
    put_job(desk.cluster)
    assert desk.edl("stop", "mnist") == 0
    assert not missing_keys(desk.out, "volume")
    assert "--resume" not in desk.out


def test_a_job_whose_master_is_not_there_is_better_deleted(desk: Desk) -> None:
    put_job(desk.cluster, told=PublishedStatus(), status={})
    assert desk.edl("stop", "mnist") == 0
    assert "edl delete mnist" in desk.out


def test_a_job_that_is_over_stays_so(desk: Desk) -> None:
    put_job(desk.cluster, told=with_status(phase="Done"), status=conditions(Complete=""))
    assert desk.edl("stop", "mnist") == 0
    assert not missing_keys(desk.out, "mnist", "Done")
    assert "edl" not in desk.out, "nothing is left to do"
    assert find_job(desk.cluster, "mnist").desired == DesiredState()


@pytest.fixture
def stopping(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], object]]]:
    """What happens at each look after the first, in order."""
    put_job(desk.cluster)
    happens: list[Callable[[], object]] = []
    monkeypatch.setattr("edl.cli.stop.wait_for_goal", partial(wait_for_goal, sleep=lambda _: happens.pop(0)()))
    yield happens
    assert happens == []


def test_it_waits_until_the_job_can_be_gone_on_with(desk: Desk, stopping: list[Callable[[], object]]) -> None:
    over = partial(put_job, desk.cluster, told=with_status(phase="Interrupted"), status=conditions(Failed=""))
    stopping += [lambda: None, over]
    assert desk.edl("stop", "mnist", "--wait", "--timeout", "5m") == 0
    assert not missing_keys(desk.err, "mnist", "Training")
    asked, stopped, _, later = desk.out.splitlines()
    assert not missing_keys(asked, "mnist", "checkpoint")
    assert not missing_keys(stopped, "mnist", "0 s")
    assert later.endswith(": edl submit JOB.yaml --resume 0a1b")
    assert "edl stop --wait" not in desk.out, "it has waited"


@pytest.mark.usefixtures("stopping")
def test_it_waits_no_longer_than_it_is_told(desk: Desk) -> None:
    assert desk.edl("stop", "mnist", "--wait", "--timeout", "0") == TIMED_OUT_EXIT
    assert not missing_keys(desk.err, "mnist", "Training", "0 s")
    assert desk.edl("stop", "mnist", "--wait", "--timeout", "soon") == 2
    assert desk.edl("stop", "mnist", "--timeout", "5m") == 2
    assert "--wait" in desk.err


def test_a_job_that_is_deleted_while_it_stops(desk: Desk, stopping: list[Callable[[], object]]) -> None:
    stopping.append(lambda: desk.cluster.delete(JOBS, "edl-mnist-master"))
    assert desk.edl("stop", "mnist", "--wait") == 1
    assert not missing_keys(desk.err, "deleted")
