"""A PyTorch program under a job, with a PyTorch of another Python and with NumPy 1.24: Debian's packages.

The environment is made over the system's Python, with what ``edl.sharding`` needs and nothing of TensorFlow.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from signal import SIGKILL

import numpy as np
import pytest
from support.job_process import JobProcess

pytestmark = [pytest.mark.jobs, pytest.mark.thorough, pytest.mark.timeout(600)]

SYSTEM_PYTHON = "/usr/bin/python3"
HAS_TORCH = subprocess.run([SYSTEM_PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode == 0
PLATFORM = Path(__file__).parents[2]
PACKAGES = ("docker", "google-crc32c", "grpcio", "isal", "cramjam", "jsonschema", "kubernetes", "protobuf", "psutil")
PACKAGES += ("rich", "ruamel.yaml", "safetensors", "typer")

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


@pytest.fixture(scope="module")
def edl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command ``edl`` of an environment with the system's PyTorch."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([SYSTEM_PYTHON, "-m", "venv", "--system-site-packages", folder], check=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", *PACKAGES], check=True, timeout=400)
    command = folder / "bin" / "edl"
    command.write_text(
        f"#!{folder}/bin/python\nimport sys\nsys.path.insert(0, {str(PLATFORM)!r})\n"
        "from edl.cli.app import main\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    return command


@pytest.mark.skipif(not HAS_TORCH, reason="the system's Python has no PyTorch (Debian: python3-torch)")
def test_a_loop_in_pytorch_does_every_record_once_and_learns(
    tmp_path: Path, edl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(1).normal(size=(RECORDS, 8)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=rows, y=rows @ np.arange(8, dtype=np.float32) / 8, number=np.arange(RECORDS))
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "job.yaml").write_text(JOB)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PLATFORM), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(sys, "executable", str(edl.with_name("python")))
    with JobProcess(tmp_path / "job.yaml", cwd=tmp_path) as run:
        run.wait_step(20)
        run.send("worker", 0, SIGKILL)
        run.wait_event("role_started", role="worker", index=2)
        (tmp_path / "hurry").touch()
        summary = run.summary(200)
        loss = run.status()["loss"]
    assert summary["records_done"] == summary["records_total"] == EPOCHS * RECORDS
    assert summary["records_lost"] == 0
    counts = Counter(line for file in tmp_path.glob("done-*") for line in file.read_text().split())
    assert len(counts) == RECORDS
    assert min(counts.values()) == EPOCHS
    # What the killed worker had done and not yet reported: a part of the range that it held.
    assert counts.total() - EPOCHS * RECORDS <= 4 * MINIBATCH
    assert loss < 0.05
