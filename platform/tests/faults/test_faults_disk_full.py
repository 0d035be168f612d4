"""A disk that is full for a while costs time; what goes back with a lost parameter server stays bounded."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGKILL

import pytest
from faults.job_assertions import done
from faults.linear_job import LinearJob

pytestmark = [pytest.mark.faults, pytest.mark.thorough, pytest.mark.timeout(400)]

LEFT_BYTES = 96 << 10


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB; mounting one takes root."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("a file system of its own cannot be mounted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_training_waits_for_room_and_loses_two_intervals_at_most(
    linear: Callable[..., LinearJob], small_disk: Path
) -> None:
    job = linear(
        records=48000,
        every_steps=400,
        checkpoint={"every_steps": 400, "keep": 1},
        storage={"path": str(small_disk)},
    )
    ballast = small_disk / "ballast"
    with job.start() as run:
        run.wait_line(lambda line: line["event"] == "checkpoint_saved" and line["step"] > 0)
        with ballast.open("wb") as file:
            file.write(bytes(shutil.disk_usage(small_disk).free - LEFT_BYTES))
            os.fsync(file.fileno())
        stalled = run.wait_event("stalled", timeout=120.0)
        assert stalled["reason"].startswith("waiting until a checkpoint can be written: ")
        status = run.wait_status(lambda status: status["phase"] == "Stalled")
        assert status["reason"].startswith("waiting until a checkpoint can be written: ")
        stands = status["step"]
        assert stands < job.total // job.minibatch
        run.send("ps", 0, SIGKILL)
        back = run.wait_event("rolled_back")
        assert back["records"] <= 2 * job.interval * job.minibatch
        ballast.unlink()
        run.wait_event("stall_ended", timeout=120.0)
        summary, _ = done(job, run)
        left = list((run.run_dir / "checkpoints").iterdir())
    assert summary["records_rolled_back"] == back["records"]
    assert all((cut / "manifest.json").exists() for cut in left), f"unfinished attempts were left: {left}"
