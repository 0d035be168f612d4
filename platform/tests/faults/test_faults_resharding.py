"""A run goes on with another number of parameter servers: parameters and ledger stay what they were."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from faults.job_assertions import done
from faults.linear_job import LinearJob
from support.job_process import edl

pytestmark = [pytest.mark.faults, pytest.mark.repetition]


def test_two_then_three_then_one(linear: Callable[..., LinearJob]) -> None:
    """Every checkpoint of all three is, bit by bit, what the ledger says of it: dense variables and rows."""
    job = linear(ps=2, embedding=True, records=24000)
    saved = {"step": 0, "cut": 0}
    for options in ([], ["--resume", "--ps", "3"]):
        with job.start(*options) as run:
            if options:
                assert run.wait_event("rolled_back")["to_cut"] >= saved["cut"]
            step = saved["step"]
            saved = run.wait_line(lambda line, step=step: line["event"] == "checkpoint_saved" and line["step"] > step)
            run.kill()
            run.wait_gone(10.0)
    with job.start("--resume", "--ps", "1") as run:
        _, counted = done(job, run, lost=2 * job.workers)
        job.check_checkpoints(run.run_dir, counted)
    shards = [len(json.loads(path.read_text())["shards"]) for path in run.run_dir.glob("checkpoints/*/manifest.json")]
    assert set(shards) == {1, 2, 3}

    export_command = edl("checkpoint", "export", "linear", "linear.npz", cwd=job.file.parent)
    assert export_command.returncode == 0, export_command.stderr
    expected = job.expected(counted.counted_steps)
    with np.load(job.file.parent / "linear.npz", allow_pickle=False) as exported:
        (table,) = {name.removesuffix("/ids") for name in exported if name.endswith("/ids")}
        ids, rows = exported[f"{table}/ids"], exported[f"{table}/rows"]
        np.testing.assert_array_equal(rows, expected.pop("items")[ids])
        for name, value in expected.items():
            np.testing.assert_array_equal(exported[name], value, err_msg=name)
