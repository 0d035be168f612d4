"""``edl wait``: goals, exit codes, time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cli.cli_harness import Desk
from cli.jobs_desk import jobs_desk
from support.job_objects import conditions, put_job, seen, with_status
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.cli.wait import TIMED_OUT_EXIT, parse_goal, wait_for_goal
from edl.cluster.kubernetes.api_errors import NoResponseError
from edl.jobfile.published_status import PublishedStatus
from edl.ops.job_view import JobView, UnknownJobError

DONE = seen(with_status(phase="Done"), status=conditions(Complete=""))
FAILED = seen(with_status(phase="Failed"), status=conditions(Failed=""))
STARTING, TRAINING, NEW = seen(with_status(phase="Starting")), seen(), seen(PublishedStatus(), status={})


class Hours:
    """A clock that only sleeping moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def waited(aim: str, *looks: JobView | Exception, seconds: float | None = None) -> tuple[int, str]:
    """What comes of looking at these one after the other."""
    hours, left = Hours(), iter(looks)

    def look(left: Iterator[JobView | Exception] = left) -> JobView:
        found = next(left)
        if isinstance(found, Exception):
            raise found
        return found

    return wait_for_goal(look, parse_goal(aim), seconds, clock=hours.clock, sleep=hours.sleep)


@pytest.mark.parametrize(
    ("aim", "looks", "code"),
    [
        ("done", [NEW, TRAINING, DONE], 0),
        ("done", [TRAINING, FAILED], 1),
        ("started", [NEW, STARTING, TRAINING], 0),
        ("started", [DONE], 0),
        ("workers=1", [NEW, TRAINING], 0),
        ("workers=3", [TRAINING, DONE], 1),
        ("workers=2", [TRAINING, TRAINING, DONE], 1),
    ],
)
def test_goals(aim: str, looks: list[JobView], code: int) -> None:
    assert waited(aim, *looks)[0] == code


def test_the_time_is_over() -> None:
    code, said = waited("done", *[TRAINING] * 9, seconds=3)
    assert code == TIMED_OUT_EXIT == 124
    assert not missing_keys(said, "mnist", "Training", "3 s", "1 of 4 workers")


def test_a_job_that_is_deleted_meanwhile() -> None:
    code, said = waited("done", TRAINING, UnknownJobError("gone"))
    assert (code, missing_keys(said, "mnist", "deleted")) == (1, [])


def test_a_job_that_never_was() -> None:
    with pytest.raises(UnknownJobError):
        waited("done", UnknownJobError("none"))


def test_a_short_absence_of_the_api_server_is_waited_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert waited("done", TRAINING, NoResponseError("away"), NoResponseError("away"), DONE)[0] == 0
    assert capsys.readouterr().err == "away; retrying\n"


def test_a_long_one_is_not() -> None:
    with pytest.raises(NoResponseError):
        waited("done", TRAINING, *[NoResponseError("away")] * 200)


def test_a_server_that_never_answered_is_not_waited_for() -> None:
    with pytest.raises(NoResponseError):
        waited("done", NoResponseError("refused"), DONE)


@pytest.mark.parametrize("text", ["", "ended", "workers=", "workers=-1"])
def test_what_nobody_can_wait_for(text: str) -> None:
    with pytest.raises(BadInputError, match="nobody can wait"):
        parse_goal(text)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    return jobs_desk(monkeypatch, capsys)


def test_at_the_command_line(desk: Desk) -> None:
    assert desk.edl("wait", "mnist", "--for", "workers=1") == 0
    assert desk.edl("wait", "mnist", "--timeout", "0") == 124
    assert desk.edl("wait", "mnist", "--timeout", "soon") == 2
    put_job(desk.cluster, told=with_status(phase="Failed"), status=conditions(Failed=""))
    assert desk.edl("wait", "mnist", "--timeout", "1m") == 1
    assert "edl why mnist" in desk.err
