from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.local.supervisor_harness import SupervisorHarness


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SupervisorHarness]:
    harness = SupervisorHarness(tmp_path)
    monkeypatch.setenv("EDL_TEST_HARNESS", harness.address)
    yield harness
    harness.close()
