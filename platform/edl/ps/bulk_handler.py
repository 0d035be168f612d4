"""Converts bulk frames of workers to calls of the parameter server, and its results to answers."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from edl.api.errors import BadInputError
from edl.api.tables import TableSpec
from edl.core.short_list import format_short_list
from edl.numerics.array_types import Floats, Ids
from edl.numerics.memory_errors import out_of_memory_error
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.parameter_store import PushGradients, RowBatch
from edl.ps.applied_steps import AdmissionOutcome, PushId
from edl.ps.parameter_server import ParameterServer
from edl.ps.push_updates import PendingPush
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_connection import FrameKind, OutgoingFrame, ReceivedFrame
from edl.transport.message_validation import parse_message
from edl.transport.peer_errors import PeerRefusedError
from edl.transport.spec_messages import json_object, table_from_message, variable_from_message

# --------------------------------------------------------------------------------------------------
# Parsing of bulk heads and bodies. Everything is checked against the declaration before it is used.
# Whether gradients are finite is not checked here: the worker knows the records that they came
# from, and decides.


_MAX_NAMED_VARIABLES = 3
"""Maximum number of variables named in an error message."""
MAX_LEASE_STEPS = 1 << 31
"""Default maximum number of steps in a lease."""


class BodyReader:
    """Reads the raw bytes of a frame from front to back.

    Args:
        data: the frame's body; valid only while the request is handled.

    Raises:
        PeerRefusedError: kind ``bad``, if the body is shorter or longer than the head says.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._offset = 0

    def read_floats(self, count: int, describe: Callable[[], str]) -> Floats:
        """Read float32 values without a copy; ``describe`` names them in errors."""
        start = self._advance(4 * count, describe)
        return np.frombuffer(self._data, np.float32, count, start)

    def read_ids(self, count: int, describe: Callable[[], str]) -> Ids:
        """Read int64 values; copied if unaligned, which NumPy does not report for empty arrays."""
        start = self._advance(8 * count, describe)
        values = np.frombuffer(self._data, np.int64, count, start)
        return values if count and values.flags.aligned else values.copy()

    def check_end(self) -> None:
        """Refuse trailing bytes."""
        if self._offset != self._data.nbytes:
            raise PeerRefusedError(
                f"the body has {self._data.nbytes} bytes; the head and the declared model need {self._offset}",
                kind="bad",
            )

    def _advance(self, size: int, describe: Callable[[], str]) -> int:
        start = self._offset
        # A count from the head may be negative or larger than the body: check it before NumPy sees
        # it.
        if size < 0 or start + size > self._data.nbytes:
            left = self._data.nbytes - start
            raise PeerRefusedError(
                f"{describe()} need {size} bytes; {left} of the body's {self._data.nbytes} are left", kind="bad"
            )
        self._offset = start + size
        return start


def parse_declaration(head: pb.Declare, body: memoryview) -> tuple[ModelDeclaration, Floats]:
    """Parse a worker's declaration and the initial parameters.

    Raises:
        PeerRefusedError: the body's size does not match the declared variables.
        BadInputError: a variable, table or optimizer is invalid.
    """
    model_declaration = ModelDeclaration(
        tuple(variable_from_message(message) for message in head.dense),
        tuple(table_from_message(message) for message in head.tables),
        OptimizerSpec.from_json(json_object(head.optimizer, "the optimizer")),
        head.fingerprint,
    )
    reader = BodyReader(body)
    initial_values = reader.read_floats(
        model_declaration.flat_size, lambda: f"the values of {_describe_variables(model_declaration)}"
    )
    reader.check_end()
    return model_declaration, initial_values


def parse_gradients(declaration: ModelDeclaration, head: pb.Push, body: memoryview) -> PushGradients | None:
    """Parse a push's gradients as views of the body; None for an empty push.

    Raises:
        PeerRefusedError: sizes, tables or ids do not match the declaration.
    """
    reader = BodyReader(body)
    if head.empty:
        reader.check_end()
        return None
    # These two are one number for the whole push: not finite, they would spoil every parameter.
    if not math.isfinite(head.learning_rate) or not math.isfinite(head.weight):
        raise PeerRefusedError(
            f"the learning rate {head.learning_rate} or the weight {head.weight} of the push is not finite",
            kind="bad",
        )
    flat_gradients = reader.read_floats(
        declaration.flat_size, lambda: f"gradients (float32) of {_describe_variables(declaration)}"
    )
    rows: dict[str, RowBatch] = {}
    for part in head.tables:
        table = _next_table(declaration, part.name, rows)
        count = part.count
        ids = _read_table_ids(reader, table, count)
        values = reader.read_floats(count * table.dim, partial(_describe_rows, count, "gradients (float32)", table))
        rows[table.name] = RowBatch(ids, values.reshape(-1, table.dim))
    reader.check_end()
    return PushGradients(flat_gradients, rows, head.learning_rate, head.weight)


def parse_row_ids(declaration: ModelDeclaration, tables: Iterable[pb.TableRows], body: memoryview) -> dict[str, Ids]:
    """The requested row ids by table, in the order of the request.

    Raises:
        PeerRefusedError: sizes, tables or ids do not match the declaration.
    """
    reader = BodyReader(body)
    ids: dict[str, Ids] = {}
    for part in tables:
        table = _next_table(declaration, part.name, ids)
        ids[table.name] = _read_table_ids(reader, table, part.count)
    reader.check_end()
    return ids


def _describe_variables(declaration: ModelDeclaration) -> str:
    """The dense variables with their shapes; the first ones by name."""
    named = [f"'{variable.name}' {list(variable.shape)}" for variable in declaration.variables]
    listed = format_short_list(named, _MAX_NAMED_VARIABLES)
    return f"{declaration.flat_size} values: {listed}" if named else "no variable"


def _describe_rows(count: int, what: str, table: TableSpec) -> str:
    return f"{count} {what} of {table.described}"


def _next_table(declaration: ModelDeclaration, name: str, previous_tables: Iterable[str]) -> TableSpec:
    if name in previous_tables:
        raise PeerRefusedError(f"the request names table '{name}' twice", kind="bad")
    return declaration.get_table(name)


def _read_table_ids(reader: BodyReader, table: TableSpec, count: int) -> Ids:
    """Read the next ids and check that they are in this table."""
    # An id outside the table can only be an error. Refuse it before memory is allocated for it.
    ids = reader.read_ids(count, partial(_describe_rows, count, "ids (int64)", table))
    # As uint64, negative ids are the largest.
    if table.rows and len(ids) and ids.view(np.uint64).max() >= table.rows:
        raise PeerRefusedError(
            f"{table.described} has ids 0 to {table.rows - 1}; the request has ids {ids.min()} to {ids.max()}",
            kind="bad",
        )
    return ids


MAX_REQUEST_BYTES = 1 << 34
"""Maximum size of a push or declaration, in bytes."""

# ``UNKNOWN_MASTER`` is missing: ``ParameterServer.push`` refuses such a push, and the worker
# retries it.
_WIRE_OUTCOMES = {
    AdmissionOutcome.ADMITTED: pb.Pushed.APPLIED,
    AdmissionOutcome.DUPLICATE: pb.Pushed.DUPLICATE,
    AdmissionOutcome.REVOKED: pb.Pushed.REVOKED,
    AdmissionOutcome.STALE: pb.Pushed.STALE,
}


class BulkRequestHandler:
    """The handler of a bulk server; each connection has its own thread.

    Args:
        server: the parameter server that answers.
        max_lease_steps: maximum number of steps in a lease of this job.
    """

    def __init__(self, server: ParameterServer, *, max_lease_steps: int = MAX_LEASE_STEPS) -> None:
        self._server = server
        self._max_lease_steps = max_lease_steps
        self._reply_buffer = _ReplyBuffer()
        self._connection = _ConnectionState()
        self._handlers: Mapping[FrameKind, Callable[[ReceivedFrame], OutgoingFrame]] = {
            FrameKind.PUSH: self._handle_push,
            FrameKind.PULL: self._handle_pull,
            FrameKind.PULL_ROWS: self._handle_pull_rows,
            FrameKind.SCAN_ROWS: self._handle_scan_rows,
            FrameKind.DECLARE: self._handle_declare,
        }

    def __call__(self, frame: ReceivedFrame) -> OutgoingFrame:
        """Answer one frame.

        Raises:
            RefusedError: of a kind that edl.proto lists; nothing was changed.
        """
        handler = self._handlers.get(frame.kind)
        if handler is None:
            raise PeerRefusedError(f"a parameter server does not accept {frame.kind.name} frames", kind="bad")
        try:
            return handler(frame)
        except BadInputError as error:
            raise PeerRefusedError(f"{frame.kind.name}: {error.message}", kind="bad", hint=error.hint) from error
        except MemoryError as error:
            raise out_of_memory_error(f"a {frame.kind.name} of {len(frame.meta) + frame.body.nbytes} bytes") from error

    def handle_disconnect(self) -> None:
        """Handle the end of a connection; called on its thread."""
        if self._connection.worker is not None:
            self._server.handle_disconnect(self._connection.worker, threading.get_ident())

    def _handle_push(self, frame: ReceivedFrame) -> OutgoingFrame:
        head = parse_message(pb.Push, frame.meta)
        # The newest step of a lease is stored, and the master relies on it: a step far ahead would
        # count all steps before it as done. The other pushes of a round are stored too.
        named_pushes: list[pb.Push | pb.Share] = [head, *head.round]
        for named in named_pushes:
            if named.step >= self._max_lease_steps:
                what = (
                    f"step {named.step} of lease {named.lease}: a lease has the steps 0 to {self._max_lease_steps - 1}"
                )
                raise PeerRefusedError(what, kind="bad")
        declaration = self._server.require_declaration()
        push = PendingPush(
            PushId(head.lease, head.step),
            declaration,
            parse_gradients(declaration, head, frame.body),
            worker=head.worker,
            # Each connection has a thread of its own.
            connection=threading.get_ident(),
            gradient_version=head.version,
            next_lease=head.next,
            leader_round=tuple(PushId(share.lease, share.step) for share in head.round),
            is_retry=head.again,
        )
        self._connection.worker = head.worker
        flat_values = self._reply_buffer.values_of_size(declaration.flat_size) if head.pull else None
        admission, version = self._server.push(push, flat_values)
        meta = pb.Pushed(outcome=_WIRE_OUTCOMES[admission], version=version)
        meta.round.extend(pb.Share(lease=lease, step=step) for lease, step in push.round_pushes)
        return OutgoingFrame(
            FrameKind.PUSHED, meta.SerializeToString(), () if flat_values is None else _memory_views(flat_values)
        )

    def _handle_pull(self, frame: ReceivedFrame) -> OutgoingFrame:
        head = parse_message(pb.Pull, frame.meta)
        if head.pin:
            cut = self._server.pinned_cut(head.pin)
            return OutgoingFrame(
                FrameKind.PULLED,
                pb.Pulled(version=cut.version).SerializeToString(),
                _memory_views(cut.snapshot.flat_values),
            )
        declaration = self._server.require_declaration()
        flat_values = self._reply_buffer.values_of_size(declaration.flat_size)
        version = self._server.pull(declaration, flat_values)
        return OutgoingFrame(
            FrameKind.PULLED, pb.Pulled(version=version).SerializeToString(), _memory_views(flat_values)
        )

    def _handle_pull_rows(self, frame: ReceivedFrame) -> OutgoingFrame:
        head = parse_message(pb.PullRows, frame.meta)
        pinned_snapshot = self._server.pinned_cut(head.pin).snapshot if head.pin else None
        declaration = pinned_snapshot.declaration if pinned_snapshot else self._server.require_declaration()
        ids = parse_row_ids(declaration, head.tables, frame.body)
        if pinned_snapshot:
            rows = [pinned_snapshot.read_rows(table, wanted) for table, wanted in ids.items()]
        else:
            rows = self._server.pull_rows(ids)
        return OutgoingFrame(FrameKind.ROWS, frame.meta, _memory_views(*rows))

    def _handle_scan_rows(self, frame: ReceivedFrame) -> OutgoingFrame:
        head = parse_message(pb.ScanRows, frame.meta)
        if head.cursor < 0 or head.limit < 1:
            raise PeerRefusedError(f"invalid scan: cursor {head.cursor}, limit {head.limit}", kind="bad")
        pinned_snapshot = self._server.pinned_cut(head.pin).snapshot if head.pin else None
        declaration = pinned_snapshot.declaration if pinned_snapshot else self._server.require_declaration()
        table = declaration.get_table(head.table).name
        rows = (pinned_snapshot or self._server).scan_rows(table, head.cursor, head.limit)
        next_cursor = head.cursor + head.limit
        cursor = next_cursor if next_cursor < (pinned_snapshot or self._server).position_limit(table) else -1
        meta = pb.ScannedRows(cursor=cursor, count=len(rows.ids))
        return OutgoingFrame(FrameKind.SCANNED, meta.SerializeToString(), _memory_views(rows.ids, rows.values))

    def _handle_declare(self, frame: ReceivedFrame) -> OutgoingFrame:
        declaration, dense = parse_declaration(parse_message(pb.Declare, frame.meta), frame.body)
        version, first = self._server.declare_model(declaration, dense)
        return OutgoingFrame(FrameKind.DECLARED, pb.Declared(version=version, first=first).SerializeToString())


def _memory_views(*arrays: npt.NDArray[Any]) -> tuple[memoryview, ...]:
    return tuple(array.data for array in arrays)


class _ConnectionState(threading.local):
    """The worker that pushes through a connection; None if no push came yet."""

    worker: int | None = None


class _ReplyBuffer(threading.local):
    """A reusable buffer for the dense values of answers, one per connection.

    An answer is on the wire before the connection's next request is read, so reuse is safe. A new
    array for each answer would cost more in page faults than the copy itself.
    """

    def __init__(self) -> None:
        self._values: Floats = np.empty(0, np.float32)

    def values_of_size(self, size: int) -> Floats:
        """An array of ``size`` values with undefined content."""
        if len(self._values) != size:
            self._values = np.empty(size, np.float32)
        return self._values
