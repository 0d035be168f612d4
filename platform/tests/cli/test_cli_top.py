"""``edl top``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cli.cli_harness import CliHarness, cli_with_job
from support.in_memory_cluster import InMemoryCluster
from support.job_objects import put_pod
from support.text_keys import missing_keys

from edl.api.cluster_port import Role
from edl.cluster.kubernetes.api_client import ResourceList
from edl.cluster.kubernetes.api_errors import error_from_response
from edl.cluster.kubernetes.resource_kinds import POD_METRICS, ResourceKind

MEASURED = {"metadata": {"name": "edl-mnist-worker-1"}, "containers": [{"usage": {"cpu": "1500m", "memory": "512Mi"}}]}


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CliHarness:
    listing = InMemoryCluster.list

    def measured(self: InMemoryCluster, kind: ResourceKind, **options: Any) -> ResourceList:
        return ResourceList((MEASURED,), "1") if kind is POD_METRICS else listing(self, kind, **options)

    monkeypatch.setattr(InMemoryCluster, "list", measured)
    cli = cli_with_job(monkeypatch, capsys)
    put_pod(cli.cluster, Role.MASTER)
    put_pod(cli.cluster, Role.WORKER, 1)
    return cli


def test_what_pods_use_of_what_they_asked_for(cli: CliHarness) -> None:
    assert cli.edl("top", "mnist") == 0
    assert cli.out.splitlines() == [
        "POD        NODE   CPU   OF    MEMORY      OF",
        "master     n1       -    1         -   1 GiB",
        "worker-1   n1     1.5    1   512 MiB   1 GiB",
    ]


def test_for_programs(cli: CliHarness) -> None:
    assert cli.edl("top", "mnist", "--json") == 0
    assert json.loads(cli.out)[1]["used"] == {"cpu": 1.5, "memory": 512 * 2**20}


def test_a_cluster_that_does_not_measure(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def unmeasured(self: InMemoryCluster, kind: ResourceKind, **options: Any) -> ResourceList:
        if kind is POD_METRICS:
            raise error_from_response(404, b"404 page not found", where="")
        return ResourceList((), "1")

    monkeypatch.setattr(InMemoryCluster, "list", unmeasured)
    assert cli.edl("top", "mnist") == 2
    assert not missing_keys(cli.err, "metrics API", "metrics-server")


def test_an_unknown_job(cli: CliHarness) -> None:
    assert cli.edl("top", "other") == 2
    assert "mnist." in cli.err
