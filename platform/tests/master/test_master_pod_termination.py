"""The end of a job: workers exit by themselves or are deleted, and a master that has to go does not wait for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from master.master_stubs import ShellHarness

from edl.api.cluster_port import PodPhase, PodStatus, Role
from edl.core.events import CoreCommand, DeletePod, PodChanged
from edl.master import pod_controller
from edl.master.pod_controller import GRACE_SECONDS, terminate_pods

LEAVE_SECONDS, GONE_SECONDS = 600.0, 10.0


@dataclass
class EndingJob:
    """A worker and a PS of a job that is over, and a clock that goes on where the master waits.

    Attributes:
        worker_exits: seconds after which the worker exits by itself.
        pods_obey: whether deleted pods end.
    """

    worker_exits: float = float("inf")
    pods_obey: bool = True
    now: float = 0.0
    deleted: list[tuple[str, float, float | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._harness = ShellHarness()
        self._harness.populate()

    def terminate(self, monkeypatch: pytest.MonkeyPatch, is_stopping: Callable[[], bool]) -> None:
        shell = self._harness.shell
        monkeypatch.setattr(pod_controller, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(shell, "wait_for_change", self._pass_time)
        terminate_pods(shell, self, GONE_SECONDS, LEAVE_SECONDS, is_stopping)

    def execute(self, command: CoreCommand) -> None:
        assert isinstance(command, DeletePod)
        self.deleted.append((command.uid, self.now, command.grace))
        if self.pods_obey:
            self._end_pod(command.uid)

    def _pass_time(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.worker_exits:
            self._end_pod("worker-0")

    def _end_pod(self, uid: str) -> None:
        role = Role.PS if uid.startswith("ps") else Role.WORKER
        self._harness.shell.handle(PodChanged(PodStatus(uid, role, 0, PodPhase.SUCCEEDED)))


def test_workers_that_exit_in_time_are_not_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    job = EndingJob(worker_exits=1.0)
    job.terminate(monkeypatch, lambda: False)
    assert [uid for uid, _, _ in job.deleted] == ["ps-0"]
    assert job.now == pytest.approx(1.0)


def test_workers_that_stay_are_deleted_when_their_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    job = EndingJob()
    job.terminate(monkeypatch, lambda: False)
    assert job.deleted == [(uid, pytest.approx(LEAVE_SECONDS, abs=0.1), GRACE_SECONDS) for uid in ("worker-0", "ps-0")]


def test_a_master_that_has_to_go_deletes_workers_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes kills it at the end of its grace period, and a program may write its model for ten minutes."""
    job = EndingJob()
    job.terminate(monkeypatch, lambda: True)
    assert job.deleted == [("worker-0", 0.0, GRACE_SECONDS), ("ps-0", 0.0, GRACE_SECONDS)]
    assert job.now == 0.0


def test_a_master_that_has_to_go_meanwhile_stops_waiting_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    job = EndingJob()
    job.terminate(monkeypatch, lambda: job.now >= 3.0)
    assert {uid: at for uid, at, _ in job.deleted} == pytest.approx({"worker-0": 3.0, "ps-0": 3.0}, abs=0.1)


def test_pods_that_do_not_end_are_waited_for_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    job = EndingJob(pods_obey=False)
    job.terminate(monkeypatch, lambda: True)
    assert job.now == pytest.approx(GONE_SECONDS, abs=0.1)
