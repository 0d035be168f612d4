"""A job under AllReduce whose workers log the records of each step, so that plain Keras can take the same steps."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from faults.kill_points import KILL_POINTS
from numpy.typing import NDArray
from support.job_folder import JobFolder, write_module
from support.job_process import JobProcess, Line
from support.run_recount import recount

from edl.simulation.counted_steps import CountedStep

HURRY = "hurry"
PAUSE = """

def pause():
    if not os.path.exists(HURRY):
        time.sleep(SECONDS)
    return 0.0


def paced(row):
    with tf.control_dependencies([tf.numpy_function(pause, [], tf.float64)]):
        return tf.identity(row)
"""
"""The input of a record takes its time until the file HURRY is there, as in ``faults.linear_job``."""

STEP_LOG = """

import json

from edl.worker.allreduce.state_digests import StateDigests
from edl.worker.allreduce.world_client import WorldClient


def write_log(name, *values):
    with open(Path(ORDERS, f"{name}-{os.getpid()}.jsonl"), "a") as file:
        file.write(json.dumps([time.time(), *values]) + "\\n")


def log_steps():
    plain = WorldClient.apply_step

    def apply_step(self, shares, loss, **named):
        plain(self, shares, loss, **named)
        if shares:
            write_log("steps", self.step, [[share.lease, share.start, share.end] for share in shares])

    WorldClient.apply_step = apply_step


def log_digests():
    plain = StateDigests.compare_states

    def compare_states(self, communicator, step):
        digest = plain(self, communicator, step)
        write_log("digests", step, communicator.size, digest)
        return digest

    StateDigests.compare_states = compare_states


log_steps()
log_digests()
"""
"""Workers log the steps that they apply, and the digests that they compare."""


@dataclass(frozen=True)
class StepLogJob:
    """The job, and its records: rows of numbers."""

    job_folder: JobFolder
    rows: NDArray[np.float64]
    module: str
    """The user's part of the module."""

    @classmethod
    def make(
        cls,
        folder: Path,
        name: str,
        module: str,
        rows: NDArray[np.float64],
        *,
        workers: int,
        epochs: int,
        global_batch: int,
        strategy: Mapping[str, Any] | None = None,
        record_seconds: float = 0.01,
        validates: bool = False,
        **fields: Any,
    ) -> StepLogJob:
        """Write module, data and job file to ``folder``.

        Args:
            folder: of everything.
            name: of the job and the module.
            module: has ``feed``, which passes each row through ``paced``.
            rows: the records.
            record_seconds: how long the input of a record takes until ``hurry``.
            validates: whether the model is evaluated at the end, with the same records.
            fields: further ones of the job file.
        """
        constants = {"SECONDS": record_seconds, "HURRY": str(folder / HURRY), "ORDERS": str(folder)}
        head = "import os\nimport time\n\n" + "".join(f"{key} = {value!r}\n" for key, value in constants.items())
        zoo = write_module(folder, name, head + PAUSE + module + KILL_POINTS + STEP_LOG)
        data = folder / "data.csv"
        data.write_text("".join(",".join(map(repr, row)) + "\n" for row in rows.tolist()))
        sections: dict[str, Any] = {
            "data": {"training": str(data), "reader": {"header": False}},
            "train": {"epochs": epochs, "minibatch_size": 4, "minibatches_per_task": 16},
            "strategy": {"name": "AllReduce", "global_batch": global_batch, **(strategy or {})},
            "workers": {"max": workers},
            **fields,
        }
        if validates:
            sections["data"]["validation"] = str(data)
        job_folder = JobFolder.make(folder, name, f"{name}.custom_model", zoo=zoo, **sections)
        del job_folder.spec["ps"]
        job_folder.file.write_text(json.dumps(job_folder.spec))
        return cls(job_folder, rows, module)

    def run(self) -> JobProcess:
        return self.job_folder.run()

    def hurry(self) -> None:
        """The test has what it waited for: train the rest as fast as it goes."""
        (self.job_folder.folder / HURRY).touch()

    def check_end(self, run: JobProcess, *, lost: int) -> tuple[Line, list[list[int]]]:
        """Wait for the end: no record is lost; returns the summary and the records of each step that counts."""
        self.hurry()
        summary = run.summary(400)
        assert summary["records_lost"] == 0
        assert summary["workers_lost"] == lost
        epochs, batch = (int(self.job_folder.spec[part][name]) for part, name in _NUMBERS)
        assert summary["records_done"] == summary["records_total"] == epochs * len(self.rows)
        assert summary["records_repeated"] <= lost * batch
        steps = self.made_steps(run.run_dir)
        assert Counter(record for step in steps for record in step) == dict.fromkeys(range(len(self.rows)), epochs)
        return summary, steps

    def made_steps(self, run_dir: Path) -> list[list[int]]:
        """Of each step that counts, the numbers of its records."""
        leases = recount(run_dir).leases
        # A step that did not count was made again by others, later.
        shares_by_step = {step: shares for _, step, shares in self.read_log("steps")}
        assert sorted(shares_by_step) == list(range(1, len(shares_by_step) + 1))
        steps = []
        for _, shares in sorted(shares_by_step.items()):
            records: list[int] = []
            for number, start, end in shares:
                lease = leases[number]
                epoch, source, first, _ = lease.record_range
                share = CountedStep(number, 0, epoch, source, first + start, first + end, lease.order)
                records += [record for _, record in share.source_records()]
            steps.append(records)
        return steps

    def read_log(self, name: str) -> list[Any]:
        """What all workers have logged, in the order of time."""
        files = self.job_folder.folder.glob(f"{name}-*.jsonl")
        return sorted(json.loads(line) for file in files for line in file.read_text().splitlines())


_NUMBERS = (("train", "epochs"), ("strategy", "global_batch"))
