"""Environments of programs that EDL does not own: another framework, and what ``edl.sharding`` needs, no TensorFlow."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

PLATFORM = Path(__file__).parents[2]
PACKAGES = ("docker", "google-crc32c", "grpcio", "isal", "cramjam", "jsonschema", "kubernetes", "protobuf", "psutil")
PACKAGES += ("rich", "ruamel.yaml", "safetensors", "typer")

SYSTEM_PYTHON = "/usr/bin/python3"
FIND_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
HAS_TORCH = subprocess.run([SYSTEM_PYTHON, "-c", FIND_TORCH], capture_output=True, check=False).returncode == 0
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="the system's Python has no PyTorch (Debian: python3-torch)")


def make_environment(folder: Path, python: str, *packages: str, system_packages: bool = False) -> Path:
    """Make an environment with the package index of this machine; returns its Python, beside which ``edl`` is."""
    options = ["--system-site-packages"] if system_packages else []
    subprocess.run([python, "-m", "venv", *options, folder], check=True)
    found = folder / "bin" / "python"
    # Python compiles what a program imports; compiling all of JAX takes minutes on a busy machine.
    install = [found, "-m", "pip", "install", "-q", "--no-compile", *PACKAGES, *packages]
    subprocess.run(install, check=True, timeout=800)
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
