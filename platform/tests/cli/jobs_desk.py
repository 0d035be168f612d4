"""A user at a terminal of 80 columns, at a fixed time, with the job ``mnist`` on a cluster in memory."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cli.cli_harness import Desk
from support.in_memory_cluster import NOW, InMemoryCluster
from support.job_objects import put_job


def jobs_desk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, with_job: bool = True) -> Desk:
    cluster = InMemoryCluster()
    if with_job:
        put_job(cluster)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("time.time", lambda: NOW)
    monkeypatch.setattr("time.localtime", time.gmtime)
    monkeypatch.setattr("edl.cluster.kubernetes.kubeconfig.make_client", lambda context, namespace, **_: cluster)
    return Desk(Path(), cluster, capsys)
