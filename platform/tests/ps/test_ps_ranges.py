"""Numbers and paths that no EDL worker or master sends are refused by name, and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ps.conftest import PsHarness

from edl.api.variables import VariableSpec
from edl.core.ledger import Lease, LeaseRevocation
from edl.core.partition import initial_placement
from edl.core.record_ranges import RecordRange
from edl.core.revocation import settle_leases
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.ps.bulk_handler import BulkRequestHandler
from edl.ps.control_service import PsControlService
from edl.ps.parameter_server import ParameterServer
from edl.ps.shard_writer import ShardWriter
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_connection import FrameKind, ReceivedFrame
from edl.transport.peer_errors import BulkRefusedError, PeerRefusedError

LEASE = (1 << 32) + 1
HUGE = 1 << 62


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"step": 64}, "a lease has the steps 0 to 63"),
        ({"step": HUGE - 1}, "a lease has the steps 0 to 63"),
        ({"step": HUGE}, "Push.step"),
        ({"step": -1}, "Push.step: -1"),
        ({"lease": -1}, "Push.lease: -1"),
        ({"round": [pb.Share(lease=LEASE, step=64)]}, "a lease has the steps 0 to 63"),
        ({"worker": -1}, "Push.worker: -1"),
        ({"version": -HUGE}, "Push.version"),
        ({"next": -1}, "Push.next: -1"),
    ],
    ids=str,
)
def test_a_push_of_a_step_that_no_lease_has_is_refused(fields: dict[str, object], says: str) -> None:
    plane = BulkRequestHandler(ParameterServer(0, ShardWriter(0)), max_lease_steps=64)
    head = pb.Push(lease=LEASE, empty=True)
    head.MergeFrom(pb.Push(**fields))  # type: ignore[arg-type]
    with pytest.raises(PeerRefusedError, match=says):
        plane(ReceivedFrame(FrameKind.PUSH, head.SerializeToString(), memoryview(b"")))


def test_a_refused_step_closes_none_of_its_lease(start: Callable[..., PsHarness]) -> None:
    ps = start()
    ps.attach()
    worker = ps.worker()
    worker.declare({"w": np.zeros(2, np.float32)})
    with pytest.raises(BulkRefusedError, match="steps 0 to"):
        worker.push(LEASE, HUGE - 1, [1, 1])
    assert worker.push(LEASE, 0, [1, 1])[0].outcome == pb.Pushed.APPLIED
    assert ps.revoke(LEASE) == {LEASE: 1}


def declared(shape: tuple[int, ...]) -> ModelDeclaration:
    return ModelDeclaration((VariableSpec("w", shape),), (), OptimizerSpec("sgd"), "model")


@pytest.mark.parametrize("shape", [(0, HUGE), (HUGE, 0), (1 << 31, 1 << 31), (-1,), (1,) * 33], ids=str)
def test_a_variable_that_no_array_can_be_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(Exception, match="variable 'w' has the shape"):
        declared(shape)


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (3, 4), (1 << 32,)], ids=str)
def test_a_variable_that_an_array_can_be_is_taken(shape: tuple[int, ...]) -> None:
    assert declared(shape).flat_size >= 0


def control(folder: Path) -> PsControlService:
    checkpoints = folder / "run" / "checkpoints"
    checkpoints.mkdir(parents=True)
    return PsControlService(ParameterServer(0, ShardWriter(0)), "uid", checkpoints)


@pytest.mark.parametrize(
    "path", ["/etc", "{run}", "{run}/checkpoints", "{run}/checkpoints/../../cut-1", "{run}/checkpoints/other", "cut-1"]
)
def test_a_checkpoint_outside_of_the_run_is_neither_read_nor_written(tmp_path: Path, path: str) -> None:
    plane, path = control(tmp_path), path.format(run=tmp_path / "run")
    with pytest.raises(PeerRefusedError, match="checkpoint of this run"):
        plane.Attach(pb.AttachRequest(incarnation=1, restore=path, slots=initial_placement(1)), None)
    plane.Attach(pb.AttachRequest(incarnation=1), None)
    plane.Hold(pb.HoldRequest(incarnation=1, cut=1), None)
    with pytest.raises(PeerRefusedError, match="checkpoint of this run"):
        plane.Snapshot(pb.SnapshotRequest(incarnation=1, cut=1, checkpoint=path), None)
    assert [each.name for each in (tmp_path / "run").rglob("*")] == ["checkpoints"]


def test_a_link_out_of_the_run_is_none_of_its_checkpoints(tmp_path: Path) -> None:
    plane = control(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "run" / "checkpoints" / "cut-00000001"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PeerRefusedError, match="checkpoint of this run"):
        plane.Attach(pb.AttachRequest(incarnation=1, restore=str(link), slots=initial_placement(1)), None)


@pytest.mark.parametrize(
    "request_",
    [{"incarnation": HUGE}, {"incarnation": 0}, {"incarnation": 1, "cut": -1}, {"incarnation": 1, "cut": HUGE}],
)
def test_a_master_that_cannot_be_is_refused(tmp_path: Path, request_: dict[str, int]) -> None:
    with pytest.raises(PeerRefusedError, match="incarnation"):
        control(tmp_path).Attach(pb.AttachRequest(**request_), None)  # type: ignore[arg-type]


def test_rows_are_not_placed_by_fewer_slots_than_there_are(tmp_path: Path) -> None:
    plane = control(tmp_path)
    path = str(tmp_path / "run" / "checkpoints" / "cut-00000001")
    with pytest.raises(PeerRefusedError, match="3 slots, not 256"):
        plane.Attach(pb.AttachRequest(incarnation=1, restore=path, slots=[0, 0, 0]), None)


def test_a_lease_has_no_more_steps_than_its_range() -> None:
    """A PS says how far a lease is, by what a worker pushed: the last range of a source is shorter than others."""
    revocation = LeaseRevocation("worker-0", (LEASE,), "gone", in_flight=False)
    revocation.waiting_ps = {"ps-0", "ps-1"}
    revocation.record_answer("ps-0", {LEASE: 64}, {LEASE: 0})
    revocation.record_answer("ps-1", {LEASE: 2}, {LEASE: 0})
    (settled,) = settle_leases(revocation, {LEASE: Lease(LEASE, RecordRange(0, "a", 0, 24), 8, "worker-0")})
    assert (settled.through, settled.partial, settled.repeated) == (2, 1, 8)
