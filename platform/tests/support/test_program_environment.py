"""Tests of programs in PyTorch: where it is missing, they are skipped, or fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.program_environment import require_torch
from support.text_keys import missing_keys


@pytest.fixture
def python_without_torch(tmp_path: Path) -> str:
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_without_pytorch_a_test_of_it_is_skipped(python_without_torch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDL_REQUIRE_TORCH", raising=False)
    for python in (python_without_torch, "/nowhere/python3"):
        with pytest.raises(pytest.skip.Exception) as skipped:
            require_torch(python)
        assert not missing_keys(str(skipped.value), "PyTorch", "apt-get install python3-torch")


def test_without_pytorch_a_test_of_it_fails_where_it_is_required(
    python_without_torch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDL_REQUIRE_TORCH", "1")
    with pytest.raises(pytest.fail.Exception) as failed:
        require_torch(python_without_torch)
    assert not missing_keys(str(failed.value), "PyTorch", "apt-get install python3-torch")
