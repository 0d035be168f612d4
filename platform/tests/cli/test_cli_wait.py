"""``edl wait``: goals, exit codes, time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cli.cli_harness import CliHarness, cli_with_job
from support.job_objects import conditions, job_view, put_job, with_status
from support.sleep_clock import SleepClock
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.api.exit_codes import TIMED_OUT_EXIT
from edl.cli.wait import parse_goal, wait_for_goal
from edl.cluster.kubernetes.api_errors import NoResponseError
from edl.jobfile.published_status import PublishedStatus
from edl.ops.job_view import JobView, UnknownJobError

DONE = job_view(with_status(phase="Done"), status=conditions(Complete=""))
FAILED = job_view(with_status(phase="Failed"), status=conditions(Failed=""))
STARTING, TRAINING, NEW = job_view(with_status(phase="Starting")), job_view(), job_view(PublishedStatus(), status={})


def waited(aim: str, *looks: JobView | Exception, seconds: float | None = None) -> tuple[int, str]:
    """What comes of looking at these one after the other."""
    hours, left = SleepClock(), iter(looks)

    def look(left: Iterator[JobView | Exception] = left) -> JobView:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

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
    code, message = waited("done", *[TRAINING] * 9, seconds=3)
    assert code == TIMED_OUT_EXIT == 124
    assert not missing_keys(message, "mnist", "Training", "3 s", "1 of 4 workers")


def test_a_job_that_is_deleted_meanwhile() -> None:
    code, message = waited("done", TRAINING, UnknownJobError("gone"))
    assert (code, missing_keys(message, "mnist", "deleted")) == (1, [])


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
    with pytest.raises(BadInputError, match="done, started, workers=N"):
        parse_goal(text)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CliHarness:
    return cli_with_job(monkeypatch, capsys)


def test_at_the_command_line(cli: CliHarness) -> None:
    assert cli.edl("wait", "mnist", "--for", "workers=1") == 0
    assert cli.edl("wait", "mnist", "--timeout", "0") == 124
    assert cli.edl("wait", "mnist", "--timeout", "soon") == 2
    put_job(cli.cluster, published=with_status(phase="Failed"), status=conditions(Failed=""))
    assert cli.edl("wait", "mnist", "--timeout", "1m") == 1
    assert "edl why mnist" in cli.err
