from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer
from cli.cli_harness import LocalRunHarness, local_run_in


@pytest.fixture(scope="package", autouse=True)
def parsers() -> Iterator[None]:
    """A process makes the parsers of its command once. For hundreds of commands in one process they are kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def local_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalRunHarness:
    return local_run_in(tmp_path, monkeypatch)
