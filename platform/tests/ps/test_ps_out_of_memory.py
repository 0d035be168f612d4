"""Memory runs out: a refusal names what there is none for and what helps; no value of half a push is given away."""

from __future__ import annotations

import importlib.util
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.text_keys import missing_keys

from edl.api.strategy import Strategy
from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.core.partition import initial_placement
from edl.numerics import numpy_table
from edl.numerics.memory_errors import OUT_OF_MEMORY_HINT, OutOfMemoryError, PartialUpdateError
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.parameter_store import FlatParameters, PushGradients, RowBatch
from edl.ps.applied_steps import AdmissionOutcome, PushId
from edl.ps.bulk_handler import BulkRequestHandler
from edl.ps.messages import MasterAttachment
from edl.ps.model_state import NATIVE_STORE, NUMPY_STORE, StoreFactory
from edl.ps.parameter_server import ParameterServer
from edl.ps.push_updates import PendingPush
from edl.ps.shard_writer import ShardWriter
from edl.ps.sync_updates import merge_gradients
from edl.storage.checkpoint_manifest import CheckpointManifest, ShardInfo, commit_checkpoint, cut_directory
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_connection import FrameKind, ReceivedFrame

USERS, ITEMS = (TableSpec(name, rows, 8, {"name": "zeros"}, seed=1) for name, rows in (("users", 0), ("items", 1000)))
DECLARED = ModelDeclaration((VariableSpec("w", (2,)),), (USERS, ITEMS), OptimizerSpec("adagrad"), "model")
LEASE = (1 << 32) + 1
HERE = [NUMPY_STORE, *([NATIVE_STORE] if importlib.util.find_spec("edl.numerics._native") else [])]
Start = Callable[..., ParameterServer]


def none_left(*_: object, **__: object) -> Any:
    raise MemoryError


def push(**ids: range) -> PushGradients:
    rows = {name: RowBatch(np.array(each, np.int64), np.ones((len(each), 8), np.float32)) for name, each in ids.items()}
    return PushGradients(np.ones(2, np.float32), rows, 0.5, 1.0)


@pytest.fixture(params=HERE)
def server(request: pytest.FixtureRequest) -> ParameterServer:
    """A server that holds DECLARED."""
    parameter_server = ParameterServer(0, ShardWriter(0), store_factory=StoreFactory(request.param), push_timeout=0.0)
    parameter_server.attach_master(MasterAttachment(1, 0))
    parameter_server.declare_model(DECLARED, np.zeros(2, np.float32))
    return parameter_server


def table(server: ParameterServer, name: str) -> Any:
    return server.collect_statistics().tables[name]


def sent(server: ParameterServer, step: int, gradients: PushGradients) -> AdmissionOutcome:
    return server.push(PendingPush(PushId(LEASE, step), server.require_declaration(), gradients))[0]


def test_a_table_that_cannot_be_held_is_refused_by_name_and_nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ParameterServer(0, ShardWriter(0), store_factory=StoreFactory(NUMPY_STORE))
    server.attach_master(MasterAttachment(1, 0))
    with monkeypatch.context() as little:
        little.setattr(numpy_table.NumpyTable, "__init__", none_left)
        with pytest.raises(OutOfMemoryError) as refused:
            server.declare_model(DECLARED, np.zeros(2, np.float32))
    assert not missing_keys(
        str(refused.value),
        "memory",
        "parameter server",
        "table 'users' (any id x 8)",
        " ".join(OUT_OF_MEMORY_HINT.split()),
    )
    assert server.declare_model(DECLARED, np.zeros(2, np.float32)) == (0, True)


def test_dense_values_that_cannot_be_held_are_refused_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ParameterServer(0, ShardWriter(0), store_factory=StoreFactory(NUMPY_STORE))
    server.attach_master(MasterAttachment(1, 0))
    with monkeypatch.context() as little:
        little.setattr(FlatParameters, "__init__", none_left)
        with pytest.raises(OutOfMemoryError, match=r"2 dense values.*slot[\s\S]*ps\.count"):
            server.declare_model(DECLARED, np.zeros(2, np.float32))
    assert server.declare_model(DECLARED, np.zeros(2, np.float32)) == (0, True)


@pytest.mark.parametrize("fails_after", range(4))
def test_a_numpy_table_that_cannot_grow_refuses_a_push_before_anything_of_it_is_in(
    fails_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``fails_after``: of its arrays that have grown: ids, values, steps and slots."""
    server = ParameterServer(0, ShardWriter(0), store_factory=StoreFactory(NUMPY_STORE))
    server.attach_master(MasterAttachment(1, 0))
    server.declare_model(DECLARED, np.zeros(2, np.float32))
    left, extended = iter(range(fails_after)), numpy_table._copy_extended

    def extend(array: np.ndarray, capacity: int) -> np.ndarray:
        return extended(array, capacity) if next(left, None) is not None else none_left()

    with monkeypatch.context() as little:
        little.setattr(numpy_table, "_copy_extended", extend)
        with pytest.raises(OutOfMemoryError, match=r"300 rows of table 'users' \(any id x 8\)[\s\S]*ps\.max_rows"):
            sent(server, 0, push(items=range(3), users=range(300)))
    slab = np.empty(2, np.float32)
    assert server.pull(server.require_declaration(), slab) == 0
    np.testing.assert_array_equal(slab, 0)
    assert (len(table(server, "users")), len(table(server, "items"))) == (0, 0)
    assert sent(server, 0, push(items=range(3), users=range(300))) is AdmissionOutcome.ADMITTED
    assert server.pull(server.require_declaration(), slab) == 1


def test_after_half_a_push_nothing_is_given_away_until_a_checkpoint_is_restored(
    server: ParameterServer, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    assert sent(server, 0, push(users=range(3))) is AdmissionOutcome.ADMITTED
    server.take_snapshot(1, 1, directory := cut_directory(tmp_path, 1), pin=True)
    saved = server.wait_until_saved(1, 1, 10.0)
    shard = ShardInfo(saved.file, saved.size, int(saved.checksum, 16))
    commit_checkpoint(directory, CheckpointManifest(1, 1, "2026-01-01T00:00:00+00:00", (shard,), {}))
    declaration = server.require_declaration()
    with monkeypatch.context() as little:
        little.setattr(type(table(server, "users")), "apply_gradients", none_left)
        with pytest.raises(PartialUpdateError, match=r"push.*4 rows of table 'users' \(any id x 8\)"):
            sent(server, 1, push(users=range(4)))
    for call in (
        lambda: server.pull(declaration, np.empty(2, np.float32)),
        lambda: server.pull_rows({"users": np.array([1])}),
        lambda: server.scan_rows("users", 0, 9),
        lambda: server.push(PendingPush(PushId(LEASE, 1), declaration, push(users=range(4)))),
        lambda: server.take_snapshot(1, 2, None, pin=True),
        server.require_declaration,
    ):
        with pytest.raises(PartialUpdateError, match=r"4 rows of table 'users' \(any id x 8\)"):
            call()
    assert server.pinned_cut(1).snapshot.read_rows("users", np.array([1])).any(), "what was taken before is whole"

    server.attach_master(
        MasterAttachment(2, 0, restore_directory=directory, last_finished_cut=1, slot_owners=initial_placement(1))
    )
    slab = np.empty(2, np.float32)
    assert server.pull(server.require_declaration(), slab) == 1
    assert len(table(server, "users")) == 3


def test_a_read_or_a_copy_that_there_is_no_memory_for_is_refused_and_the_server_goes_on(
    server: ParameterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sent(server, 0, push(users=range(3))) is AdmissionOutcome.ADMITTED
    kind = type(table(server, "users"))
    with monkeypatch.context() as little:
        little.setattr(kind, "read", none_left)
        with pytest.raises(OutOfMemoryError, match=r"2 rows of table 'users' \(any id x 8\)"):
            server.pull_rows({"users": np.array([1, 2])})
        little.setattr(kind, "take_snapshot", none_left)
        with pytest.raises(OutOfMemoryError, match=r"2 dense values, table 'users' \(any id x 8\)"):
            server.take_snapshot(1, 1, None, pin=True)
        little.setattr(FlatParameters, "preallocate_copy", none_left)
        with pytest.raises(OutOfMemoryError, match="2 dense values"):
            server.prepare_cut(1)
    assert server.take_snapshot(1, 1, None, pin=True).version == 1
    assert server.pull_rows({"users": np.array([1, 2])})[0].all()


def test_a_checkpoint_that_there_is_no_memory_for_leaves_what_was_held(
    server: ParameterServer, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    assert sent(server, 0, push(users=range(3))) is AdmissionOutcome.ADMITTED
    server.take_snapshot(1, 1, directory := cut_directory(tmp_path, 1), pin=False)
    saved = server.wait_until_saved(1, 1, 10.0)
    commit_checkpoint(
        directory, CheckpointManifest(1, 1, "", (ShardInfo(saved.file, saved.size, int(saved.checksum, 16)),), {})
    )
    assert sent(server, 1, push(users=range(5))) is AdmissionOutcome.ADMITTED
    for what, owner, name in (
        (r"3 rows of table 'users' \(any id x 8\)", type(table(server, "users")), "load"),
        (f"its part of the checkpoint {directory}", sys.modules["edl.ps.shard_restore"], "load_owned_part"),
    ):
        with monkeypatch.context() as little:
            little.setattr(owner, name, none_left)
            with pytest.raises(OutOfMemoryError, match=f"for {what}\n"):
                server.attach_master(
                    MasterAttachment(
                        2, 0, restore_directory=directory, last_finished_cut=1, slot_owners=initial_placement(1)
                    )
                )
        assert server.pull(server.require_declaration(), np.empty(2, np.float32)) == 2
        assert len(table(server, "users")) == 5


def test_a_round_that_there_is_no_memory_to_put_together_is_refused_to_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where no table is at fault, the refusal says how large the request was."""
    server = ParameterServer(0, ShardWriter(0), store_factory=StoreFactory(NUMPY_STORE), strategy=Strategy(mode="sync"))
    server.attach_master(MasterAttachment(1, 0))
    server.declare_model(DECLARED, np.zeros(2, np.float32))
    monkeypatch.setattr(f"edl.ps.sync_updates.{merge_gradients.__name__}", none_left)
    head = pb.Push(lease=LEASE, learning_rate=0.5, weight=1).SerializeToString()
    with pytest.raises(OutOfMemoryError, match=f"for a PUSH of {len(head) + 8} bytes\n"):
        BulkRequestHandler(server)(ReceivedFrame(FrameKind.PUSH, head, memoryview(bytes(8))))
    assert server.pull(server.require_declaration(), np.empty(2, np.float32)) == 0


REAL = """
import resource, sys
import numpy as np
from edl.api.errors import RefusedError
from edl.ps.model_state import StoreFactory
from edl.numerics.parameter_store import PushGradients
from edl.numerics.parameter_store import RowBatch
from edl.ps.model_state import ModelState
from edl.api.tables import TableSpec
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec

users = TableSpec("users", 0, 64, {"name": "zeros"}, seed=1)
contents = ModelState(StoreFactory(sys.argv[1]))
contents.declare_model(ModelDeclaration((), (users,), OptimizerSpec("adam"), "model"), np.empty(0, np.float32))
batch, dense = 4000, np.empty(0, np.float32)
values = np.ones((batch, 64), np.float32)
push = lambda at: PushGradients(dense, {"users": RowBatch(np.arange(at, at + batch), values)}, 0.1, 1.0)
contents.apply_push(push(0))
used = 4096 * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), resource.RLIM_INFINITY))
try:
    for at in range(batch, 1000 * batch, batch):
        contents.apply_push(push(at))
except RefusedError as error:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(type(error).__name__, contents.version * batch - len(contents.tables["users"]), error.message)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit of addresses is Linux's")
@pytest.mark.parametrize("store", HERE)
def test_a_process_without_memory_says_which_table_wants_it(store: str) -> None:
    assert resource.getrlimit(resource.RLIMIT_AS)[1] == resource.RLIM_INFINITY
    ran = subprocess.run([sys.executable, "-c", REAL, store], capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    kind, beyond, message = ran.stdout.split(maxsplit=2)
    assert "4000 rows of table 'users' (any id x 64)" in message
    assert kind == ("OutOfMemoryError" if store == NUMPY_STORE else "PartialUpdateError")
    assert store == NATIVE_STORE or beyond == "0", "rows that no push that is in has stored"
