"""``edl data`` in an environment without the training packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("module", "package"), [("google", "protobuf"), ("numpy", "numpy")])
def test_what_is_missing_is_named_as_pip_knows_it(tmp_path: Path, module: str, package: str) -> None:
    code = f"import sys; sys.modules['{module}'] = None; from edl.cli import app; app.main(sys.argv[1:])"
    arguments = ["data", "mnist", str(tmp_path / "out"), "--source", "digits", "--format", "recordio"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"the package {package}" in " ".join(done.stderr.split())
    assert "[train]" in done.stderr
