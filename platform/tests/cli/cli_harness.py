"""A user at a terminal of 80 columns with a job file and a cluster in memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.in_memory_cluster import InMemoryCluster

from edl.cli import app

JOB = """\
apiVersion: edl.dev/v1
name: mnist
image: registry.example/edl-mnist:1
model: {definition: mnist.model.custom_model}
data: {training: /data/mnist/train}
master: {resources: {cpu: 500m, memory: 512Mi}}
ps: {count: 2, resources: {cpu: 1, memory: 1Gi}}
workers: {min: 1, max: 4, resources: {cpu: 2, memory: 2Gi}}
volumes: [{claim: files, mount: /data}]
"""


@dataclass
class Desk:
    folder: Path
    cluster: InMemoryCluster
    capsys: pytest.CaptureFixture[str]
    out: str = ""
    err: str = ""

    def edl(self, *args: str) -> int:
        """Exit code of a command line; what it printed is in ``out`` and ``err``."""
        with pytest.raises(SystemExit) as ended:
            app.main(args)
        self.out, self.err = self.capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code

    def submit(self, *args: str) -> int:
        return self.edl("submit", "job.yaml", *args)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def desk_at(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    cluster = InMemoryCluster()
    cluster.accounts()
    cluster.claim("files")
    cluster.published = {"status.json": '{"phase": "Starting"}'}
    for name in ("n1", "n2"):
        cluster.node(name)
    (folder / "job.yaml").write_text(JOB)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("edl.cluster.kubernetes.kubeconfig.make_client", lambda context, namespace, **_: cluster)
    return Desk(folder, cluster, capsys)
