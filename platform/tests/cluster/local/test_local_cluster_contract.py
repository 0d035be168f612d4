"""The local cluster, with real processes and real signals, keeps the contract."""

from __future__ import annotations

import signal

import pytest
from cluster.local.supervisor_harness import SupervisorHarness
from support.cluster_contract import ClusterContract

from edl.api.cluster_port import JobCluster


class LocalClusterHarness:
    def __init__(self, harness: SupervisorHarness) -> None:
        self._harness = harness
        self._master = harness.open()
        self.cluster: JobCluster = self.connect()

    def connect(self) -> JobCluster:
        return self._harness.connect(self._master)

    def await_running(self, uid: str) -> None:
        self._harness.role(uid)

    def exit(self, uid: str, code: int) -> None:
        self._harness.role(uid).exit(code)

    def kill(self, uid: str) -> None:
        self._harness.role(uid).signal(signal.SIGKILL)

    def terminate(self, uid: str) -> None:
        self._harness.role(uid).signal(signal.SIGTERM)

    def exit_on_sigterm(self, uid: str, code: int) -> None:
        self._harness.role(uid).obey(f"on-sigterm {code}")

    def ignore_sigterm(self, uid: str) -> None:
        self._harness.role(uid).obey("ignore-sigterm")

    def advance_time(self, seconds: float) -> None:
        """Real time passes by itself."""


class TestLocalCluster(ClusterContract):
    @pytest.fixture
    def harness(self, harness: SupervisorHarness) -> LocalClusterHarness:
        return LocalClusterHarness(harness)
