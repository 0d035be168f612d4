"""``edl stop``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from cli.cli_harness import CliHarness, cli_with_job
from support import job_objects
from support.job_objects import conditions, put_job, with_status
from support.text_keys import missing_keys

from edl.api.exit_codes import TIMED_OUT_EXIT
from edl.cli.wait import wait_for_goal
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.resource_kinds import JOBS
from edl.cluster.status_port import DesiredState
from edl.jobfile.published_status import PublishedStatus
from edl.ops.job_view import find_job


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CliHarness:
    return cli_with_job(monkeypatch, capsys, with_job=False)


def test_the_wish_is_added_to_those_before(cli: CliHarness) -> None:
    put_job(cli.cluster, annotations={names.DESIRED_ANNOTATION: '{"min": 9}'})
    assert cli.edl("stop", "mnist") == 0
    assert find_job(cli.cluster, "mnist").desired_state == DesiredState(min=9, stop=True)
    assert not missing_keys(cli.out, "checkpoint", "30 s", "edl stop --wait")
    assert cli.out.endswith(": edl submit JOB.yaml --resume 0a1b\n")


@pytest.mark.parametrize(("task", "noun"), [("evaluate", "evaluation"), ("predict", "prediction")])
def test_a_job_that_does_not_train_is_promised_no_checkpoint(cli: CliHarness, task: str, noun: str) -> None:
    put_job(cli.cluster, annotations={names.TASK_ANNOTATION: task})
    assert cli.edl("stop", "mnist") == 0
    assert find_job(cli.cluster, "mnist").desired_state.stop
    assert not missing_keys(cli.out, noun, "not resumed", f"edl {task} JOB.yaml -n team")
    assert "checkpoint" not in cli.out
    assert "--resume" not in cli.out


def test_a_job_without_a_volume_is_not_promised_to_go_on(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(job_objects.SPEC, "volumes", [])
    put_job(cli.cluster)
    assert cli.edl("stop", "mnist") == 0
    assert not missing_keys(cli.out, "volume")
    assert "--resume" not in cli.out


def test_a_job_whose_master_is_not_there_is_better_deleted(cli: CliHarness) -> None:
    put_job(cli.cluster, published=PublishedStatus(), status={})
    assert cli.edl("stop", "mnist") == 0
    assert "edl delete mnist" in cli.out


def test_a_job_that_is_over_stays_so(cli: CliHarness) -> None:
    put_job(cli.cluster, published=with_status(phase="Done"), status=conditions(Complete=""))
    assert cli.edl("stop", "mnist") == 0
    assert not missing_keys(cli.out, "mnist", "Done")
    assert "edl" not in cli.out, "nothing is left to do"
    assert find_job(cli.cluster, "mnist").desired_state == DesiredState()


@pytest.fixture
def later_polls(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], object]]]:
    """What happens at each look after the first, in order."""
    put_job(cli.cluster)
    happens: list[Callable[[], object]] = []
    monkeypatch.setattr("edl.cli.stop.wait_for_goal", partial(wait_for_goal, sleep=lambda _: happens.pop(0)()))
    yield happens
    assert happens == []


def test_it_waits_until_the_job_can_be_gone_on_with(cli: CliHarness, later_polls: list[Callable[[], object]]) -> None:
    over = partial(put_job, cli.cluster, published=with_status(phase="Interrupted"), status=conditions(Failed=""))
    later_polls += [lambda: None, over]
    assert cli.edl("stop", "mnist", "--wait", "--timeout", "5m") == 0
    assert not missing_keys(cli.err, "mnist", "Training")
    requested, stopped, _, later = cli.out.splitlines()
    assert not missing_keys(requested, "mnist", "checkpoint")
    assert not missing_keys(stopped, "mnist", "0 s")
    assert later.endswith(": edl submit JOB.yaml --resume 0a1b")
    assert "edl stop --wait" not in cli.out, "it has waited"


@pytest.mark.usefixtures("later_polls")
def test_it_waits_no_longer_than_it_is_told(cli: CliHarness) -> None:
    assert cli.edl("stop", "mnist", "--wait", "--timeout", "0") == TIMED_OUT_EXIT
    assert not missing_keys(cli.err, "mnist", "Training", "0 s")
    assert cli.edl("stop", "mnist", "--wait", "--timeout", "soon") == 2
    assert cli.edl("stop", "mnist", "--timeout", "5m") == 2
    assert "--wait" in cli.err


def test_a_job_that_is_deleted_while_it_stops(cli: CliHarness, later_polls: list[Callable[[], object]]) -> None:
    later_polls.append(lambda: cli.cluster.delete(JOBS, "edl-mnist-master"))
    assert cli.edl("stop", "mnist", "--wait") == 1
    assert not missing_keys(cli.err, "deleted")
