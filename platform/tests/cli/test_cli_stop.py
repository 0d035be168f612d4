"""``edl stop``."""

from __future__ import annotations

import published_job
import pytest
from cli.cluster_desk import Desk
from cli.jobs_desk import jobs_desk
from published_job import conditions, put_job, with_status

from edl.core.board import Desired
from edl.kube import names
from edl.kube.inspection.jobs import find
from edl.spec.publication import Publication


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return jobs_desk(monkeypatch, capsys, with_job=False)


def test_the_wish_is_added_to_those_before(desk: Desk) -> None:
    put_job(desk.cluster, annotations={names.DESIRED: '{"min": 9}'})
    assert desk.edl("stop", "mnist") == 0
    assert find(desk.cluster, "mnist").desired == Desired(min=9, stop=True)
    assert desk.out.endswith(
        "No checkpoint is made now: records done since the newest one are trained on again.\n"
        "Go on with it later: edl submit JOB.yaml --resume 0a1b\n"
    )


def test_a_job_without_a_volume_is_not_promised_to_go_on(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(published_job.SPEC, "volumes", [])
    put_job(desk.cluster)
    assert desk.edl("stop", "mnist") == 0
    assert desk.out.endswith("It has no volume, so nothing of it is kept; it cannot be resumed.\n")


def test_a_job_whose_master_is_not_there_is_better_deleted(desk: Desk) -> None:
    put_job(desk.cluster, told=Publication(), status={})
    assert desk.edl("stop", "mnist") == 0
    assert "edl delete mnist" in desk.out


def test_a_job_that_is_over_stays_so(desk: Desk) -> None:
    put_job(desk.cluster, told=with_status(phase="Done"), status=conditions(Complete=""))
    assert desk.edl("stop", "mnist") == 0
    assert desk.out == "mnist is Done already.\n"
    assert find(desk.cluster, "mnist").desired == Desired()
