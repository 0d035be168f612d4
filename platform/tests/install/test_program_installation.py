"""``edl-platform[program]``: what a program of the user's needs of EDL, with NumPy 1 and 2, without TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.doc_commands import ROOT
from support.text_keys import missing_keys

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]

SYSTEM_PYTHON = "/usr/bin/python3"
PROGRAM = """
import sys
import numpy
from edl.sharding import Client

count = 0
with Client.from_env() as client:
    for batch in client.batches():
        count += len(batch)
heavy = {"tensorflow", "keras", "pyarrow", "google_crc32c", "kubernetes", "docker", "typer", "rich", "torch"}
with open("said", "w") as said:
    print(count, numpy.__version__.split(".")[0], *sorted(heavy & sys.modules.keys()), file=said)
"""
JOB = """
apiVersion: edl.dev/v1
name: program
command: [python, program.py]
model: {zoo: .}
data: {training: DATA}
train: {epochs: 2, minibatch_size: 4}
workers: {max: 1}
"""


def has_numpy_of_debian() -> bool:
    code = "import numpy, sys; sys.exit(not numpy.__version__.startswith('1.'))"
    return subprocess.run([SYSTEM_PYTHON, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel without native code, which programs do without."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    subprocess.run(command, env={**os.environ, "EDL_NATIVE": "0"}, check=True, timeout=300)
    (wheel_file,) = folder.glob("*.whl")
    return wheel_file


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("1", marks=pytest.mark.skipif(not has_numpy_of_debian(), reason="no NumPy 1 of the system")),
        "2",
    ],
)
def environment(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """An environment with the wheel and its extra, over the system's packages or on its own; and NumPy's version."""
    folder = tmp_path_factory.mktemp("environment")
    python, options = (SYSTEM_PYTHON, ["--system-site-packages"]) if request.param == "1" else (sys.executable, [])
    subprocess.run([python, "-m", "venv", *options, folder], check=True)
    command = [folder / "bin/python", "-m", "pip", "install", "-q", "--no-compile", f"{wheel}[program]"]
    subprocess.run(command, check=True, timeout=500)
    return folder, request.param


def run(environment: Path, folder: Path, data: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(PROGRAM)
    (folder / "job.yaml").write_text(JOB.replace("DATA", data))
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KUBE", "EDL_"))}
    command = [environment / "bin/edl", "run", "job.yaml"]
    return subprocess.run(command, cwd=folder, env=outside, capture_output=True, text=True, timeout=120, check=False)


def test_a_program_trains_with_the_extra_alone_and_imports_nothing_heavy(
    environment: tuple[Path, str], tmp_path: Path
) -> None:
    folder, numpy_version = environment
    (tmp_path / "lines.txt").write_text("".join(f"{number}\n" for number in range(40)))
    ended = run(folder, tmp_path, "lines.txt")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (tmp_path / "said").read_text().split() == ["80", numpy_version]


@pytest.mark.parametrize(("file", "package"), [("a.parquet", "pyarrow"), ("a.tfrecord", "google-crc32c")])
def test_a_format_that_needs_a_further_package_says_which(
    environment: tuple[Path, str], tmp_path: Path, file: str, package: str
) -> None:
    folder, numpy_version = environment
    if numpy_version == "1":
        pytest.skip("the system's packages may have it")
    (tmp_path / file).touch()
    ended = run(folder, tmp_path, file)
    assert ended.returncode == 2
    assert not missing_keys(ended.stderr, package, "not installed", "pip install")
    assert "Traceback" not in ended.stderr
