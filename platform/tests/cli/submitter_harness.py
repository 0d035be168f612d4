"""Submitter pods of a release at a cluster in memory: they can be killed, doubled and replaced at any request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cli.cli_harness import JOB, exit_code_of
from support.in_memory_cluster import InMemoryCluster, when
from support.sleep_clock import SleepClock

from edl.api.run_events import JobEnded, RoleStarted
from edl.api.status import JobFailure, Status, Summary
from edl.cli import submitter
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.resource_kinds import JOBS, Manifest
from edl.jobfile.published_status import PublishedStatus

RELEASE = "train"
T = 1_800_000_000.0
COMPLETE = {"type": "Complete", "status": "True"}
SUMMARY = Summary(records_total=100, records_done=100, seconds=8.0)


def ended_status(phase: str = "Done", reason: str = "all records are done", kind: str = "") -> dict[str, str]:
    """The pages of a master that has ended its job."""
    status = Status("mnist", "run", "/data/edl/team/mnist/run", phase, T + 9, records_total=100, records_done=100)
    events = [RoleStarted("worker", 0, None, time=T + 1), JobEnded(phase, reason, SUMMARY, time=T + 9)]
    return PublishedStatus(
        status, events, failure=JobFailure(kind, "why") if kind else None, summary=SUMMARY
    ).to_configmap_data()


class PodKilled(BaseException):
    """SIGKILL: nothing more happens in that pod."""


class SubmitterTime(SleepClock):
    """``scheduled`` calls are made on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduled: list[tuple[float, Callable[[], object]]] = []

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        while self.scheduled and self.scheduled[0][0] <= self.now:
            self.scheduled.pop(0)[1]()

    def at(self, seconds: float, do: Callable[[], object]) -> None:
        self.scheduled.append((seconds, do))
        self.scheduled.sort(key=lambda each: each[0])


@dataclass
class SubmitterHarness:
    cluster: InMemoryCluster
    source: Path
    capsys: pytest.CaptureFixture[str]
    time: SubmitterTime
    out: str = ""
    err: str = ""
    hooks: list[Callable[[str, str], Any]] = field(default_factory=list)
    """Asked before each request, with method and path; what one returns is called after the request."""

    def install(self, name: str = "a", revision: int = 1, *, after: float = 0.0, **meta: Any) -> Manifest:
        """A submitter Job, as Helm or the CronJob controller makes it."""
        content = {
            "name": f"{RELEASE}-submit-{name}",
            "uid": f"submitter-{name}",
            "labels": {names.ROLE_LABEL: "submitter", "app.kubernetes.io/instance": RELEASE},
            "annotations": {"edl.dev/revision": str(revision)},
            "creationTimestamp": when(self.cluster.now + after),
            **meta,
        }
        return self.cluster.put({"apiVersion": "batch/v1", "kind": "Job", "metadata": content, "spec": {}})

    def uninstall(self, name: str = "a") -> None:
        self.cluster.delete(JOBS, f"{RELEASE}-submit-{name}")

    def pod(self, name: str = "a", **more: str) -> int:
        """Exit code of a submitter's pod, from its start to its end."""
        variables = {
            "EDL_RELEASE": RELEASE,
            "EDL_SUBMITTER_JOB": f"{RELEASE}-submit-{name}",
            "EDL_SUBMITTER_UID": f"submitter-{name}",
        }
        code = exit_code_of(lambda: submitter.main([str(self.source)], variables | more))
        self.out, self.err = self.capsys.readouterr()
        return code

    def masters(self) -> list[Manifest]:
        return [
            job
            for job in self.cluster.objects_of_kind(JOBS)
            if job["metadata"]["labels"].get(names.ROLE_LABEL) == "master"
        ]

    def made(self) -> list[str]:
        """The Jobs that were really created, in order."""
        return [name for kind, name in self.cluster.created if kind == "Job"]

    @contextmanager
    def at_request(self, number: int, do: Callable[[], Any], *, carried_out: bool) -> Iterator[list[str]]:
        """Do something once, before or after the request of that number; yields the requests so far."""
        requests: list[str] = []

        def hook(method: str, path: str) -> Callable[[], Any] | None:
            requests.append(f"{method} {path}")
            if len(requests) != number:
                return None
            if carried_out:
                return do
            do()
            return None

        self.hooks.append(hook)
        try:
            yield requests
        finally:
            self.hooks.remove(hook)


def make_submitter_harness(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> SubmitterHarness:
    cluster, time = InMemoryCluster(), SubmitterTime()
    cluster.accounts()
    cluster.claim("files")
    cluster.published, cluster.conditions = ended_status(), [COMPLETE]
    source = folder / "job.yaml"
    source.write_text(JOB)
    harness = SubmitterHarness(cluster, source, capsys, time)
    answered = cluster.request

    def ask(method: str, path: str, **how: Any) -> Any:
        if how.get("query") and "dryRun" in how["query"]:
            return answered(method, path, **how)  # from several threads, and changes nothing
        after = [call for hook in [*harness.hooks] if (call := hook(method, path)) is not None]
        answer = answered(method, path, **how)
        for call in after:
            call()
        return answer

    monkeypatch.setattr(cluster, "request", ask)
    monkeypatch.setattr("edl.cluster.kubernetes.kubeconfig.make_client", lambda context, namespace, **_: cluster)
    monkeypatch.setattr(submitter, "SubmitterClock", lambda: time)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setenv("COLUMNS", "80")
    return harness
