"""Environments of programs that EDL does not own: another framework, and what ``edl.sharding`` needs, no TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLATFORM = Path(__file__).parents[2]
PACKAGES = ("google-crc32c", "grpcio", "isal", "cramjam", "jsonschema", "protobuf", "psutil", "rich", "ruamel.yaml")
PACKAGES += ("safetensors", "typer")
"""What jobs of programs need on this machine: all that EDL requires, but for the clients of Kubernetes and Docker."""

SYSTEM_PYTHON = "/usr/bin/python3"
FIND_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


def require_torch(python: str = SYSTEM_PYTHON) -> None:
    """End the test if that Python has no PyTorch: it is skipped, and with ``EDL_REQUIRE_TORCH=1`` fails."""
    if Path(python).exists() and subprocess.run([python, "-c", FIND_TORCH], check=False).returncode == 0:
        return
    reason = "the system's Python has no PyTorch: apt-get install python3-torch"
    if os.environ.get("EDL_REQUIRE_TORCH") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def make_environment(folder: Path, python: str, *packages: str, system_packages: bool = False) -> Path:
    """Make an environment with the package index of this machine; returns its Python, beside which ``edl`` is."""
    options = ["--system-site-packages"] if system_packages else []
    subprocess.run([python, "-m", "venv", "--without-pip", *options, folder], check=True)
    interpreter = folder / "bin" / "python"
    install_packages(interpreter, *PACKAGES, *packages)
    command = folder / "bin" / "edl"
    command.write_text(
        f"#!{interpreter}\nimport sys\nsys.path.insert(0, {str(PLATFORM)!r})\n"
        "from edl.cli.app import main\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    return interpreter


def install_packages(python: Path, *packages: str) -> None:
    """Install packages into the environment of that Python."""
    # pip is that of this process: Debian's Python has none without another package, and to install it takes seconds.
    # Python compiles what a program imports; compiling all of JAX takes minutes on a busy machine.
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile", *packages]
    subprocess.run(install, check=True, timeout=800)


def use_environment(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jobs of this test run with that Python, if they are ``started``: forked ones have that of the tests."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PLATFORM), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr("sys.executable", str(python))
