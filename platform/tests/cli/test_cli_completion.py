"""Completion at a shell: of commands, of their options although they are imported late, of job names."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.in_memory_cluster import InMemoryCluster
from support.job_objects import put_job
from support.repetition import repetition

from edl.cli import options as names_completion
from edl.cli.options import complete_jobs


class CompletionContext:
    """What typer hands to a completion."""

    def __init__(self, **params: str | None) -> None:
        self.params = params


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> InMemoryCluster:
    cluster = InMemoryCluster()
    for name in ("mnist", "mnist-2", "iris"):
        put_job(cluster, name)
    monkeypatch.setattr("edl.cluster.kubernetes.kubeconfig.load_connection", lambda context, namespace: None)
    monkeypatch.setattr("edl.cluster.kubernetes.api_client.KubeClient", lambda connection: cluster)
    return cluster


@pytest.mark.parametrize(
    ("typed", "names"), [("mn", ["mnist", "mnist-2"]), ("x", []), ("", ["iris", "mnist", "mnist-2"])]
)
def test_job_names(cluster: InMemoryCluster, typed: str, names: list[str]) -> None:
    assert complete_jobs(CompletionContext(), typed) == names


def test_errors_are_nobodys_business_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nosuch")
    assert complete_jobs(CompletionContext(namespace="team"), "") == []
    assert capsys.readouterr() == ("", "")


def test_a_cluster_that_is_away_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(names_completion, "COMPLETION_SECONDS", 0.0)
    monkeypatch.setattr(names_completion, "_collect_job_names", lambda *_: answered.wait())
    assert complete_jobs(CompletionContext(), "") == []  # who waited for the answer would wait for good
    answered.set()


def completed(line: str, kubeconfig: str = "/nosuch") -> list[str]:
    """What bash would offer for the last word of a command line."""
    words = line.split(" ")
    shell = {"_EDL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    code = "from edl.cli.app import main; main()"
    environment = {**os.environ, **shell, "KUBECONFIG": kubeconfig}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("edl sta", ["status"]),
        ("edl status --wa", ["--watch"]),
        repetition("edl data c", ["cp", "convert", "clicks"]),
        repetition("edl data cp --minu", ["--minutes"]),
        ("edl logs mnist --role w", ["worker"]),
        ("edl status ", []),
    ],
)
def test_commands_that_are_imported_late_complete_too(line: str, offered: list[str]) -> None:
    assert completed(line) == offered


def test_contexts_of_the_kubeconfig_also_where_none_is_current(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    entries = ", ".join(f"{{name: {name}, context: {{cluster: c, user: u}}}}" for name in ("lab", "lab-2", "prod"))
    kubeconfig.write_text(f"clusters: []\nusers: []\ncontexts: [{entries}]\n")
    assert completed("edl list --context la", str(kubeconfig)) == ["lab", "lab-2"]
