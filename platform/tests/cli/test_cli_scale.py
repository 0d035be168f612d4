"""``edl scale``: wishes are pinned to the Job, or refused."""

from __future__ import annotations

import json

import pytest
from cli.cli_harness import CliHarness, cli_with_job
from support.job_objects import conditions, put_job, with_status
from support.text_keys import missing_keys

from edl.cluster.kubernetes.resource_kinds import JOBS
from edl.cluster.status_port import DesiredState
from edl.ops import job_view
from edl.ops.job_view import find_job


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CliHarness:
    return cli_with_job(monkeypatch, capsys)


def test_a_wish_is_pinned(cli: CliHarness) -> None:
    assert cli.edl("scale", "mnist", "--max", "8") == 0
    assert find_job(cli.cluster, "mnist").desired_state == DesiredState(max=8)
    assert not missing_keys(cli.out, "1 to 8 workers", "edl wait mnist --for workers=8")


def test_wishes_add_up(cli: CliHarness) -> None:
    cli.edl("scale", "mnist", "--max", "8")
    assert cli.edl("scale", "mnist", "--min", "6", "--json") == 0
    assert json.loads(cli.out) == {"job": "mnist", "min": 6, "max": 8}


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
def test_what_cannot_be_wanted(cli: CliHarness, options: tuple[str, ...], said: tuple[str, ...]) -> None:
    assert cli.edl("scale", "mnist", *options) == 2
    assert cli.err
    assert not missing_keys(cli.err, *said)
    assert find_job(cli.cluster, "mnist").desired_state == DesiredState()


def test_a_job_that_is_over(cli: CliHarness) -> None:
    put_job(cli.cluster, published=with_status(phase="Done"), status=conditions(Complete=""))
    assert cli.edl("scale", "mnist", "--max", "8") == 2
    assert "mnist is Done already" in cli.err


def test_who_may_not_hears_who_can_grant_it(cli: CliHarness) -> None:
    cli.cluster.deny("patch", JOBS)
    assert cli.edl("scale", "mnist", "--max", "8") == 2
    assert "cannot patch resource" in cli.err
    assert "edl-data-scientist" in cli.err


def test_no_more_workers_than_a_step_has_records(monkeypatch: pytest.MonkeyPatch, cli: CliHarness) -> None:
    monkeypatch.setattr(job_view, "global_batch", lambda spec: 6)
    assert cli.edl("scale", "mnist", "--max", "7") == 2
    assert not missing_keys(cli.err, "--max is 7", "strategy.global_batch of mnist is 6", "at most 6")
    assert cli.edl("scale", "mnist", "--max", "6") == 0


def test_the_global_batch_of_a_spec() -> None:
    assert job_view.global_batch({"strategy": {"global_batch": 6}}) == 6
    assert job_view.global_batch({"strategy": {"name": "AllReduce"}}) is None
    assert job_view.global_batch({}) is None
