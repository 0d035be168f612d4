"""``edl doctor``: findings as lines, and the exit code they add up to."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from cli.cli_harness import CliHarness, cli_with_job
from support.text_keys import missing_keys

from edl.cluster.kubernetes.api_client import KubeClient
from edl.ops.doctor_checks import DoctorFinding, FindingLevel, PriorityClassNames

FINE = DoctorFinding(FindingLevel.OK, "server", "Kubernetes v1.34.1")
ODD = DoctorFinding(FindingLevel.WARN, "claims", "there is none", "Create one.")
BAD = DoctorFinding(FindingLevel.FAIL, "accounts", "there is no ServiceAccount edl-none", "Apply the base.")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CliHarness:
    monkeypatch.setattr(
        "edl.ops.doctor_checks.check_image_pull",
        lambda api, image, classes, tell: DoctorFinding(FindingLevel.OK, "images", f"{image} pulled as {classes.low}"),
    )
    return cli_with_job(monkeypatch, capsys)


def set_findings(monkeypatch: pytest.MonkeyPatch, *checkups: DoctorFinding) -> None:
    def examine(api: KubeClient, classes: PriorityClassNames) -> Iterator[DoctorFinding]:
        yield from checkups

    monkeypatch.setattr("edl.ops.doctor_checks.examine_cluster", examine)


def test_what_is_missing_comes_with_its_remedy(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    set_findings(monkeypatch, FINE, ODD, BAD)
    assert cli.edl("doctor", "--image", "img:1") == 1
    *shown, last = cli.out.splitlines()
    assert shown == [
        "https://cluster.test, namespace team",
        "OK    server      Kubernetes v1.34.1",
        "WARN  claims      there is none",
        "                  -> Create one.",
        "FAIL  accounts    there is no ServiceAccount edl-none",
        "                  -> Apply the base.",
        "OK    images      img:1 pulled as low",
    ]
    assert not missing_keys(last, "cannot run", "1 check failed")


def test_warnings_are_no_failure(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    set_findings(monkeypatch, FINE, ODD)
    assert cli.edl("doctor", "--json") == 0
    assert [json.loads(line)["level"] for line in cli.out.splitlines()] == ["OK", "WARN", "OK"]


def test_what_is_not_known_is_not_vouched_for(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    set_findings(monkeypatch, FINE, ODD)
    assert cli.edl("doctor") == 0
    last = cli.out.splitlines()[-1]
    set_findings(monkeypatch, FINE)
    assert cli.edl("doctor") == 0
    assert last not in cli.out, "that is said of a healthy cluster only"


def test_a_healthy_cluster(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    set_findings(monkeypatch, FINE)
    assert cli.edl("doctor") == 0
    assert not missing_keys(cli.out, "edl doctor --image IMAGE")


def test_the_pod_has_the_class_that_workers_have(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    set_findings(monkeypatch, FINE)
    assert cli.edl("doctor", "--image", "img:1", "--low", "batch") == 0
    assert "img:1 pulled as batch" in cli.out


@pytest.mark.parametrize(("checkup", "code"), [(FINE, 0), (BAD, 1)])
def test_before_an_uninstall_only_other_teams_are_looked_for(
    cli: CliHarness, monkeypatch: pytest.MonkeyPatch, checkup: DoctorFinding, code: int
) -> None:
    set_findings(monkeypatch, ODD)
    monkeypatch.setattr("edl.ops.doctor_checks.check_uninstall", lambda api, release: iter((checkup,)))
    assert cli.edl("doctor", "--before-uninstall", "edl") == code
    assert [line[:4].strip() for line in cli.out.splitlines()[1:] if line[0] != " "] == [checkup.level.value]
