"""Messages of workers as values of the core, and the core's answers as messages. Refuses what cannot be meant."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from edl.core.callback_decisions import Callback, from_json
from edl.core.events import Granted, Steps
from edl.core.strict_json import decode_json
from edl.transport import edl_pb2 as pb
from edl.transport.peer_errors import Refused

FAILURES = ("input", "nan", "refused", "storage", "crash")


def uid_of(member: pb.Member) -> str:
    """Whose message it is.

    Raises:
        Refused: it does not say.
    """
    if not member.uid:
        raise Refused("the message does not say whose it is", kind="bad")
    return member.uid


def steps_of(leases: Sequence[pb.LeaseProgress]) -> tuple[Steps, ...]:
    """What a worker says of its leases. A loss that is not finite says nothing, and the journal could not hold it.

    Raises:
        Refused: a count is negative.
    """
    for x in leases:
        if min(x.through, x.loss_steps, x.skipped_records) < 0:
            raise Refused(f"lease {x.lease}: a negative count", kind="bad")
    return tuple(_steps(x) for x in leases)


def _steps(x: pb.LeaseProgress) -> Steps:
    finite = math.isfinite(x.loss_sum)
    return Steps(x.lease, x.through, x.loss_sum if finite else 0.0, x.loss_steps if finite else 0, x.skipped_records)


_LARGEST_CALLBACKS = 64 << 10
"""Bytes of the description of a job's callbacks."""


def callbacks_of(data: bytes) -> tuple[Callback, ...]:
    """The callbacks that a worker declares.

    Raises:
        Refused: they are not what a worker can mean.
    """
    if not data:
        return ()
    if len(data) > _LARGEST_CALLBACKS:
        raise Refused(f"callbacks take at most {_LARGEST_CALLBACKS} bytes, not {len(data)}", kind="bad")
    try:
        return from_json(decode_json(data))
    except ValueError as error:
        raise Refused(f"callbacks cannot be read: {error}", kind="bad") from error


def result_of(data: bytes) -> Any:
    """A task's result; numbers that are not finite become None.

    Raises:
        Refused: it is not JSON.
    """
    if not data:
        return None
    try:
        return decode_json(data, not_finite=True)
    except ValueError as error:
        raise Refused(f"a task's result is not JSON: {error}", kind="bad") from error


def task_of(granted: Granted) -> pb.Task:
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
