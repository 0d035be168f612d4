"""The PyTorch programs of the model zoo train, also when a worker is killed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from signal import SIGKILL

import pytest
from support.job_process import JobProcess
from support.program_environment import SYSTEM_PYTHON, make_environment, needs_torch, use_environment

pytestmark = [pytest.mark.jobs, pytest.mark.thorough, pytest.mark.timeout(600)]

ZOO = Path(__file__).parents[3] / "model_zoo"
SHAPES = [sys.executable, "-m", "model_zoo.programs.make_shapes", "demo-data/shapes", "--count", "600"]
DIGITS = [str(Path(sys.executable).with_name("edl")), "data", "mnist", "demo-data/mnist", "--source", "digits"]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the system's PyTorch, and Pillow."""
    return make_environment(tmp_path_factory.mktemp("environment"), SYSTEM_PYTHON, "pillow", system_packages=True)


@needs_torch
@pytest.mark.parametrize(
    ("name", "make_data", "records", "largest_loss"),
    [("pytorch_mnist", DIGITS, 1438, 0.3), ("pytorch_shapes", SHAPES, 600, 0.6)],
)
def test_images_are_learnt_by_two_workers_one_of_which_is_killed(
    tmp_path: Path,
    python: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    make_data: list[str],
    records: int,
    largest_loss: float,
) -> None:
    shutil.copytree(ZOO / "programs", tmp_path / "model_zoo" / "programs")
    subprocess.run(make_data, cwd=tmp_path, check=True, timeout=100, capture_output=True)
    program = tmp_path / "model_zoo" / "programs" / f"{name}.py"
    paced = program.read_text().replace(
        "        with step:\n", "        with step:\n            __import__('time').sleep(0.02)\n"
    )
    program.write_text(paced)
    use_environment(python, monkeypatch)
    job = program.with_suffix(".yaml")
    with JobProcess(job, "--set", "train.epochs=20", cwd=tmp_path) as run:
        run.wait_event("world_changed", workers=2)
        run.wait_step(10)
        run.send("worker", 0, SIGKILL)
        run.wait_event("world_changed", workers=2, reason="worker-2 joins")
        summary = run.summary(400)
        loss = run.status()["loss"]
        assert run.wait() == 0
    assert summary["records_done"] == summary["records_total"] == 20 * records
    assert summary["records_lost"] == 0
    assert loss < largest_loss
    assert (program.parent / f"{name}.pt").stat().st_size > 10_000
