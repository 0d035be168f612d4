"""Real models under faults: what they learn is what undisturbed runs learn."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from statistics import fmean
from typing import Any

import pytest
from safetensors import safe_open
from support.job_folder import MODEL_ZOO, JobFolder
from support.job_process import JobProcess, Line, edl
from support.noise import RunNoise
from support.run_recount import recount

from edl.simulation.ledger_recount import find_ledger_problems

pytestmark = pytest.mark.faults

BASELINES = 5
CAP = 0.06
"""Of accuracy. A run without training is 0.8 away; one test shows that a short one is farther away than this, too."""


@dataclass(frozen=True)
class DigitsJob:
    """The MLP on handwritten digits, and where undisturbed runs of it end."""

    folder: Path
    noise: RunNoise | None = None

    def job(self, name: str, seed: int, *, overlap: bool = False, **train: Any) -> JobFolder:
        return JobFolder.make(
            self.folder,
            name,
            "mnist.mlp.custom_model",
            zoo=MODEL_ZOO,
            params={"hidden": 32},
            data={"training": [str(self.folder / "train")], "validation": [str(self.folder / "test")]},
            train={"epochs": 2, "minibatch_size": 32, "minibatches_per_task": 16, "seed": seed, **train},
            checkpoint={"every_steps": 100, "keep": 2},
            workers={"max": 2},
            strategy={"overlap": overlap},
        )

    def start(self, name: str, seed: int, *, overlap: bool = False, **train: Any) -> JobProcess:
        return self.job(name, seed, overlap=overlap, **train).run()


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> DigitsJob:
    folder = tmp_path_factory.mktemp("digits")
    arguments = ["--source", "digits", "--records", "12000", "--format", "recordio"]
    data_command = edl("data", "mnist", str(folder), *arguments, "--force", cwd=folder)
    assert data_command.returncode == 0, data_command.stderr
    plain = DigitsJob(folder)
    ends = []
    for seed in range(BASELINES):
        with plain.start(f"baseline-{seed}", seed) as run:
            ends.append(accuracy(run.summary()))
    job = DigitsJob(folder, RunNoise(ends, CAP))
    print(f"accuracy without faults: {job.noise}")
    return job


def accuracy(summary: Line) -> float:
    return float(summary["metrics"]["accuracy"])


def whole_summary(run: JobProcess, epochs: int) -> Line:
    """The job is done and an independent count of its journal finds every record once an epoch."""
    summary = run.summary()
    assert summary["records_lost"] == 0
    assert find_ledger_problems(recount(run.run_dir), epochs) == []
    return summary


@pytest.mark.repetition
@pytest.mark.timeout(420)
def test_the_bound_tells_training_from_little_training(digits: DigitsJob) -> None:
    assert digits.noise is not None
    with digits.start("short", 0, max_steps=20) as run:
        short = accuracy(run.summary())
    assert fmean(digits.noise.values) - short > CAP


@pytest.mark.repetition
@pytest.mark.timeout(420)
@pytest.mark.parametrize(("role", "step"), [("worker", 200), ("ps", 350), ("master", 500)])
def test_accuracy_after_a_kill(digits: DigitsJob, role: str, step: int) -> None:
    assert digits.noise is not None
    with digits.start(f"{role}-killed", BASELINES) as run:
        run.wait_step(step)
        run.send(role, min(run.training() if role == "worker" else run.pids(role)), SIGKILL)
        summary = whole_summary(run, epochs=2)
    assert digits.noise.allows(accuracy(summary)), f"{accuracy(summary)} is not within {digits.noise}"


@pytest.mark.repetition
@pytest.mark.timeout(420)
def test_accuracy_with_overlap_and_a_killed_master(digits: DigitsJob) -> None:
    """These digits feel it when gradients lack one push more than in turn: at three they end at 0.7."""
    assert digits.noise is not None
    with digits.start("overlapped", BASELINES, overlap=True) as run:
        run.wait_step(500)
        run.send("master", min(run.pids("master")), SIGKILL)
        summary = whole_summary(run, epochs=2)
    assert digits.noise.allows(accuracy(summary)), f"{accuracy(summary)} is not within {digits.noise}"


@pytest.mark.repetition
def test_the_recommender_loses_a_worker(tmp_path: Path) -> None:
    """Rows of the large table are served; a worker is killed amid training."""
    _synthesize(tmp_path / "ratings", 24000)
    job = JobFolder.make(
        tmp_path,
        "recommender",
        "recommender.ratings.custom_model",
        zoo=MODEL_ZOO,
        data={"training": [str(tmp_path / "ratings/train")], "validation": [str(tmp_path / "ratings/test")]},
        train={"epochs": 2, "minibatch_size": 32, "minibatches_per_task": 16},
        checkpoint={"every_steps": 200, "keep": 2},
        ps={"count": 2},
        workers={"max": 2},
    )
    with job.run() as run:
        run.wait_step(300)
        run.send("worker", min(run.training()), SIGKILL)
        summary = whole_summary(run, epochs=2)
        assert served(run.run_dir) == {"users"}
    assert summary["workers_lost"] == 1
    assert summary["records_repeated"] <= 32
    assert summary["records_rolled_back"] == summary["updates_rolled_back"] == 0
    assert summary["metrics"]["auc"] > 0.6


def served(run_dir: Path) -> set[str]:
    """Tables of which the newest checkpoint holds rows, on both PS."""
    folder = max(path.parent for path in run_dir.glob("checkpoints/*/manifest.json"))
    tables = []
    for file in folder.glob("ps-*.safetensors"):
        with safe_open(file, framework="np") as arrays:
            tables.append({name.split("/")[1] for name in arrays.keys() if name.startswith("rows/")})  # noqa: SIM118
    assert len(tables) == 2
    return tables[0] & tables[1]


def _synthesize(out: Path, count: int) -> None:
    script = importlib.util.spec_from_file_location("synthesize", MODEL_ZOO / "recommender/synthesize.py")
    assert script is not None
    assert script.loader is not None
    module = importlib.util.module_from_spec(script)
    script.loader.exec_module(module)
    module.main(out, count)
