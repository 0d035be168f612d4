"""A checkpoint is not begun on a disk that has no room for it."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from edl.api.errors import StorageError
from edl.storage.safetensors_writer import ensure_free_space


def disk(monkeypatch: pytest.MonkeyPatch, *, blocks: int, free: int) -> None:
    file_system = SimpleNamespace(f_blocks=blocks, f_bavail=free, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda folder: file_system)


def test_what_fits_beside_the_reserve_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk(monkeypatch, blocks=1000, free=100)
    ensure_free_space(tmp_path, 90 * 4096)


def test_what_does_not_is_refused_with_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk(monkeypatch, blocks=1000, free=100)
    with pytest.raises(StorageError, match=r"389,120 bytes.*409,600"):
        ensure_free_space(tmp_path, 95 * 4096)


def test_a_file_system_of_unknown_size_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk(monkeypatch, blocks=0, free=0)
    ensure_free_space(tmp_path, 1 << 40)
