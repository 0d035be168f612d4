"""Every field of every message to a parameter server, over the wire: none ends it, none fails inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from transport.malformed_messages import messages_with

from edl.api.errors import EdlError
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_connection import FrameKind
from edl.transport.peer_errors import PeerRefusedError, refusal_kind

LEASE = 1 << 32
_VALUES = {"w": np.zeros(3, np.float32)}
_GRADIENT = np.ones(3, np.float32)
HEADS: dict[FrameKind, Any] = {
    FrameKind.PULL: pb.Pull(),
    FrameKind.PULL_ROWS: pb.PullRows(),
    FrameKind.PUSH: pb.Push(incarnation=1, lease=LEASE, step=0, learning_rate=1.0, weight=1.0),
    FrameKind.SCAN_ROWS: pb.ScanRows(table="emb", limit=5),
    FrameKind.DECLARE: pb.Declare(),
}
_PERMITTED = frozenset({"bad", "model", "pin", "cut", "revoked", "incarnation", "uninitialized", "full", "busy"})


@pytest.mark.parametrize("kind", HEADS, ids=lambda kind: kind.name)
def test_no_field_of_a_head_ends_a_parameter_server(start: Callable[..., Any], kind: FrameKind) -> None:
    ps = start()
    ps.attach()
    worker = ps.worker()
    worker.declare(_VALUES)
    body = [_GRADIENT.data] if kind is FrameKind.PUSH else []
    for number, (path, _, value, head) in enumerate(messages_with(type(HEADS[kind]), HEADS[kind])):
        if kind is FrameKind.PUSH and path != "step":
            head.step = number
        refused = refusal_of(lambda head=head: worker.client.request(kind, head.SerializeToString(), body))
        assert refused in (None, *_PERMITTED), f"{path} = {value!r:.60}"
    version, values = worker.pull()
    assert len(values) == 3
    assert version >= 0


def refusal_of(call: Callable[[], object]) -> str | None:
    """The kind of the refusal; None where there is an answer."""
    try:
        call()
    except EdlError as error:
        return refusal_kind(error) if isinstance(error, PeerRefusedError) else "retryable"
    return None
