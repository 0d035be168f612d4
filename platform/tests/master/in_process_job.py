"""A whole job in one process and without TensorFlow: a real master on a fake cluster, real parameter servers that get
pushes by function call, and workers that follow the protocol and compute nothing."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from master.master_stubs import LONG, TOKEN
from support.fake_cluster import FakeCluster

from edl.api.cluster_port import PodStatus, Role
from edl.api.errors import EdlError, RefusedError
from edl.api.job_spec import JobSpec
from edl.api.variables import VariableSpec
from edl.jobfile.loader import load_job_file
from edl.master.backend import LocalMasterBackend, MasterBackend
from edl.master.master_process import MasterProcess, serve_job
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.ps.applied_steps import AdmissionOutcome, PushId
from edl.ps.control_service import PsControlService
from edl.ps.parameter_server import ParameterServer
from edl.ps.push_updates import PendingPush
from edl.ps.server_process import keep_registered
from edl.ps.shard_writer import ShardWriter
from edl.simulation.clock import VirtualClock
from edl.storage.durable_files import read_json
from edl.storage.journal import Journal
from edl.storage.run_directory import RunDirectory
from edl.transport import edl_pb2 as pb
from edl.transport.control_client import ControlChannel, RetryPolicy
from edl.transport.control_methods import MasterMethods as Methods
from edl.transport.control_server import start_control_server
from edl.transport.edl_pb2_grpc import add_PsControlServicer_to_server
from edl.transport.process_identity import ProcessIdentity

MODEL = ModelDeclaration((VariableSpec("w", (3,)),), (), OptimizerSpec("sgd", {}), "model")
RECORDS, VALIDATION = 40, 12

Results = Mapping[str, Callable[[pb.Task], Any]]
RESULTS: Results = {
    "evaluation": lambda task: {"seen": {"additive": True, "states": [task.end - task.start]}},
    "metrics": lambda task: {"seen": json.loads(task.payload)["seen"]["states"][0]},
    "export": lambda task: ["/somewhere/export"],
    "describe": lambda task: {"training": [["own", RECORDS]], "validation": []},
}


class InProcessPs:
    """One pod of a PS."""

    def __init__(self, job: InProcessJob, pod: PodStatus) -> None:
        self.uid, self.index = pod.uid, pod.index
        self.server = ParameterServer(pod.index, ShardWriter(pod.index), push_timeout=0.2)
        address = f"unix:{job.folder}/{pod.uid[-6:]}"
        register = partial(add_PsControlServicer_to_server, PsControlService(self.server, pod.uid))
        self._control = start_control_server(register, address, TOKEN, 4)
        self._channel = job.connect()
        self._ended = threading.Event()
        member = pb.Member(role="ps", index=pod.index, uid=pod.uid)
        registration = pb.RegisterRequest(member=member, control_address=address, bulk_address=f"{address}.bulk")
        self._registering = threading.Thread(
            target=keep_registered, args=(self._channel, registration, self._ended), kwargs={"lost_timeout": LONG}
        )
        self._registering.start()

    def fall_silent(self) -> None:
        """Answer the master no more."""
        self._control.stop(0.0)

    def end(self) -> None:
        self._ended.set()
        self.server.close()
        self._control.stop(0.0)
        self._registering.join()
        self._channel.close()


class ScriptedWorker:
    """One pod of a worker."""

    def __init__(self, job: InProcessJob, pod: PodStatus) -> None:
        self._job, self.uid = job, pod.uid
        self._member = pb.Member(role="worker", index=pod.index, uid=pod.uid)
        self._channel = job.connect()
        self._ended = threading.Event()
        self._placed: list[str] = []
        self._placement = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._channel.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._place()
            self._declare()
            while not self._ended.is_set():
                self._turn()
        except EdlError as error:
            if not self._ended.is_set():
                kind = "refused" if isinstance(error, RefusedError) else "crash"
                self._ask(Methods.Fail, pb.FailRequest(member=self._member, kind=kind, message=str(error)))
                self._job.cluster.kill(self.uid, 1)

    def _ask(self, method: Any, request: Any) -> Any:
        return self._channel.call(method, request, timeout=10.0, retry=RetryPolicy(timeout_seconds=LONG))

    def _place(self) -> None:
        """Learn where the PS are, once all of them are there."""
        self._placed = []
        while len(self._placed) < self._job.spec.ps.count and not self._ended.is_set():
            self._placed = self._look()

    def _look(self) -> list[str]:
        """The PS that are there now."""
        reply = self._ask(Methods.Register, pb.RegisterRequest(member=self._member))
        self._placement = reply.placement.version
        return [ps.uid for ps in reply.placement.ps]

    def _follow(self) -> None:
        """A PS may have been replaced while there was nothing to push."""
        placed = self._look()
        if len(placed) == self._job.spec.ps.count:
            self._placed = placed
            self._declare()

    def _declare(self) -> None:
        for uid in self._placed:
            with suppress(KeyError):  # it ended; the next task will find out
                self._job.servers[uid].server.declare_model(MODEL, np.zeros(3, np.float32))
        self._ask(Methods.Register, pb.RegisterRequest(member=self._member, ready=True))

    def _turn(self) -> None:
        reply = self._ask(Methods.Lease, pb.LeaseRequest(member=self._member, wait_seconds=0.2))
        match reply.WhichOneof("answer"):
            case "task":
                self._do(reply.task)
            case "wait" if reply.placement_version > self._placement:
                self._follow()
            case "stop":
                self._job.cluster.kill(self.uid, 0)
                self._ended.set()

    def _do(self, task: pb.Task) -> None:
        steps = -(-(task.end - task.start) // task.minibatch)
        if task.kind == "training" and not all(self._step(task, step) for step in range(steps)):
            return
        result = self._job.results.get(task.kind, lambda _: None)(task)
        data = result if isinstance(result, bytes) else b"" if result is None else json.dumps(result).encode()
        last = pb.LeaseProgress(lease=task.lease, through=steps, loss_sum=float("nan"), loss_steps=1)
        request = pb.ReportRequest(member=self._member, lease=task.lease, last=last, result=data)
        self._ask(Methods.Report, request)

    def _step(self, task: pb.Task, step: int) -> bool:
        """Whether the step is in, on all PS."""
        progress = pb.LeaseProgress(lease=task.lease, through=step)
        request = pb.ProgressRequest(member=self._member, leases=[progress])
        if task.lease in self._ask(Methods.Progress, request).lost:
            return False
        share = PushId(task.lease, step)
        pushed = [self._push(index, share) for index in range(len(self._placed))]  # to all, whatever one of them says
        done = all(pushed)
        if done:
            self._job.stepped(self)
        return done

    def _push(self, index: int, share: PushId) -> bool:
        while not self._ended.is_set():
            server = self._job.servers.get(self._placed[index])
            if server is not None:
                with suppress(EdlError):  # busy, replaced or not restored yet: again
                    admission, _ = server.server.push(PendingPush(share, server.server.require_declaration(), None))
                    return admission is not AdmissionOutcome.REVOKED
            self._place()
            self._declare()  # as real ones do to a PS that says that it holds nothing
        return False


class InProcessJob:
    """Run directory, cluster and roles; the masters come and go."""

    def __init__(self, folder: Path, spec: JobSpec, results: Results) -> None:
        self.folder, self.spec, self.results = folder, spec, {**RESULTS, **results}
        self.run = RunDirectory(folder / "r1")
        self.run.path.mkdir()
        for part in (self.run.journal, self.run.checkpoints, self.run.logs):
            part.mkdir()
        self.cluster = FakeCluster(VirtualClock())
        self.cluster.subscribe(self._changed)
        self.servers: dict[str, InProcessPs] = {}
        self.workers: dict[str, ScriptedWorker] = {}
        self.steps = 0
        self.at_step: dict[int, Callable[[ScriptedWorker], None]] = {}
        self.stopping = threading.Event()
        self._address = f"unix:{folder}/master"
        self._lock = threading.Lock()

    def connect(self) -> ControlChannel:
        return ControlChannel(self._address, TOKEN)

    def _changed(self, pod: PodStatus) -> None:
        pods: dict[str, Any] = self.servers if pod.role is Role.PS else self.workers
        if pod.has_ended:
            ended = pods.pop(pod.uid, None)
            if ended is not None:
                threading.Thread(target=ended.end).start()
        elif pod.phase == "Running" and pod.uid not in pods:
            pods[pod.uid] = (InProcessPs if pod.role is Role.PS else ScriptedWorker)(self, pod)

    def stepped(self, worker: ScriptedWorker) -> None:
        with self._lock:
            self.steps += 1
            act = self.at_step.pop(self.steps, None)
        if act is not None:
            act(worker)

    def kill_all(self) -> None:
        for pod in self.cluster.pods():
            self.cluster.kill(pod.uid)

    @property
    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(self.run.path, Role.MASTER, 0, "master-0-a", TOKEN, self.folder, self._address)

    def master(self) -> MasterProcess:
        return MasterProcess(self.identity, self.spec, LocalMasterBackend(self.cluster.connect()))

    def run_master(self, around: MasterBackend | None = None) -> int:
        self.stopping.clear()
        return serve_job(self.identity, self.spec, around or LocalMasterBackend(self.cluster.connect()), self.stopping)

    # ------------------------------------------------------------------ what it left behind

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.run.events.read_text().splitlines()]
        return [line for line in lines if line["event"] == kind]

    def entries(self, kind: str) -> list[dict[str, Any]]:
        journal, replay = Journal.open(self.run.journal, holder="the test")
        journal.close()
        return [dict(entry) for entry in replay.entries if entry["kind"] == kind]

    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = read_json(self.run.path / "summary.json")
        return summary

    def failure(self) -> dict[str, Any]:
        failure: dict[str, Any] = read_json(self.run.path / "failure.json")
        return failure

    def close(self) -> None:
        self.kill_all()
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon and "_run" in thread.name:
                thread.join(LONG)


@contextmanager
def in_process_job(
    results: Results | None = None, module: str = "def custom_model(): ...\n", **changes: Any
) -> Iterator[InProcessJob]:
    """A job over one CSV file of records; ``changes`` replace sections of the spec."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, records in (("train.csv", RECORDS), ("validation.csv", VALIDATION), ("empty.csv", 0)):
            (folder / file).write_text("x,y\n" + "".join(f"{i},{i}\n" for i in range(records)))
        (folder / "zoo").mkdir()
        (folder / "zoo" / "m.py").write_text(module)
        document: dict[str, Any] = {
            "apiVersion": "edl.dev/v1",
            "name": "played",
            "model": {"definition": "m.custom_model"},
            "data": {"training": "train.csv"},
            "train": {"minibatch_size": 2, "minibatches_per_task": 4},
            "checkpoint": {"every_steps": 5, "keep": 2},
            **changes,
        }
        document["model"] |= {"zoo": str(folder / "zoo")}
        document["data"] = {part: str(folder / file) for part, file in document["data"].items()}
        (folder / "job.json").write_text(json.dumps(document))
        job = InProcessJob(folder, load_job_file(folder / "job.json"), results or {})
        try:
            yield job
        finally:
            job.close()
