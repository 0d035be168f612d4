"""The local cluster, with real processes and real signals, keeps the contract."""

from __future__ import annotations

import signal

import pytest
from cluster.local.supervisor_harness import SupervisorHarness
from support.cluster_contract import ClusterContract

from edl.api.cluster_port import JobCluster


class LocalStand:
    def __init__(self, stage: SupervisorHarness) -> None:
        self._stage = stage
        self._master = stage.open()
        self.cluster: JobCluster = self.connect()

    def connect(self) -> JobCluster:
        return self._stage.connect(self._master)

    def await_running(self, uid: str) -> None:
        self._stage.actor(uid)

    def exit(self, uid: str, code: int) -> None:
        self._stage.actor(uid).exit(code)

    def kill(self, uid: str) -> None:
        self._stage.actor(uid).signal(signal.SIGKILL)

    def terminate(self, uid: str) -> None:
        self._stage.actor(uid).signal(signal.SIGTERM)

    def polite(self, uid: str, code: int) -> None:
        self._stage.actor(uid).obey(f"polite {code}")

    def stubborn(self, uid: str) -> None:
        self._stage.actor(uid).obey("stubborn")

    def let_pass(self, seconds: float) -> None:
        """Real time passes by itself."""


class TestLocalCluster(ClusterContract):
    @pytest.fixture
    def stand(self, stage: SupervisorHarness) -> LocalStand:
        return LocalStand(stage)
