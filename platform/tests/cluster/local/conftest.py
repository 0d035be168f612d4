from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.local.supervisor_harness import SupervisorHarness


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SupervisorHarness]:
    stage = SupervisorHarness(tmp_path)
    monkeypatch.setenv("EDL_TEST_STAGE", stage.address)
    yield stage
    stage.close()
