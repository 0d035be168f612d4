"""Any frame to a parameter server: an answer or a refusal with its reason, bounded memory, and parameters untouched."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edl.core.errors import RefusedError
from edl.ps.bulk_plane import BulkPlane
from edl.ps.conversation import Attachment
from edl.ps.parameter_server import ParameterServer
from edl.ps.shard_writer import ShardWriter
from edl.rpc import edl_pb2 as pb
from edl.rpc.bulk import Answer, Frame, Kind
from edl.rpc.bulk_server import refusal

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of gradients that are not finite

MANY = settings(
    deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
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
    Kind.PUSH: Kind.PUSHED,
    Kind.PULL: Kind.PULLED,
    Kind.PULL_ROWS: Kind.ROWS,
    Kind.SCAN_ROWS: Kind.SCANNED,
    Kind.DECLARE: Kind.DECLARED,
}
BOUND = 1 << 18
"""Bytes that a request may take of a server that holds little, beside a multiple of its own size."""
FACTOR = 200
"""An id of 8 bytes asks for DIM floats, and making their initial values takes some arrays of float64 meanwhile."""

counts = st.one_of(st.integers(0, 6), st.sampled_from([-1, -(2**63), 2**31, 2**61, 2**62, 2**63 - 1]))
numbers = st.one_of(st.integers(-3, 8), st.integers(-(2**63), 2**63 - 1))
names = st.sampled_from(["emb", "emb", "emb", "other", "", "é"])
parts = st.lists(st.builds(pb.TableRows, name=names, count=counts), max_size=3)
floats = st.floats(width=32)
pushes = st.builds(
    pb.Push,
    lease=st.one_of(st.just(LEASE), numbers),
    step=numbers,
    cut=st.one_of(st.just(0), numbers),
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
    st.tuples(st.just(Kind.PUSH), pushes),
    st.tuples(st.just(Kind.PULL), pulls),
    st.tuples(st.just(Kind.PULL_ROWS), row_pulls),
    st.tuples(st.just(Kind.SCAN_ROWS), scans),
    st.tuples(st.just(Kind.DECLARE), declarations),
)


@st.composite
def bodies(draw: st.DrawFn, kind: Kind, head: pb.Push | pb.PullRows) -> bytes:
    """Often of the size that the head says, with ids that are often right."""
    counts = [min(max(part.count, 0), 8) for part in getattr(head, "tables", [])] if kind is not Kind.DECLARE else []
    ids = st.one_of(st.integers(0, ROWS - 1), st.integers(0, ROWS - 1), st.integers(-(2**63), 2**63 - 1))
    body = bytes(4 * DENSE) if kind is Kind.PUSH and draw(st.booleans()) else b""
    for count in counts:
        wanted = draw(st.lists(ids, min_size=count, max_size=count))
        body += np.array(wanted, np.int64).tobytes()
        if kind is Kind.PUSH:
            body += draw(st.binary(min_size=4 * DIM, max_size=4 * DIM)) * count
    return body + draw(st.sampled_from([b"", b"", b"", b"\0", bytes(8)]))


@st.composite
def requests(draw: st.DrawFn) -> Frame:
    """Frames whose heads are of their kind, of which some were damaged on the way."""
    kind, head = draw(heads)
    meta = bytearray(head.SerializeToString())
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 3]))):
        if meta:
            meta[draw(st.integers(0, len(meta) - 1))] = draw(st.integers(0, 255))
    body = draw(st.one_of(bodies(kind, head), st.binary(max_size=120)))
    return Frame(kind, bytes(meta), memoryview(body))


anything = st.builds(
    lambda kind, meta, body: Frame(kind, meta, memoryview(body)),
    st.sampled_from(Kind),
    st.binary(max_size=60),
    st.binary(max_size=120),
)


def plane() -> BulkPlane:
    server = ParameterServer(0, ShardWriter(0), patience=0.0)
    server.attach(Attachment(1, 0, slots=[0] * 256))
    return BulkPlane(server)


@pytest.fixture
def holding() -> BulkPlane:
    """A server that holds DECLARE's model, with some rows."""
    found = plane()
    found(frame(Kind.DECLARE, DECLARE, bytes(4 * DENSE)))
    head = pb.Push(lease=LEASE, step=0, learning_rate=0.5, weight=1, tables=[pb.TableRows(name="emb", count=3)])
    ids, values = np.array([1, 2, 999], np.int64), np.ones((3, DIM), np.float32)
    found(frame(Kind.PUSH, head, bytes(4 * DENSE) + ids.tobytes() + values.tobytes()))
    return found


@pytest.fixture(autouse=True, scope="module")
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def frame(kind: Kind, head: pb.Push | pb.Declare | pb.PullRows, body: bytes = b"") -> Frame:
    return Frame(kind, head.SerializeToString(), memoryview(body))


def answer(server: BulkPlane, request: Frame) -> Answer:
    """What a bulk server sends for it; anything but a refusal would end the connection as a failure inside."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        given = server(request)
    except RefusedError as refused:
        given = refusal(refused)
    taken = tracemalloc.get_traced_memory()[1] - before
    bound = BOUND + FACTOR * (len(request.meta) + request.body.nbytes)
    assert taken <= bound or given.kind is Kind.DECLARED, f"{taken} bytes were taken"
    assert given.kind in (Kind.REFUSED, ANSWERS.get(request.kind))
    return given


@MANY
@given(st.data())
def test_a_frame_is_answered_or_refused_with_a_reason(holding: BulkPlane, data: st.DataObject) -> None:
    for request in data.draw(st.lists(st.one_of(requests(), anything), min_size=1, max_size=6)):
        answer(holding, request)
    for kind, head in ((Kind.PULL, pb.Pull()), (Kind.SCAN_ROWS, pb.ScanRows(table="emb", limit=5))):
        assert answer(holding, frame(kind, head)).kind is not Kind.REFUSED, "it serves on"


@MANY
@given(requests())
def test_a_server_that_holds_nothing_is_as_firm(request_: Frame) -> None:
    answer(plane(), request_)


@MANY
@given(declarations, st.binary(max_size=64))
@example(DECLARE, bytes(4 * DENSE))
def test_what_is_declared_can_be_held_or_is_refused(head: pb.Declare, body: bytes) -> None:
    """A declaration that is taken makes a server that answers."""
    server = plane()
    if answer(server, frame(Kind.DECLARE, head, body)).kind is Kind.REFUSED:
        return
    for table in head.tables:
        asked = pb.PullRows(tables=[pb.TableRows(name=table.name, count=1)])
        rows = np.frombuffer(server(frame(Kind.PULL_ROWS, asked, bytes(8))).buffers[0], np.float32)
        assert len(rows) == table.dim
        assert np.isfinite(rows).all()


@MANY
@given(requests())
def test_what_is_refused_has_changed_nothing(holding: BulkPlane, request_: Frame) -> None:
    before = contents(holding)
    if answer(holding, request_).kind is Kind.REFUSED:
        assert contents(holding) == before


def contents(server: BulkPlane) -> list[bytes]:
    asked = frame(Kind.PULL, pb.Pull()), frame(Kind.SCAN_ROWS, pb.ScanRows(table="emb", limit=ROWS))
    return [
        part for request in asked for given in [server(request)] for part in (given.meta, *map(bytes, given.buffers))
    ]
