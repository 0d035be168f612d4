"""The worker as a process, with real TensorFlow; the master is a script behind a real gRPC server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worker.loop_harness import LEASE, TOKEN, PsServers

from edl.jobfile.loader import dump_job_spec, load_job_file
from edl.transport import edl_pb2 as pb
from edl.transport.control_server import start_control_server
from edl.transport.edl_pb2_grpc import MasterServicer, add_MasterServicer_to_server

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]

MODEL = """
import keras, tensorflow as tf

def custom_model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False)])

def loss(labels, predictions):
    return tf.reduce_mean(tf.square(labels - predictions))

def optimizer():
    return keras.optimizers.SGD(0.1)

def eval_metrics_fn():
    return {"mae": keras.metrics.MeanAbsoluteError()}

def feed(dataset, mode, metadata):
    dataset = dataset.map(lambda row: tf.strings.to_number(row))
    if mode == "prediction":
        return dataset.map(lambda row: row[:2])
    return dataset.map(lambda row: (row[:2], row[2:]))
"""


def rows(count: int) -> np.ndarray:
    x = np.random.default_rng(0).integers(-2, 3, (count, 2))
    return np.column_stack([x, x @ [1, -1]]).astype(np.float32)


class TaskMaster(MasterServicer):
    """Hands out what it was given, in order; the rest is remembered."""

    def __init__(self, servers: PsServers) -> None:
        self.servers = servers
        self.tasks: list[pb.Task] = []
        self.log: list[tuple[str, Any]] = []
        self.registered = threading.Event()
        self.ready = threading.Event()
        self.left = threading.Event()
        self.on_report: Callable[[pb.ReportRequest], None] = lambda report: None
        self.hold = False
        self.pinned = threading.Event()

    def of(self, method: str) -> list[Any]:
        return [request for name, request in self.log if name == method]

    def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterReply:
        self.log.append(("Register", request))
        self.registered.set()
        if request.ready:
            self.ready.set()
        return pb.RegisterReply(incarnation=1, placement=self.servers.placement())

    def Lease(self, request: pb.LeaseRequest, context: Any) -> pb.LeaseReply:
        if not self.ready.wait(0.05) or self.hold:
            return pb.LeaseReply(incarnation=1, wait=pb.Wait(reason="no model yet"))
        if self.tasks and self.tasks[0].pin and not self.pinned.wait(0.05):
            return pb.LeaseReply(incarnation=1, wait=pb.Wait(reason="no pin yet"))
        if self.tasks:
            return pb.LeaseReply(incarnation=1, task=self.tasks.pop(0))
        return pb.LeaseReply(incarnation=1, stop=pb.Stop(reason="all done"))

    def Progress(self, request: pb.ProgressRequest, context: Any) -> pb.ProgressReply:
        self.log.append(("Progress", request))
        return pb.ProgressReply(incarnation=1)

    def Report(self, request: pb.ReportRequest, context: Any) -> pb.ReportReply:
        self.log.append(("Report", request))
        self.on_report(request)
        return pb.ReportReply(accepted=True, incarnation=1)

    def Fail(self, request: pb.FailRequest, context: Any) -> pb.FailReply:
        self.log.append(("Fail", request))
        return pb.FailReply(fatal=True)

    def Leave(self, request: pb.LeaveRequest, context: Any) -> pb.LeaveReply:
        self.log.append(("Leave", request))
        self.left.set()
        return pb.LeaveReply()


class WorkerJob:
    """A run directory, a master and parameter servers."""

    def __init__(self, folder: Path, model: str = MODEL, records: int = 40) -> None:
        self.folder = folder
        self._sockets = tempfile.TemporaryDirectory(prefix="edl-")
        self.table = rows(records)
        for name in ("train", "validation"):
            text = "\n".join(",".join(f"{cell:g}" for cell in row) for row in self.table)
            (folder / f"{name}.csv").write_text(text + "\n")
        (folder / "zoo").mkdir()
        (folder / "zoo" / "linear.py").write_text(model)
        (folder / "token").write_text(TOKEN)
        (folder / "run").mkdir()
        self.servers = PsServers(2)
        self.master = TaskMaster(self.servers)
        self.address = f"unix:{self._sockets.name}/m"
        self.server = start_control_server(partial(add_MasterServicer_to_server, self.master), self.address, TOKEN, 8)

    def write(self, **sections: Any) -> None:
        spec = {
            "apiVersion": "edl.dev/v1",
            "name": "job",
            "model": {"zoo": str(self.folder / "zoo"), "definition": "linear.custom_model"},
            "data": {
                "training": str(self.folder / "train.csv"),
                "validation": str(self.folder / "validation.csv"),
                "prediction": str(self.folder / "validation.csv"),
                "reader": {"header": False},
            },
            "train": {"minibatch_size": 4},
            **sections,
        }
        path = self.folder / "job.json"
        path.write_text(json.dumps(spec))
        (self.folder / "run" / "spec.json").write_text(json.dumps(dump_job_spec(load_job_file(path))))

    def start(self) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "EDL_RUN_DIR": str(self.folder / "run"),
            "EDL_ROLE": "worker",
            "EDL_INDEX": "3",
            "EDL_UID": "uid-3",
            "EDL_TOKEN_FILE": str(self.folder / "token"),
            "EDL_RUNTIME_DIR": self._sockets.name,
            "EDL_MASTER_ADDRESS": self.address,
        }
        command = [sys.executable, "-m", "edl.worker"]
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def task(self, number: int, kind: str, start: int, end: int, **fields: Any) -> pb.Task:
        name = "train" if kind == "training" else "validation"
        return pb.Task(
            lease=LEASE + number,
            kind=kind,
            source=str(self.folder / f"{name}.csv"),
            start=start,
            end=end,
            minibatch=4,
            expires_seconds=30,
            **fields,
        )

    def close(self) -> None:
        self.server.stop()
        self.servers.close()
        self._sockets.cleanup()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[WorkerJob]:
    job = WorkerJob(tmp_path)
    job.write()
    yield job
    job.close()


def finish(process: subprocess.Popen[str]) -> str:
    _, errors = process.communicate(timeout=90)
    return errors


def test_a_job_is_trained_evaluated_and_exported(job: WorkerJob) -> None:
    def pin(report: pb.ReportRequest) -> None:
        if report.lease == LEASE + 2:
            for server in job.servers.servers.values():
                server.take_snapshot(1, 5, None, pin=True)
            job.master.pinned.set()

    job.master.tasks = [job.task(1, "training", 0, 20), job.task(2, "training", 20, 40)]
    job.master.tasks += [job.task(n, "evaluation", start, start + 20, pin=5) for n, start in ((3, 0), (4, 20))]
    job.master.tasks += [pb.Task(lease=LEASE + 5, kind="export", pin=5, minibatch=1, expires_seconds=30)]
    job.master.on_report = pin
    process = job.start()
    log = finish(process)

    assert process.returncode == 0, log
    reports = {report.lease - LEASE: report for report in job.master.of("Report")}
    assert sorted(reports) == [1, 2, 3, 4, 5]
    assert [job.servers.state(i).version for i in (0, 1)] == [10, 10]
    states = [json.loads(reports[number].result) for number in (3, 4)]
    assert all("mae" in state for state in states)
    exported = json.loads(reports[5].result)
    (directory,) = exported.pop("paths")
    assert exported == {"loading": ""}, "Keras alone loads it"
    assert Path(directory, "model.keras").exists()


@pytest.mark.repetition
def test_the_users_error_is_told_with_the_users_lines_first(job: WorkerJob) -> None:
    broken = MODEL.partition("def feed")[0] + 'def feed(dataset, mode, metadata):\n    raise KeyError("lable")\n'
    (job.folder / "zoo" / "linear.py").write_text(broken)
    process = job.start()
    log = finish(process)

    assert process.returncode == 2, log
    (failure,) = job.master.of("Fail")
    assert failure.kind == "input"
    assert "KeyError" in failure.message
    assert "linear.py" in failure.detail.splitlines()[1]


@pytest.mark.parametrize("moment", ["import", pytest.param("idle", marks=pytest.mark.repetition)])
def test_sigterm_is_a_goodbye(job: WorkerJob, moment: str) -> None:
    """During TensorFlow's import the main thread runs no Python signal handler; the worker leaves all the same."""
    job.master.hold = True
    process = job.start()
    assert (job.master.ready if moment == "idle" else job.master.registered).wait(60)
    process.send_signal(signal.SIGTERM)
    log = finish(process)
    assert process.returncode == 0, log
    assert job.master.left.is_set()
