"""Bulk frames from workers to calls of the parameter server, and its results to answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edl.api.errors import BadInputError
from edl.numerics.array_types import Floats
from edl.numerics.memory_errors import out_of_memory_error
from edl.ps import request_parsing
from edl.ps.applied_steps import AdmissionOutcome
from edl.ps.parameter_server import ParameterServer
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_client import FrameKind, OutgoingFrame, ReceivedFrame
from edl.transport.message_validation import parse_message
from edl.transport.peer_errors import PeerRefusedError

MAX_REQUEST_BYTES = 1 << 34
"""Bytes of the largest push or declaration that is taken."""

_WIRE_OUTCOMES = {
    AdmissionOutcome.APPLIED: pb.Pushed.APPLIED,
    AdmissionOutcome.DUPLICATE: pb.Pushed.DUPLICATE,
    AdmissionOutcome.REVOKED: pb.Pushed.REVOKED,
    AdmissionOutcome.STALE: pb.Pushed.STALE,
}


class BulkRequestHandler:
    """The handler of a bulk server; each connection has its own thread.

    Args:
        server: what is asked.
        most_steps: that a lease of this job has.
    """

    def __init__(self, server: ParameterServer, *, most_steps: int = request_parsing.MAX_LEASE_STEPS) -> None:
        self._server = server
        self._max_lease_steps = most_steps
        self._reply_buffer = _ReplyBuffer()
        self._connection = _ConnectionState()
        self._handlers: Mapping[FrameKind, Callable[[ReceivedFrame], OutgoingFrame]] = {
            FrameKind.PUSH: self._push,
            FrameKind.PULL: self._handle_pull,
            FrameKind.PULL_ROWS: self._handle_pull_rows,
            FrameKind.SCAN_ROWS: self._handle_scan_rows,
            FrameKind.DECLARE: self._declare,
        }

    def __call__(self, frame: ReceivedFrame) -> OutgoingFrame:
        """Answer one frame.

        Raises:
            RefusedError: of a kind that edl.proto names; nothing was changed.
        """
        handler = self._handlers.get(frame.kind)
        if handler is None:
            raise PeerRefusedError(f"a parameter server does not take {frame.kind.name} frames", kind="bad")
        try:
            return handler(frame)
        except BadInputError as error:
            raise PeerRefusedError(f"{frame.kind.name}: {error.message}", kind="bad", hint=error.hint) from error
        except MemoryError as error:
            raise out_of_memory_error(f"a {frame.kind.name} of {len(frame.meta) + frame.body.nbytes} bytes") from error

    def parted(self) -> None:
        """A connection has ended; called in its thread."""
        if self._connection.worker is not None:
            self._server.parted(self._connection.worker, threading.get_ident())

    def _push(self, frame: ReceivedFrame) -> OutgoingFrame:
        head = parse_message(pb.Push, frame.meta)
        share = request_parsing.parse_push_id(head, self._max_lease_steps)
        declared = self._server.declaration()
        gradients = request_parsing.parse_gradients(declared, head, frame.body)
        slab = self._reply_buffer.values_of_size(declared.size) if head.pull else None
        origin = request_parsing.parse_origin(head, threading.get_ident())
        self._connection.worker = origin.worker
        result = self._server.push(share, declared, gradients, slab, origin)
        meta = pb.Pushed(outcome=_WIRE_OUTCOMES[result.admission], version=result.version)
        meta.round.extend(pb.Share(lease=share.lease, step=share.step) for share in result.round)
        return OutgoingFrame(FrameKind.PUSHED, meta.SerializeToString(), () if slab is None else _memory_views(slab))

    def _handle_pull(self, frame: ReceivedFrame) -> OutgoingFrame:
        head = parse_message(pb.Pull, frame.meta)
        if head.pin:
            cut = self._server.pinned(head.pin)
            return OutgoingFrame(
                FrameKind.PULLED, pb.Pulled(version=cut.version).SerializeToString(), _memory_views(cut.snapshot.dense)
            )
        declared = self._server.declaration()
        slab = self._reply_buffer.values_of_size(declared.size)
        version = self._server.pull(declared, slab)
        return OutgoingFrame(FrameKind.PULLED, pb.Pulled(version=version).SerializeToString(), _memory_views(slab))

    def _handle_pull_rows(self, frame: ReceivedFrame) -> OutgoingFrame:
        head = parse_message(pb.PullRows, frame.meta)
        pinned = self._server.pinned(head.pin).snapshot if head.pin else None
        declared = pinned.declaration if pinned else self._server.declaration()
        ids = request_parsing.parse_row_ids(declared, head.tables, frame.body)
        if pinned:
            rows = [pinned.read_rows(table, wanted) for table, wanted in ids.items()]
        else:
            rows = self._server.pull_rows(ids)
        return OutgoingFrame(FrameKind.ROWS, frame.meta, _memory_views(*rows))

    def _handle_scan_rows(self, frame: ReceivedFrame) -> OutgoingFrame:
        head = parse_message(pb.ScanRows, frame.meta)
        if head.cursor < 0 or head.limit < 1:
            raise PeerRefusedError(f"a scan from {head.cursor} of {head.limit} rows", kind="bad")
        pinned = self._server.pinned(head.pin).snapshot if head.pin else None
        declared = pinned.declaration if pinned else self._server.declaration()
        table = declared.table(head.table).name
        rows = (pinned or self._server).scan(table, head.cursor, head.limit)
        following = head.cursor + head.limit
        cursor = following if following < (pinned or self._server).position_limit(table) else -1
        meta = pb.ScannedRows(cursor=cursor, count=len(rows.ids))
        return OutgoingFrame(FrameKind.SCANNED, meta.SerializeToString(), _memory_views(rows.ids, rows.values))

    def _declare(self, frame: ReceivedFrame) -> OutgoingFrame:
        declared, dense = request_parsing.parse_declaration(parse_message(pb.Declare, frame.meta), frame.body)
        version, first = self._server.declare(declared, dense)
        return OutgoingFrame(FrameKind.DECLARED, pb.Declared(version=version, first=first).SerializeToString())


def _memory_views(*arrays: npt.NDArray[Any]) -> tuple[memoryview, ...]:
    return tuple(array.data for array in arrays)


class _ConnectionState(threading.local):
    """Which worker pushes through a connection; None if none has."""

    worker: int | None = None


class _ReplyBuffer(threading.local):
    """Memory for the slab of an answer, one for each connection: it is on the wire before that connection's next
    request is read, and a fresh array for each answer would cost more in page faults than the copy itself.
    """

    def __init__(self) -> None:
        self._slab: Floats = np.empty(0, np.float32)

    def values_of_size(self, size: int) -> Floats:
        """An array of ``size`` values, whatever they are."""
        if len(self._slab) != size:
            self._slab = np.empty(size, np.float32)
        return self._slab
