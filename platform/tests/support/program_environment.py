"""Environments of programs that EDL does not own: another framework, and what ``edl.sharding`` needs, no TensorFlow."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

PLATFORM = Path(__file__).parents[2]
PACKAGES = ("docker", "google-crc32c", "grpcio", "isal", "cramjam", "jsonschema", "kubernetes", "protobuf", "psutil")
PACKAGES += ("rich", "ruamel.yaml", "safetensors", "typer")


def make_environment(folder: Path, python: str, *packages: str, system_packages: bool = False) -> Path:
    """Make an environment with the package index of this machine; returns its Python, beside which ``edl`` is."""
    options = ["--system-site-packages"] if system_packages else []
    subprocess.run([python, "-m", "venv", *options, folder], check=True)
    found = folder / "bin" / "python"
    subprocess.run([found, "-m", "pip", "install", "-q", *PACKAGES, *packages], check=True, timeout=500)
    command = folder / "bin" / "edl"
    command.write_text(
        f"#!{found}\nimport sys\nsys.path.insert(0, {str(PLATFORM)!r})\n"
        "from edl.cli.app import main\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    return found


def use_environment(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jobs of this test run with that Python."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PLATFORM), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr("sys.executable", str(python))
