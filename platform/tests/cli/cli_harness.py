"""Commands of ``edl`` in this process: on a cluster in memory, and with a scripted supervisor for runs of this machine.

`CliHarness` reads what a command printed itself; tests with a `LocalRunHarness` read it with ``capsys``, because the
processes of the run print too. Pods of submitters, which run another program, have `cli.submitter_harness`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.in_memory_cluster import NOW, InMemoryCluster
from support.job_objects import put_job

from edl.cli import app
from edl.ops import local_run_start

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


def exit_code_of(program: Callable[[], object]) -> int:
    """Exit code of a program that ends by itself."""
    with pytest.raises(SystemExit) as ended:
        program()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def run_edl(*args: str) -> int:
    """Exit code of a command line of ``edl``."""
    return exit_code_of(lambda: app.main(args))


# ------------------------------------------------------------------ commands on a cluster


@dataclass
class CliHarness:
    """A user at a terminal of 80 columns."""

    folder: Path
    cluster: InMemoryCluster
    capsys: pytest.CaptureFixture[str]
    out: str = ""
    err: str = ""

    def edl(self, *args: str) -> int:
        """Exit code of a command line; what it printed is in ``out`` and ``err``."""
        code = run_edl(*args)
        self.out, self.err = self.capsys.readouterr()
        return code

    def submit(self, *args: str) -> int:
        return self.edl("submit", "job.yaml", *args)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def cli_in_job_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CliHarness:
    """In a folder with ``job.yaml``; its job was not submitted yet."""
    cluster = InMemoryCluster()
    cluster.accounts()
    cluster.claim("files")
    cluster.published = {"status.json": '{"phase": "Starting"}'}
    for name in ("n1", "n2"):
        cluster.node(name)
    (folder / "job.yaml").write_text(JOB)
    monkeypatch.chdir(folder)
    return _connected(CliHarness(folder, cluster, capsys), monkeypatch)


def cli_with_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, with_job: bool = True
) -> CliHarness:
    """At a fixed time, with the job ``mnist`` on the cluster."""
    cluster = InMemoryCluster()
    if with_job:
        put_job(cluster)
    monkeypatch.setattr("time.time", lambda: NOW)
    monkeypatch.setattr("time.localtime", time.gmtime)
    return _connected(CliHarness(Path(), cluster, capsys), monkeypatch)


def _connected(cli: CliHarness, monkeypatch: pytest.MonkeyPatch) -> CliHarness:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("edl.cluster.kubernetes.kubeconfig.make_client", lambda context, namespace, **_: cli.cluster)
    return cli


# ------------------------------------------------------------------ runs of this machine


SUPERVISOR = Path(__file__).with_name("scripted_supervisor.py")
LOCAL_JOB = """\
name: digits
model: {definition: small.model}
data: {training: train.csv, validation: test.csv, prediction: test.csv}
train: {epochs: 3, minibatch_size: 4}
"""
MODULE = """\
def model(): ...
def loss(labels, predictions): ...
def optimizer(): ...
def eval_metrics_fn(): ...
def feed(dataset, mode, metadata): ...
"""
SUMMARY = {"records_total": 30, "records_done": 30, "seconds": 2.0, "samples_per_second": 15.0, "export": "/out/export"}
DONE = [
    ["event", {"event": "role_started", "role": "worker", "index": 0, "pid": 77}],
    ["status", {"job": "digits", "phase": "Training", "records_total": 30, "records_done": 12, "step": 3, "loss": 0.5}],
    ["event", {"event": "role_ended", "role": "worker", "index": 0, "pid": 77, "reason": "Deleted", "exit_code": 0}],
    ["event", {"event": "job_ended", "phase": "Done", "reason": "all records are done", "summary": SUMMARY}],
    ["status", {"job": "digits", "phase": "Done", "records_total": 30, "records_done": 30, "step": 9}],
]


@dataclass
class LocalRunHarness:
    """A folder with a job whose files are there, and what its master will do."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def script(self, *steps: list[Any]) -> None:
        """What the master of the next run does; it ends well after the last step."""
        self.monkeypatch.setenv("EDL_TEST_SCRIPT", json.dumps(steps))

    def edl(self, *args: str) -> int:
        """Exit code of a command line."""
        return run_edl(*args)

    def run_dir(self, run: str = "r1") -> Path:
        """Where a run keeps its files."""
        return self.folder / ".edl" / "local" / "digits" / run

    def status(self, run: str = "r1") -> dict[str, Any]:
        """What the run's status says."""
        value: dict[str, Any] = json.loads((self.run_dir(run) / "status.json").read_text())
        return value


def local_run_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalRunHarness:
    """In a folder with ``job.yaml``, whose job ends well."""
    (tmp_path / "model_zoo").mkdir()
    (tmp_path / "model_zoo" / "small.py").write_text(MODULE)
    (tmp_path / "job.yaml").write_text(LOCAL_JOB)
    (tmp_path / "train.csv").write_text("x,y\n" + "1,2\n" * 10)
    (tmp_path / "test.csv").write_text("x,y\n" + "1,2\n" * 5)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local_run_start, "SUPERVISOR_PROGRAM", (str(SUPERVISOR),))
    local_run = LocalRunHarness(tmp_path, monkeypatch)
    local_run.script(*DONE)
    return local_run


def command(*args: str) -> list[str]:
    """A command line of ``edl`` with the scripted supervisor, as a process of its own."""
    imports = "from edl.cli import app; from edl.ops import local_run_start as start"
    code = f"{imports}; start.SUPERVISOR_PROGRAM = ({str(SUPERVISOR)!r},); app.main()"
    return [sys.executable, "-c", code, *args]
