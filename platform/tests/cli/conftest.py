from __future__ import annotations

from pathlib import Path

import pytest
from cli.cli_harness import LocalRunHarness, local_run_in


@pytest.fixture
def local_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalRunHarness:
    return local_run_in(tmp_path, monkeypatch)
