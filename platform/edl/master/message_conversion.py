"""Messages of workers as values of the core, and the core's answers as messages. Refuses what cannot be meant."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from edl.core.callback_decisions import CallbackSpec, callbacks_from_json
from edl.core.events import LeaseProgress, LeaseReply
from edl.core.strict_json import decode_json
from edl.transport import edl_pb2 as pb
from edl.transport.peer_errors import PeerRefusedError

FAILURE_KINDS = ("input", "nan", "refused", "storage", "crash")


def parse_member_uid(member: pb.Member) -> str:
    """Whose message it is.

    Raises:
        Refused: it does not say.
    """
    if not member.uid:
        raise PeerRefusedError("the message does not say whose it is", kind="bad")
    return member.uid


def parse_lease_progress(leases: Sequence[pb.LeaseProgress]) -> tuple[LeaseProgress, ...]:
    """What a worker says of its leases. A loss that is not finite says nothing, and the journal could not hold it.

    Raises:
        Refused: a count is negative.
    """
    for x in leases:
        if min(x.through, x.loss_steps, x.skipped_records) < 0:
            raise PeerRefusedError(f"lease {x.lease}: a negative count", kind="bad")
    return tuple(_parse_progress(x) for x in leases)


def _parse_progress(x: pb.LeaseProgress) -> LeaseProgress:
    finite = math.isfinite(x.loss_sum)
    return LeaseProgress(
        x.lease, x.through, x.loss_sum if finite else 0.0, x.loss_steps if finite else 0, x.skipped_records
    )


_MAX_CALLBACK_BYTES = 64 << 10
"""Bytes of the description of a job's callbacks."""


def parse_callbacks(data: bytes) -> tuple[CallbackSpec, ...]:
    """The callbacks that a worker declares.

    Raises:
        Refused: they are not what a worker can mean.
    """
    if not data:
        return ()
    if len(data) > _MAX_CALLBACK_BYTES:
        raise PeerRefusedError(f"callbacks take at most {_MAX_CALLBACK_BYTES} bytes, not {len(data)}", kind="bad")
    try:
        return callbacks_from_json(decode_json(data))
    except ValueError as error:
        raise PeerRefusedError(f"callbacks cannot be read: {error}", kind="bad") from error


def parse_result(data: bytes) -> Any:
    """A task's result; numbers that are not finite become None.

    Raises:
        Refused: it is not JSON.
    """
    if not data:
        return None
    try:
        return decode_json(data, not_finite=True)
    except ValueError as error:
        raise PeerRefusedError(f"a task's result is not JSON: {error}", kind="bad") from error


def lease_to_task(granted: LeaseReply) -> pb.Task:
    """A lease, as its worker is told."""
    work = granted.work
    return pb.Task(
        lease=granted.lease,
        kind=granted.kind,
        epoch=work.epoch,
        source=work.source,
        start=work.start,
        end=work.end,
        minibatch=granted.minibatch,
        pin=granted.pin,
        step=granted.step,
        expires_seconds=granted.seconds,
        window=granted.window,
        order=granted.order,
        one_by_one=granted.one_by_one,
        payload=b"" if granted.payload is None else json.dumps(granted.payload).encode(),
    )
