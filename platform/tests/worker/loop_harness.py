"""What tests of the loop share: a scripted master, parameter servers in this process, a linear model in NumPy."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from edl.api.errors import RetryableError
from edl.api.strategy import Strategy
from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.core.partition import initial_placement as first_placement
from edl.data.reader import CorruptRange, CorruptRecordError, Metadata, Source
from edl.keras.user_callbacks import NoCallbacks
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.parameter_store import PushGradients, RowsByTable
from edl.ps.bulk_handler import BulkRequestHandler
from edl.ps.messages import AttachResult, MasterAttachment
from edl.ps.parameter_server import ParameterServer
from edl.ps.shard_writer import ShardWriter
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_client import BulkClient
from edl.transport.bulk_server import BulkServer
from edl.worker.flat_buffer import FlatLayout
from edl.worker.graceful_shutdown import ShutdownGate
from edl.worker.lease_client import LeaseClient, LeasedTask, ProgressReporter
from edl.worker.local_updater import GradientCompensation, LocalUpdater
from edl.worker.master_session import MasterSession
from edl.worker.parameter_client import ParameterClient, StepPush
from edl.worker.record_stream import CorruptRecordSkipper, RecordStream, RecordWindow
from edl.worker.trainer import SerialExecutor, Trainer

TOKEN = "the-token-of-these-tests"
MEMBER = pb.Member(role="worker", index=0, uid="uid-0")
LEASE = 1 << 32
FEATURES = 3
SGD = OptimizerSpec("sgd")
MINIBATCH = 4


class ScriptedMaster:
    """Answers from scripts, and remembers every request in order. Plugs into a Session in place of the wire."""

    def __init__(self) -> None:
        self.incarnation = 1
        self.placement = pb.Placement()
        self.answers: deque[pb.LeaseReply] = deque()
        self.lost: list[int] = []
        self.fatal = True
        self.away = 0
        self.log: list[tuple[str, Any]] = []
        self.on_call: Callable[[str, Any], None] = lambda method, request: None
        self._lock = threading.Lock()

    def __call__(self, method: str, request: Any, *, deadline: float) -> Any:
        with self._lock:
            if self.away:
                self.away -= 1
                raise RetryableError("away", where="master")
            copy = type(request)()
            copy.CopyFrom(request)
            self.log.append((method, copy))
        self.on_call(method, request)
        return getattr(self, f"_{method.lower()}")()

    def requests(self, method: str) -> list[Any]:
        return [request for name, request in self.log if name == method]

    def grant(self, *tasks: pb.Task) -> None:
        self.answers.extend(pb.LeaseReply(incarnation=self.incarnation, task=task) for task in tasks)

    def stop(self) -> None:
        self.answers.append(pb.LeaseReply(incarnation=self.incarnation, stop=pb.Stop(reason="done")))

    def _register(self) -> pb.RegisterReply:
        return pb.RegisterReply(incarnation=self.incarnation, placement=self.placement)

    def _lease(self) -> pb.LeaseReply:
        return self.answers.popleft()

    def _progress(self) -> pb.ProgressReply:
        return pb.ProgressReply(incarnation=self.incarnation, lost=self.lost)

    def _report(self) -> pb.ReportReply:
        return pb.ReportReply(accepted=True, incarnation=self.incarnation)

    def _fail(self) -> pb.FailReply:
        return pb.FailReply(fatal=self.fatal)

    def _leave(self) -> pb.LeaveReply:
        return pb.LeaveReply()


class ScriptedChannel:
    """A channel to a master that is a script in this process."""

    def __init__(self, master: ScriptedMaster) -> None:
        self._master = master

    def call(self, method: Any, request: Any, *, timeout: float) -> Any:
        return self._master(method.path.rpartition("/")[2], request, deadline=timeout)


class PsServers:
    """Parameter servers behind real sockets, each replaceable."""

    def __init__(self, count: int, strategy: Strategy | None = None) -> None:
        self._strategy = strategy
        self._folder = tempfile.TemporaryDirectory(prefix="edl-")
        self._starts = 0
        self.slots = first_placement(count)
        self.version = 0
        self.servers: dict[int, ParameterServer] = {}
        self._bulk: dict[int, BulkServer] = {}
        self._uids: dict[int, str] = {}
        for index in range(count):
            self.start(index)

    def start(self, index: int, *, attach: bool = True) -> ParameterServer:
        """A new, empty PS at this index."""
        self._starts += 1
        self.version += 1
        server = self.servers[index] = ParameterServer(index, ShardWriter(index), strategy=self._strategy)
        if attach:
            server.attach_master(MasterAttachment(incarnation=1, lowest_open_lease=0, slot_owners=self.slots))
        address = f"unix:{self._folder.name}/{index}-{self._starts}"
        self._uids[index] = f"ps-{index}-{self._starts}"
        plane = BulkRequestHandler(server)
        self._bulk[index] = BulkServer(
            address, TOKEN, plane, max_body_bytes=1 << 24, on_disconnect=plane.handle_disconnect
        )
        self._bulk[index].start()
        return server

    def kill(self, index: int) -> None:
        self.servers.pop(index).close()
        self._bulk.pop(index).stop()

    def state(self, index: int) -> AttachResult:
        """Version and applied steps: what a master learns when it attaches again."""
        return self.servers[index].attach_master(
            MasterAttachment(incarnation=1, lowest_open_lease=0, slot_owners=self.slots)
        )

    def placement(self) -> pb.Placement:
        addresses = [
            pb.PsAddress(index=i, uid=self._uids[i], bulk_address=bulk.address) for i, bulk in self._bulk.items()
        ]
        return pb.Placement(version=self.version, ps=addresses, slots=self.slots)

    def close(self) -> None:
        for index in list(self.servers):
            self.kill(index)
        self._folder.cleanup()


@dataclass
class LinearStep:
    loss: float
    flat_gradients: np.ndarray
    row_gradients: dict[str, np.ndarray] = field(default_factory=dict)


class LinearNetwork:
    """y = w x, squared error; with a table, every record's first feature is also the id of a row that is added to y."""

    def __init__(self, parts: int = 1, *, table: bool = False, poison: float | None = None) -> None:
        names = [f"w{i}" for i in range(FEATURES)]
        owner = {name: index % parts for index, name in enumerate(names)}
        self.order = sorted(range(FEATURES), key=lambda i: owner[names[i]])
        self.variables = tuple(VariableSpec(names[i], (1,)) for i in self.order)
        counts = [sum(owner[name] == part for name in names) for part in range(parts)]
        ends = np.cumsum(counts).tolist()
        self.ps_slices = tuple(slice(end - count, end) for end, count in zip(ends, counts, strict=True))
        self.tables = (TableSpec("emb", 100, 1, {"name": "constant", "value": 0.5}, 0),) if table else ()
        self.fingerprint = "linear"
        self.poison = poison
        self.evaluated: list[np.ndarray] = []
        self._sum = 0.0
        self._count = 0

    def initial_values(self) -> np.ndarray:
        return np.zeros(FEATURES, np.float32)

    def unique_ids(self, features: np.ndarray) -> dict[str, np.ndarray]:
        return {"emb": np.unique(features[:, 0].astype(np.int64))} if self.tables else {}

    def predict(self, slab: np.ndarray, rows: Mapping[str, Any], features: np.ndarray) -> np.ndarray:
        weights = np.empty(FEATURES, np.float32)
        weights[self.order] = slab
        outputs = features @ weights
        if rows:
            index = np.searchsorted(rows["emb"].ids, features[:, 0].astype(np.int64))
            outputs = outputs + rows["emb"].values[index, 0]
        return outputs

    def train(
        self, slab: np.ndarray, rows: Mapping[str, Any], features: np.ndarray, labels: np.ndarray, weights: Any = None
    ) -> LinearStep:
        error = self.predict(slab, rows, features) - labels
        if self.poison is not None and (labels == self.poison).any():
            error = error * np.nan
        gradient = (2 * error @ features / len(labels)).astype(np.float32)
        result = LinearStep(float((error**2).mean()), gradient[self.order])
        if rows:
            index = np.searchsorted(rows["emb"].ids, features[:, 0].astype(np.int64))
            total = np.zeros((len(rows["emb"].ids), 1), np.float32)
            np.add.at(total[:, 0], index, (2 * error / len(labels)).astype(np.float32))
            result.row_gradients = {"emb": total}
        return result

    def evaluate(
        self, slab: np.ndarray, rows: Mapping[str, Any], features: np.ndarray, labels: np.ndarray, weights: Any = None
    ) -> None:
        self.evaluated.append(slab.copy())
        self._sum += float(np.abs(self.predict(slab, rows, features) - labels).sum())
        self._count += len(labels)

    def reset_metrics(self) -> None:
        self._sum, self._count = 0.0, 0

    def metric_states(self) -> dict[str, Any]:
        return {"mae": {"additive": True, "states": [self._sum, self._count]}}

    def metric_values(self, states: Any) -> dict[str, float]:
        total, count = states["mae"]["states"]
        return {"mae": total / count}


class LinearMinibatch(NamedTuple):
    tag: int
    features: np.ndarray
    labels: np.ndarray
    weights: Any = None
    skipped_images: int = 0


def pipeline(windows: Iterator[tuple[int, RecordWindow]]) -> Iterator[LinearMinibatch]:
    """As the real one, without reading ahead: one minibatch a window, of no records if none are left."""
    for tag, window in windows:
        rows = np.array([np.frombuffer(record, np.float32) for record in window.records], np.float32)
        rows = rows.reshape(-1, FEATURES + 1)
        yield LinearMinibatch(tag, rows[:, :-1], rows[:, -1])


def record(index: int) -> np.ndarray:
    """Record ``index``: small integers, so that sums are exact; the label is the index."""
    return np.array([index % 7, index % 3, 1, index], np.float32)


class MemoryReader:
    """``count`` records of one source; some of them corrupt."""

    metadata = Metadata("memory")

    def __init__(self, count: int, corrupt: Sequence[int] = ()) -> None:
        self.count = count
        self.corrupt = set(corrupt)
        self.reads: list[tuple[int, int]] = []

    def sources(self) -> list[Source]:
        return [Source("s", self.count)]

    def read(self, source: str, start: int, end: int, on_corrupt: Any = None) -> list[bytes]:
        self.reads.append((start, end))
        for index in range(start, end):
            if index in self.corrupt:
                corrupt_range = CorruptRange(source, index, index + 1, 0, 0, "checksum")
                if on_corrupt is None:
                    raise CorruptRecordError(corrupt_range)
                on_corrupt(corrupt_range)
        return [record(i).tobytes() for i in range(start, end) if i not in self.corrupt]


def task(number: int, start: int, end: int, kind: str = "training", **fields: Any) -> pb.Task:
    return pb.Task(
        lease=LEASE + number,
        kind=kind,
        source="s",
        start=start,
        end=end,
        minibatch=MINIBATCH,
        expires_seconds=60,
        **fields,
    )


class LoopHarness:
    """A worker's parts, put together on a scripted master and real parameter servers; no threads of its own."""

    def __init__(
        self,
        *,
        ps: int = 1,
        records: int = 64,
        corrupt: Sequence[int] = (),
        allowed: int = 0,
        strategy: Strategy | None = None,
        watches_placement: bool = False,
    ) -> None:
        self._closing = ExitStack()
        self._rounds = strategy is not None and strategy.mode == "sync"
        self.master = ScriptedMaster()
        self.servers = PsServers(ps, strategy)
        self._closing.callback(self.servers.close)
        self.master.placement = self.servers.placement()
        self.gate = ShutdownGate()
        check = (lambda: self.leases.schedule_placement_check()) if watches_placement else (lambda: None)
        self.session = MasterSession(
            MEMBER, self.master, lost_timeout=5, on_new_placement=check, pause=lambda seconds: None
        )
        self.reader = MemoryReader(records, corrupt)
        self.leases = LeaseClient(self.session, self.held, lambda: self.progress.known_leases(), wait_seconds=0)
        self.progress = ProgressReporter(self.session, self.leases.mark_lost)
        self.streams = {
            kind: RecordStream(lambda: self.reader, CorruptRecordSkipper(allowed), pipeline, self.leases.is_held)
            for kind in ("training", "evaluation", "prediction")
        }
        self.session.register()

    def held(self, leased: LeasedTask) -> None:
        self.progress.track_lease(leased)
        if leased.kind in self.streams:
            self.streams[leased.kind].add_task(leased)

    def parameters(
        self,
        network: LinearNetwork,
        *,
        pause: Callable[[float], None] = lambda seconds: None,
        clock: Callable[[], float] = time.monotonic,
        connect: Callable[[str], BulkClient] | None = None,
        optimizer: OptimizerSpec = SGD,
        get_model_steps: int = 1,
        overlap: bool = False,
        worker: int = 0,
    ) -> ParameterClient:
        layout = FlatLayout(
            network.variables,
            network.ps_slices,
            network.tables,
            network.fingerprint,
            network.initial_values(),
            json.dumps(optimizer.to_json()),
        )
        parameters = ParameterClient(
            self.session,
            connect or connected,
            layout,
            worker_index=worker,
            answer_timeout=10,
            synchronous=self._rounds,
            local_updater=LocalUpdater(layout, optimizer, get_model_steps) if get_model_steps > 1 else None,
            compensation=GradientCompensation(layout, optimizer) if overlap else None,
            pause=pause,
            clock=clock,
        )
        self._closing.callback(parameters.close)
        parameters.declare_model()
        return parameters

    def take(self, *tasks: pb.Task) -> list[LeasedTask]:
        """Lease these tasks."""
        self.master.grant(*tasks)
        self.master.stop()
        asking = threading.Thread(target=self.leases.run, daemon=True)
        asking.start()
        leased_tasks = []
        while (leased := self.leases.next_task()) is not None:
            leased_tasks.append(leased)
            self.leases.release_slot(leased)
        return leased_tasks

    def trainer(
        self,
        network: LinearNetwork,
        parameters: ParameterClient,
        *,
        rate: float = 0.01,
        skip_nan: bool = False,
        executor: SerialExecutor | None = None,
    ) -> Trainer:
        return Trainer(
            network,
            lambda step: rate,
            parameters,
            self.streams["training"],
            self.leases,
            self.progress,
            self.gate,
            skip_nan=skip_nan,
            training_callbacks=NoCallbacks(),
            executor=executor,
        )

    def close(self) -> None:
        self._closing.close()


def connected(address: str) -> BulkClient:
    return BulkClient(address, TOKEN, timeout=10)


def gradient_push(
    lease: int,
    step: int,
    learning_rate: float = 0.0,
    weight: float = 0.0,
    *,
    slab: np.ndarray | None = None,
    rows: RowsByTable | None = None,
    **fields: Any,
) -> StepPush:
    """A push of these gradients; without a slab one that applies nothing."""
    gradients = None if slab is None else PushGradients(slab, rows or {}, learning_rate, weight)
    return StepPush(lease, step, gradients, **fields)
