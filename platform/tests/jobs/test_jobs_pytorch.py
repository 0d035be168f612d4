"""Programs in PyTorch under a job, with a PyTorch of another Python and with NumPy 1.24: Debian's packages.

The environment is made over the system's Python, with what ``edl.sharding`` needs and nothing of TensorFlow. Each third
of `make third` has a job that loses a worker.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from signal import SIGKILL
from typing import Any

import numpy as np
import pytest
from support.job_process import JobProcess
from support.program_environment import SYSTEM_PYTHON, make_environment, require_torch, use_environment

pytestmark = [pytest.mark.jobs, pytest.mark.repetition, pytest.mark.timeout(600)]

ZOO = Path(__file__).parents[3] / "model_zoo"
SHAPES = [sys.executable, "-m", "model_zoo.programs.make_shapes", "demo-data/shapes", "--count", "600"]
DIGITS = [str(Path(sys.executable).with_name("edl")), "data", "mnist", "demo-data/mnist", "--source", "digits"]

PROGRAM = """
import os, time
import torch
from torch.utils.data import DataLoader
from edl.sharding import Client
from edl.sharding.torch_data import ShardedDataset

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
with Client.from_env() as client, open(f"done-{client.uid}", "a", buffering=1) as done:
    for batch in DataLoader(ShardedDataset(client), batch_size=None):
        loss = torch.nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        client.report_loss(loss.item())
        if not os.path.exists("hurry"):
            time.sleep(0.05)
        done.write("".join(f"{int(number)}\\n" for number in batch["number"]))
"""
JOB = """
apiVersion: edl.dev/v1
name: torch
command: [python, train.py]
model: {zoo: .}
data: {training: rows.npz}
train: {epochs: 6, minibatch_size: 32, minibatches_per_task: 4}
workers: {max: 2}
"""
RECORDS, EPOCHS, MINIBATCH = 2000, 6, 32
LEASE = 4 * MINIBATCH


def in_third(number: int, *values: Any) -> Any:
    """A case that `make third` has in this third."""
    return pytest.param(*values, marks=pytest.mark.in_third(number))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the system's PyTorch, and Pillow."""
    require_torch()
    return make_environment(tmp_path_factory.mktemp("environment"), SYSTEM_PYTHON, "pillow", system_packages=True)


@pytest.fixture
def job(tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of numbered rows, whose program is still to be written; the current environment is that of PyTorch."""
    rows = np.random.default_rng(1).normal(size=(RECORDS, 8)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=rows, y=rows @ np.arange(8, dtype=np.float32) / 8, number=np.arange(RECORDS))
    (tmp_path / "job.yaml").write_text(JOB)
    use_environment(python, monkeypatch)
    return tmp_path


def check_done(job: Path, epochs: int) -> None:
    """Each record was trained in each epoch; again only what the killed worker had done last, and not reported.

    How much that is depends on the machine: progress is reported every tenth of a second, or later on a busy one.
    """
    done = {file.name: [int(line) for line in file.read_text().split()] for file in job.glob("done-*")}
    counts = Counter(number for numbers in done.values() for number in numbers)
    assert counts.keys() == set(range(RECORDS))
    assert min(counts.values()) == epochs
    repeated = counts - Counter(dict.fromkeys(range(RECORDS), epochs))
    killed = [number for name, numbers in done.items() if name.startswith("done-worker-0-") for number in numbers]
    # The progress of a range may be reported before the end of the one before it.
    assert repeated <= Counter(killed[-(repeated.total() + LEASE) :])


@pytest.mark.in_third(0)
def test_a_loop_in_pytorch_does_every_record_once_and_learns(job: Path) -> None:
    (job / "train.py").write_text(PROGRAM)
    with JobProcess(job / "job.yaml", cwd=job, started=True) as run:
        run.wait_step(20)
        run.send("worker", 0, SIGKILL)
        run.wait_event("role_started", role="worker", index=2)
        (job / "hurry").touch()
        summary = run.summary(200)
        loss = run.status()["loss"]
    assert summary["records_done"] == summary["records_total"] == EPOCHS * RECORDS
    assert summary["records_lost"] == 0
    check_done(job, EPOCHS)
    assert loss < 0.05


STEPS = """
import os, time
import torch
from edl.sharding import Client
from edl.sharding.torch_data import collate_records
from edl.sharding.torch_steps import TorchState

torch.set_num_threads(1)
model = MODEL
optimizer = OPTIMIZER
state = TorchState(model, optimizer)
with Client.from_env() as client, open(f"steps-{client.index}", "a", buffering=1) as done:
    for step in client.steps(state.gradients_like, state.state_dict, state.load_state_dict):
        with step:
            loss = None
            optimizer.zero_grad()
            if step.batch is not None:
                batch = collate_records(step.batch.records)
                x, y = batch["x"].to(torch.get_default_dtype()), batch["y"].to(torch.get_default_dtype())
                loss = torch.nn.functional.mse_loss(model(x)[:, 0], y)
                loss.backward()
            state.combine_gradients(step, loss)
            optimizer.step()
            if not os.path.exists("hurry"):
                time.sleep(0.02)
            if step.batch is not None:
                done.write(f"{step.number} {' '.join(str(int(number)) for number in batch['number'])}\\n")
    if client.world is not None:
        torch.save(model.state_dict(), f"model-{client.world.rank}.pt")
"""
ALL_REDUCE = JOB + "strategy: {name: AllReduce}\n"


def steps_program(model: str, optimizer: str, before: str = "") -> str:
    return STEPS.replace("model = MODEL", f"{before}\nmodel = {model}").replace("OPTIMIZER", optimizer)


def saved_models(job: Path) -> list[dict[str, list[float]]]:
    """The values of each saved model, read by the system's PyTorch."""
    code = (
        "import json, sys, torch\nfor name in sys.argv[1:]:\n"
        "    print(json.dumps({key: each.flatten().tolist() for key, each in torch.load(name).items()}))"
    )
    files = sorted(str(file) for file in job.glob("model-*.pt"))
    out = subprocess.run([SYSTEM_PYTHON, "-c", code, *files], check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.in_third(1)
def test_two_workers_of_pytorch_compute_what_one_process_computes_on_the_union_of_their_minibatches(job: Path) -> None:
    program = steps_program(
        "torch.nn.Linear(8, 1, bias=False)",
        "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)",
        "torch.set_default_dtype(torch.float64)",
    )
    zeros = program.replace("optimizer = ", "torch.nn.init.zeros_(model.weight)\noptimizer = ", 1)
    (job / "train.py").write_text(zeros)
    (job / "job.yaml").write_text(ALL_REDUCE.replace("epochs: 6", "epochs: 2"))
    with JobProcess(job / "job.yaml", cwd=job, started=True) as run:
        run.wait_event("world_changed", workers=2)
        (job / "hurry").touch()
        run.summary(200)
        assert run.wait() == 0
    rows = np.load(job / "rows.npz")
    x, y = rows["x"].astype(np.float64), rows["y"].astype(np.float64)
    by_step: dict[int, list[int]] = {}
    for file in job.glob("steps-*"):
        for line in file.read_text().splitlines():
            step, *numbers = map(int, line.split())
            by_step.setdefault(step, []).extend(numbers)
    assert Counter(number for numbers in by_step.values() for number in numbers) == dict.fromkeys(range(RECORDS), 2)
    assert len(by_step) < 2 * RECORDS / MINIBATCH, "some steps have records of both"
    weights, velocity = np.zeros(8), np.zeros(8)
    for step in sorted(by_step):
        of_step = by_step[step]
        gradient = 2 * x[of_step].T @ (x[of_step] @ weights - y[of_step]) / len(of_step)
        velocity = 0.9 * velocity + gradient
        weights = weights - 0.1 * velocity
    models = saved_models(job)
    assert len(models) == 2
    for model in models:
        np.testing.assert_allclose(model["weight"], weights, rtol=1e-9, atol=1e-12)


def summary_steps(run: JobProcess) -> int:
    return int(run.status()["step"])


@pytest.mark.in_third(1)
def test_pytorch_with_adam_goes_on_without_a_killed_worker_and_its_successor_gets_the_state(job: Path) -> None:
    layers = ", ".join(f"torch.nn.{each}" for each in ("Linear(8, 16)", "BatchNorm1d(16)", "ReLU()", "Linear(16, 1)"))
    layers = f"torch.nn.Sequential({layers})"
    (job / "train.py").write_text(steps_program(layers, "torch.optim.Adam(model.parameters(), lr=0.01)"))
    (job / "job.yaml").write_text(ALL_REDUCE.replace("epochs: 6", "epochs: 12"))
    with JobProcess(job / "job.yaml", cwd=job, started=True) as run:
        run.wait_event("world_changed", workers=2)
        run.wait_step(20)
        run.send("worker", 0, SIGKILL)
        run.wait_event("role_started", role="worker", index=2)
        run.wait_event("world_changed", workers=2, reason="worker-2 joins")
        (job / "hurry").touch()
        summary = run.summary(200)
        loss = run.status()["loss"]
        assert run.wait() == 0
    assert summary["records_done"] == summary["records_total"] == 12 * RECORDS
    assert summary["records_lost"] == 0
    first, second = saved_models(job)
    assert first == second
    assert first["1.num_batches_tracked"] == [summary_steps(run)]
    assert loss < 0.4, "it began above 2"


LOADER = """
import os, time
import torch
from torch.utils.data import Dataset
from edl.sharding import Client
from edl.sharding.torch_data import ShardedLoader

torch.set_num_threads(1)

class Squares(Dataset):
    def __len__(self):
        return RECORDS
    def __getitem__(self, index):
        return {"number": index, "square": torch.tensor(float(index) ** 2), "process": os.getpid()}

with Client.from_env() as client, open(f"done-{client.uid}", "a", buffering=1) as done:
    for batch in ShardedLoader(client, Squares(), num_workers=LOADERS):
        assert (batch["square"] == batch["number"].float() ** 2).all()
        assert (batch["process"] != os.getpid()).all() == (LOADERS > 0)
        if not os.path.exists("hurry"):
            time.sleep(0.05)
        done.write("".join(f"{int(number)}\\n" for number in batch["number"]))
"""


@pytest.mark.parametrize("loaders", [in_third(0, 0), in_third(2, 2)])
def test_a_loader_of_a_data_set_of_ones_own_does_every_number_once_with_processes_too(job: Path, loaders: int) -> None:
    (job / "train.py").write_text(LOADER.replace("LOADERS", str(loaders)).replace("RECORDS", str(RECORDS)))
    np.save(job / "numbers.npy", np.arange(RECORDS))
    (job / "job.yaml").write_text(JOB.replace("rows.npz", "numbers.npy").replace("epochs: 6", "epochs: 3"))
    with JobProcess(job / "job.yaml", cwd=job, started=True) as run:
        run.wait_step(10)
        run.send("worker", 0, SIGKILL)
        run.wait_event("role_started", role="worker", index=2)
        (job / "hurry").touch()
        summary = run.summary(200)
    assert summary["records_done"] == summary["records_total"] == 3 * RECORDS
    assert summary["records_lost"] == 0
    # What the killed worker had loaded and not trained comes elsewhere, once.
    check_done(job, 3)


@pytest.mark.parametrize(
    ("name", "make_data", "records", "largest_loss"),
    [in_third(0, "pytorch_mnist", DIGITS, 1438, 0.3), in_third(2, "pytorch_shapes", SHAPES, 600, 0.6)],
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
    block = "        with step:\n"
    pace = "            __import__('os').path.exists('hurry') or __import__('time').sleep(0.05)\n"
    assert program.read_text().count(block) == 1
    program.write_text(program.read_text().replace(block, block + pace))
    use_environment(python, monkeypatch)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # two workers share the processors
    job = program.with_suffix(".yaml")
    with JobProcess(job, "--set", "train.epochs=20", cwd=tmp_path, started=True) as run:
        run.wait_event("world_changed", workers=2)
        run.wait_step(10)
        run.send("worker", 0, SIGKILL)
        run.wait_event("world_changed", workers=2, reason="worker-2 joins")
        (program.parent / "hurry").touch()
        summary = run.summary(400)
        loss = run.status()["loss"]
        assert run.wait() == 0
    assert summary["records_done"] == summary["records_total"] == 20 * records
    assert summary["records_lost"] == 0
    assert loss < largest_loss
    assert (program.parent / f"{name}.pt").stat().st_size > 10_000
