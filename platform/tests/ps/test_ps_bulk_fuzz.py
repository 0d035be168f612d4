"""Any frame to a parameter server: an answer or a refusal with its reason, bounded memory, and parameters untouched.

Memory is what Python and NumPy have taken, and what the native tables say that they have of the kernel.
"""

from __future__ import annotations

import importlib.util
import json
import math
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.examples import examples

from edl.api.errors import RefusedError
from edl.numerics.model_declaration import MAX_ROW_VALUES
from edl.ps.bulk_handler import BulkRequestHandler
from edl.ps.messages import MasterAttachment
from edl.ps.model_state import NATIVE_STORE, NUMPY_STORE, StoreFactory
from edl.ps.parameter_server import ParameterServer
from edl.ps.shard_writer import ShardWriter
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_connection import FrameKind, OutgoingFrame, ReceivedFrame
from edl.transport.bulk_server import refusal_frame

if importlib.util.find_spec("edl.numerics._native") is not None:
    from edl.numerics.native_table import NativeTable

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of gradients that are not finite

MANY = settings(
    deadline=None,
    max_examples=examples(120),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
LEASE = (1 << 32) + 1
DENSE, ROWS, DIM = 5, 1000, 4
UNIFORM = json.dumps({"name": "uniform", "minval": -1, "maxval": 1})
DECLARE = pb.Declare(
    dense=[pb.Variable(name="w", shape=[2, 2]), pb.Variable(name="stat", shape=[1], statistic=True)],
    tables=[pb.Table(name="emb", rows=ROWS, dim=DIM, initializer=UNIFORM)],
    optimizer=json.dumps({"name": "adagrad", "hyperparameters": {}}),
    fingerprint="model",
)
ANSWERS = {
    FrameKind.PUSH: FrameKind.PUSHED,
    FrameKind.PULL: FrameKind.PULLED,
    FrameKind.PULL_ROWS: FrameKind.ROWS,
    FrameKind.SCAN_ROWS: FrameKind.SCANNED,
    FrameKind.DECLARE: FrameKind.DECLARED,
}
HERE = [NUMPY_STORE, *([NATIVE_STORE] if importlib.util.find_spec("edl.numerics._native") else [])]
BOUND = 1 << 18
"""Bytes that a request may take of a server that holds little, beside a multiple of its own size."""
FACTOR = 200
"""An id of 8 bytes asks for DIM floats, and making their initial values takes some arrays of float64 meanwhile."""
MANY_ROWS = 1 << 26
"""Of a table whose index alone, 256 MiB in NumPy, would be told from any bound."""
SLOTS, FIRST_ROWS = 3, 256
"""Most slot variables that an optimizer has, and rows that a NumPy table has room for at first."""
ADDRESSES = 64 << 20
"""Bytes of addresses that a native table of few rows reserves at most; the kernel gives memory when they are used."""

counts = st.one_of(st.integers(0, 6), st.sampled_from([-1, -(2**63), 2**31, 2**61, 2**62, 2**63 - 1]))
numbers = st.one_of(st.integers(-3, 8), st.integers(-(2**63), 2**63 - 1))
names = st.sampled_from(["emb", "emb", "emb", "other", "", "é"])
parts = st.lists(st.builds(pb.TableRows, name=names, count=counts), max_size=3)
floats = st.floats(width=32)
pushes = st.builds(
    pb.Push,
    lease=st.one_of(st.just(LEASE), numbers),
    step=numbers,
    learning_rate=floats,
    weight=floats,
    pull=st.booleans(),
    empty=st.booleans(),
    tables=parts,
)
pulls = st.builds(pb.Pull, pin=st.one_of(st.just(0), numbers))
row_pulls = st.builds(pb.PullRows, pin=st.one_of(st.just(0), numbers), tables=parts)
scans = st.builds(pb.ScanRows, pin=st.one_of(st.just(0), numbers), table=names, cursor=numbers, limit=numbers)
texts = st.one_of(
    st.sampled_from(
        [
            "", "[]", "null", "3", '"sgd"', "{}", "[" * 5_000, "9" * 5_000, "NaN", UNIFORM, DECLARE.optimizer,
            '{"name": "constant", "value": 1e999}', '{"name": "constant", "value": NaN}',
            '{"name": "constant", "value": 1' + 400 * "0" + "}", '{"name": "constant", "value": true}',
            '{"name": ["sgd"], "hyperparameters": {}}', '{"name": "sgd", "hyperparameters": 3}',
            '{"name": "adam", "hyperparameters": {"beta_1": "x"}}',
            '{"name": "adam", "hyperparameters": {"beta_1": NaN}}',
            '{"name": "sgd", "hyperparameters": {}, "undecayed": [[]]}',
        ]
    ),
    st.text(max_size=20),
)  # fmt: skip
lengths = st.one_of(st.integers(0, 3), st.sampled_from([-1, -(2**63), 2**31, 2**62, 2**63 - 1]))
declarations = st.builds(
    pb.Declare,
    dense=st.lists(
        st.builds(pb.Variable, name=st.text(max_size=2), shape=st.lists(lengths, max_size=3), statistic=st.booleans()),
        max_size=3,
    ),
    tables=st.lists(
        st.builds(
            pb.Table,
            name=names,
            rows=st.one_of(st.just(ROWS), numbers),
            dim=st.one_of(st.just(DIM), numbers),
            initializer=texts,
            seed=numbers,
        ),
        max_size=2,
    ),
    optimizer=texts,
    fingerprint=st.text(max_size=3),
)
heads = st.one_of(
    st.tuples(st.just(FrameKind.PUSH), pushes),
    st.tuples(st.just(FrameKind.PULL), pulls),
    st.tuples(st.just(FrameKind.PULL_ROWS), row_pulls),
    st.tuples(st.just(FrameKind.SCAN_ROWS), scans),
    st.tuples(st.just(FrameKind.DECLARE), declarations),
)


@st.composite
def bodies(draw: st.DrawFn, kind: FrameKind, head: pb.Push | pb.PullRows) -> bytes:
    """Often of the size that the head says, with ids that are often right."""
    counts = (
        [min(max(part.count, 0), 8) for part in getattr(head, "tables", [])] if kind is not FrameKind.DECLARE else []
    )
    ids = st.one_of(st.integers(0, ROWS - 1), st.integers(0, ROWS - 1), st.integers(-(2**63), 2**63 - 1))
    body = bytes(4 * DENSE) if kind is FrameKind.PUSH and draw(st.booleans()) else b""
    for count in counts:
        wanted = draw(st.lists(ids, min_size=count, max_size=count))
        body += np.array(wanted, np.int64).tobytes()
        if kind is FrameKind.PUSH:
            body += draw(st.binary(min_size=4 * DIM, max_size=4 * DIM)) * count
    return body + draw(st.sampled_from([b"", b"", b"", b"\0", bytes(8)]))


@st.composite
def sound(draw: st.DrawFn) -> tuple[pb.Declare, bytes]:
    """Declarations that can be, of small and of large tables, with optimizers of no to three slot variables."""
    shapes = draw(st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=3))
    tables = draw(
        st.lists(
            st.tuples(st.sampled_from([0, 1, ROWS, MANY_ROWS]), st.sampled_from([1, DIM, MAX_ROW_VALUES])), max_size=3
        )
    )
    named = draw(st.sampled_from([("sgd", {}), ("adam", {}), ("rmsprop", {"centered": True, "momentum": 0.5})]))
    head = pb.Declare(
        dense=[pb.Variable(name=f"w{n}", shape=shape) for n, shape in enumerate(shapes)],
        tables=[pb.Table(name=f"t{n}", rows=r, dim=dim, initializer=UNIFORM) for n, (r, dim) in enumerate(tables)],
        optimizer=json.dumps({"name": named[0], "hyperparameters": named[1]}),
        fingerprint="model",
    )
    return head, bytes(4 * sum(math.prod(shape) for shape in shapes))


@st.composite
def requests(draw: st.DrawFn) -> ReceivedFrame:
    """Frames whose heads are of their kind, of which some were damaged on the way."""
    kind, head = draw(heads)
    meta = bytearray(head.SerializeToString())
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 3]))):
        if meta:
            meta[draw(st.integers(0, len(meta) - 1))] = draw(st.integers(0, 255))
    body = draw(st.one_of(bodies(kind, head), st.binary(max_size=120)))
    return ReceivedFrame(kind, bytes(meta), memoryview(body))


anything = st.builds(
    lambda kind, meta, body: ReceivedFrame(kind, meta, memoryview(body)),
    st.sampled_from(FrameKind),
    st.binary(max_size=60),
    st.binary(max_size=120),
)


@dataclass(frozen=True)
class BulkPlane:
    """The bulk plane of a server, to which a master has attached."""

    server: ParameterServer
    bulk: BulkRequestHandler
    store: str

    def __call__(self, request: ReceivedFrame) -> OutgoingFrame:
        return self.bulk(request)

    def native(self) -> tuple[int, int]:
        """Bytes that native tables have, of memory and of addresses, as they say exactly."""
        if self.store == NUMPY_STORE:
            return 0, 0
        tables = self.server.collect_statistics().tables.values()
        reports = [table.memory_usage for table in tables if isinstance(table, NativeTable)]
        return sum(each.resident for each in reports), sum(each.reserved for each in reports)

    def declared(self, request: ReceivedFrame) -> int:
        """Bytes of the arrays that a declaration asks for by numbers: native tables have none before the first push."""
        if self.store == NATIVE_STORE:
            return 0
        tables = pb.Declare.FromString(request.meta).tables
        return sum(4 * table.rows + FIRST_ROWS * (16 + 4 * table.dim * (1 + SLOTS)) for table in tables)


def plane(store: str) -> BulkPlane:
    server = ParameterServer(0, ShardWriter(0), store_factory=StoreFactory(store), push_timeout=0.0)
    server.attach_master(MasterAttachment(1, 0, slot_owners=[0] * 256))
    return BulkPlane(server, BulkRequestHandler(server), store)


@pytest.fixture(params=HERE)
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def loaded_plane(store: str) -> BulkPlane:
    return loaded_bulk_plane(store)


def loaded_bulk_plane(store: str) -> BulkPlane:
    """A server that holds DECLARE's model, with some rows."""
    server = plane(store)
    server(frame(FrameKind.DECLARE, DECLARE, bytes(4 * DENSE)))
    server(push(0, [1, 2, 999]))
    return server


@pytest.fixture(autouse=True, scope="module")
def traced_memory() -> Iterator[None]:
    for store in HERE:
        contents(loaded_bulk_plane(store))  # imports what a first request does: no memory of that request
    tracemalloc.start()
    yield
    tracemalloc.stop()


def frame(kind: FrameKind, head: pb.Push | pb.Declare | pb.PullRows, body: bytes = b"") -> ReceivedFrame:
    return ReceivedFrame(kind, head.SerializeToString(), memoryview(body))


def push(step: int, ids: list[int]) -> ReceivedFrame:
    """One that is right."""
    parts = [pb.TableRows(name="emb", count=len(ids))]
    head = pb.Push(lease=LEASE, step=step, learning_rate=0.5, weight=1, tables=parts)
    rows = np.array(ids, np.int64).tobytes() + np.ones((len(ids), DIM), np.float32).tobytes()
    return frame(FrameKind.PUSH, head, bytes(4 * DENSE) + rows)


def answer(server: BulkPlane, request: ReceivedFrame) -> OutgoingFrame:
    """What a bulk server sends for it; anything but a refusal would end the connection as a failure inside."""
    resident_before, _ = server.native()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        reply = server(request)
    except RefusedError as refused:
        reply = refusal_frame(refused)
    taken_bytes = tracemalloc.get_traced_memory()[1] - before
    resident, reserved = server.native()
    bound = BOUND + FACTOR * (len(request.meta) + request.body.nbytes)
    if reply.kind is FrameKind.DECLARED:
        bound += server.declared(request)
    native = max(0, resident - resident_before)
    assert taken_bytes + native <= bound, f"{taken_bytes} bytes were taken, and {native} of native memory"
    assert reserved <= ADDRESSES * len(server.server.collect_statistics().tables)
    assert reply.kind in (FrameKind.REFUSED, ANSWERS.get(request.kind))
    return reply


@MANY
@given(st.data())
def test_a_frame_is_answered_or_refused_with_a_reason(loaded_plane: BulkPlane, data: st.DataObject) -> None:
    for request in data.draw(st.lists(st.one_of(requests(), anything), min_size=1, max_size=6)):
        answer(loaded_plane, request)
    for kind, head in ((FrameKind.PULL, pb.Pull()), (FrameKind.SCAN_ROWS, pb.ScanRows(table="emb", limit=5))):
        assert answer(loaded_plane, frame(kind, head)).kind is not FrameKind.REFUSED, "it serves on"


@MANY
@given(requests())
def test_a_server_that_holds_nothing_is_as_firm(store: str, request_: ReceivedFrame) -> None:
    answer(plane(store), request_)


@MANY
@given(st.tuples(declarations, st.binary(max_size=64)))
def test_what_is_declared_can_be_held_or_is_refused(store: str, given_: tuple[pb.Declare, bytes]) -> None:
    """A declaration that is taken makes a server that answers."""
    server = plane(store)
    if answer(server, frame(FrameKind.DECLARE, *given_)).kind is FrameKind.DECLARED:
        serves(server, given_[0])


@MANY
@given(sound())
@example((DECLARE, bytes(4 * DENSE)))
def test_what_can_be_held_takes_no_more_memory_than_it_declares(store: str, given_: tuple[pb.Declare, bytes]) -> None:
    server = plane(store)
    assert answer(server, frame(FrameKind.DECLARE, *given_)).kind is FrameKind.DECLARED
    serves(server, given_[0])


def serves(server: BulkPlane, head: pb.Declare) -> None:
    for table in head.tables:
        request = pb.PullRows(tables=[pb.TableRows(name=table.name, count=1)])
        rows = np.frombuffer(server(frame(FrameKind.PULL_ROWS, request, bytes(8))).buffers[0], np.float32)
        assert len(rows) == table.dim
        assert np.isfinite(rows).all()


@MANY
@given(st.lists(st.lists(st.integers(0, ROWS - 1), max_size=60), max_size=6))
@example([list(range(start, start + 60)) for start in range(0, 900, 60)])
@example([[]])
def test_rows_that_are_stored_take_a_multiple_of_what_is_pushed(store: str, pushes: list[list[int]]) -> None:
    server = plane(store)
    server(frame(FrameKind.DECLARE, DECLARE, bytes(4 * DENSE)))
    for step, ids in enumerate(pushes):
        assert answer(server, push(step, ids)).kind is FrameKind.PUSHED


@MANY
@given(requests())
def test_what_is_refused_has_changed_nothing(loaded_plane: BulkPlane, request_: ReceivedFrame) -> None:
    before = contents(loaded_plane)
    if answer(loaded_plane, request_).kind is FrameKind.REFUSED:
        assert contents(loaded_plane) == before


def contents(server: BulkPlane) -> list[bytes]:
    frames = frame(FrameKind.PULL, pb.Pull()), frame(FrameKind.SCAN_ROWS, pb.ScanRows(table="emb", limit=ROWS))
    return [
        part for request in frames for reply in [server(request)] for part in (reply.meta, *map(bytes, reply.buffers))
    ]
