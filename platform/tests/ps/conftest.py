"""A parameter server behind real sockets, in this process, and a small client for each plane."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edl.api.strategy import Strategy
from edl.ps.bulk_handler import BulkRequestHandler
from edl.ps.control_service import PsControlService
from edl.ps.parameter_server import ParameterServer
from edl.ps.shard_writer import ShardWriter
from edl.storage.checkpoint_manifest import CheckpointManifest, ShardInfo, commit_checkpoint, cut_directory
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_client import BulkClient
from edl.transport.bulk_connection import FrameKind
from edl.transport.bulk_server import BulkServer
from edl.transport.control_client import ControlChannel
from edl.transport.control_methods import PsControlMethods
from edl.transport.control_server import start_control_server
from edl.transport.edl_pb2_grpc import add_PsControlServicer_to_server

TOKEN = "the-token-of-these-tests"
INCARNATION = 1
TABLE = pb.Table(name="emb", rows=1000, dim=4, initializer=json.dumps({"name": "uniform", "minval": -1, "maxval": 1}))


class BulkWorker:
    """One bulk connection."""

    def __init__(self, address: str) -> None:
        self.client = BulkClient(address, TOKEN, timeout=30)

    def declare(self, variables: Mapping[str, np.ndarray], *, optimizer: str = "sgd", **changes: object) -> pb.Declared:
        head = pb.Declare(
            dense=[pb.Variable(name=n, shape=v.shape, statistic=n.startswith("stat")) for n, v in variables.items()],
            tables=[TABLE],
            optimizer=json.dumps({"name": optimizer, "hyperparameters": {}}),
            fingerprint="model",
        )
        for field, value in changes.items():
            setattr(head, field, value)
        body = [np.ascontiguousarray(value).data for value in variables.values()]
        return pb.Declared.FromString(self.client.request(FrameKind.DECLARE, head.SerializeToString(), body).meta)

    def pull(self, pin: int = 0) -> tuple[int, np.ndarray]:
        frame = self.client.request(FrameKind.PULL, pb.Pull(pin=pin).SerializeToString())
        return pb.Pulled.FromString(frame.meta).version, np.frombuffer(frame.body, np.float32).copy()

    def pull_rows(self, ids: Sequence[int], pin: int = 0) -> np.ndarray:
        head = pb.PullRows(pin=pin, tables=[pb.TableRows(name="emb", count=len(ids))])
        frame = self.client.request(FrameKind.PULL_ROWS, head.SerializeToString(), [np.array(ids, np.int64).data])
        return np.frombuffer(frame.body, np.float32).reshape(-1, TABLE.dim).copy()

    def scan(self, pin: int = 0, limit: int = 7) -> dict[int, np.ndarray]:
        rows: dict[int, np.ndarray] = {}
        cursor = 0
        while cursor != -1:
            head = pb.ScanRows(pin=pin, table="emb", cursor=cursor, limit=limit)
            frame = self.client.request(FrameKind.SCAN_ROWS, head.SerializeToString())
            reply = pb.ScannedRows.FromString(frame.meta)
            ids = np.frombuffer(frame.body[: 8 * reply.count], np.int64)
            values = np.frombuffer(frame.body[8 * reply.count :], np.float32).reshape(-1, TABLE.dim)
            rows |= {int(i): v.copy() for i, v in zip(ids, values, strict=True)}
            cursor = reply.cursor
        return rows

    def push(
        self,
        number: int,
        step: int,
        gradient: np.ndarray | Sequence[float],
        *,
        rows: tuple[Sequence[int], np.ndarray] | None = None,
        rate: float = 1.0,
        weight: float = 1.0,
        **fields: object,
    ) -> tuple[pb.Pushed, np.ndarray]:
        self.send_push(number, step, gradient, rows=rows, rate=rate, weight=weight, **fields)
        return self.receive_push()

    def send_push(
        self,
        number: int,
        step: int,
        gradient: np.ndarray | Sequence[float],
        *,
        rows: tuple[Sequence[int], np.ndarray] | None = None,
        rate: float = 1.0,
        weight: float = 1.0,
        **fields: object,
    ) -> None:
        """``fields`` are more of those of the head; ``empty`` sends no gradient."""
        head = pb.Push(incarnation=INCARNATION, lease=number, step=step, learning_rate=rate, weight=weight, pull=True)
        head.MergeFrom(pb.Push(**fields))  # type: ignore[arg-type]
        body = [] if head.empty else [np.asarray(gradient, np.float32).data]
        if rows is not None:
            head.tables.append(pb.TableRows(name="emb", count=len(rows[0])))
            body += [np.array(rows[0], np.int64).data, np.asarray(rows[1], np.float32).data]
        self.client.send(FrameKind.PUSH, head.SerializeToString(), body)

    def receive_push(self) -> tuple[pb.Pushed, np.ndarray]:
        frame = self.client.receive()
        return pb.Pushed.FromString(frame.meta), np.frombuffer(frame.body, np.float32).copy()


class PsHarness:
    """One parameter server; the methods are what a master does."""

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        index: int,
        *,
        writer: ShardWriter | None,
        patience: float,
        strategy: Strategy | None,
        checkpoints: Path | None,
    ) -> None:
        self.index = index
        self.server = ParameterServer(index, writer or ShardWriter(index), push_timeout=patience, strategy=strategy)
        self._stack = stack
        plane = BulkRequestHandler(self.server)
        self.bulk = BulkServer(
            f"unix:{folder}/{index}.blk", TOKEN, plane, max_body_bytes=1 << 26, on_disconnect=plane.handle_disconnect
        )
        self.bulk.start()
        stack.callback(self.bulk.stop)
        stack.callback(self.server.close)
        register = partial(add_PsControlServicer_to_server, PsControlService(self.server, f"uid-{index}", checkpoints))
        control = start_control_server(register, f"unix:{folder}/{index}.ctl", TOKEN, 4)
        stack.callback(control.stop)
        self.channel = stack.enter_context(ControlChannel(control.address, TOKEN))

    def worker(self) -> BulkWorker:
        worker = BulkWorker(self.bulk.address)
        self._stack.callback(worker.client.close)
        return worker

    def attach(self, incarnation: int = INCARNATION, **fields: object) -> pb.AttachReply:
        request = pb.AttachRequest(incarnation=incarnation, **fields)  # type: ignore[arg-type]
        return self.channel.call(PsControlMethods.Attach, request, timeout=10)

    def revoke(self, *leases: int, floor: int = 0, incarnation: int = INCARNATION) -> dict[int, int]:
        request = pb.RevokeRequest(incarnation=incarnation, leases=leases, floor=floor)
        return steps(self.channel.call(PsControlMethods.Revoke, request, timeout=10).applied)

    def prepare(self, cut: int, incarnation: int = INCARNATION) -> None:
        self.channel.call(PsControlMethods.Prepare, pb.PrepareRequest(incarnation=incarnation, cut=cut), timeout=10)

    def hold(self, cut: int) -> dict[int, int]:
        request = pb.HoldRequest(incarnation=INCARNATION, cut=cut)
        return steps(self.channel.call(PsControlMethods.Hold, request, timeout=10).applied)

    def snapshot(
        self,
        cut: int,
        directory: Path | None = None,
        *,
        pin: bool = False,
        within: Mapping[int, int] | None = None,
        floor: int = 0,
    ) -> pb.SnapshotReply:
        request = pb.SnapshotRequest(
            incarnation=INCARNATION,
            cut=cut,
            checkpoint=str(directory) if directory else "",
            pin=pin,
            floor=floor,
            within=[pb.LeaseStep(lease=lease, through=through) for lease, through in (within or {}).items()],
        )
        return self.channel.call(PsControlMethods.Snapshot, request, timeout=10)

    def saved(self, cut: int) -> pb.SavedReply:
        return self.channel.call(PsControlMethods.Saved, pb.SavedRequest(incarnation=INCARNATION, cut=cut), timeout=10)

    def release(self, cut: int) -> None:
        self.channel.call(PsControlMethods.Release, pb.ReleaseRequest(incarnation=INCARNATION, cut=cut), timeout=10)

    @staticmethod
    def checkpoint(servers: Sequence[PsHarness], cut: int, folder: Path) -> Path:
        """Take a cut on all PS and commit it, as a master does."""
        directory = cut_directory(folder, cut)
        for ps in servers:
            ps.snapshot(cut, directory)
        replies = [ps.saved(cut) for ps in servers]
        assert [reply.error for reply in replies] == [""] * len(replies)
        shards = tuple(ShardInfo(r.file, r.size, int(r.checksum, 16)) for r in replies)
        commit_checkpoint(directory, CheckpointManifest(cut=cut, version=0, created="", shards=shards, ledger={}))
        return directory

    def unpin(self, cut: int) -> None:
        self.channel.call(PsControlMethods.Unpin, pb.UnpinRequest(incarnation=INCARNATION, cut=cut), timeout=10)


def steps(applied: Iterable[pb.LeaseStep]) -> dict[int, int]:
    return {step.lease: step.through for step in applied}


@pytest.fixture
def start() -> Iterator[Callable[..., PsHarness]]:
    """Start parameter servers; they, their clients and workers end with the test."""
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="edl-ps") as folder:
        count = iter(range(100))

        def one(
            index: int = 0,
            *,
            writer: ShardWriter | None = None,
            patience: float = 20.0,
            strategy: Strategy | None = None,
            checkpoints: Path | None = None,
        ) -> PsHarness:
            own = Path(folder) / str(next(count))
            own.mkdir()
            return PsHarness(
                stack, own, index, writer=writer, patience=patience, strategy=strategy, checkpoints=checkpoints
            )

        yield one
