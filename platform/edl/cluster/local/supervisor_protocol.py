"""The supervisor's protocol: one JSON object per line over a Unix stream socket.

The client begins with ``{"edl": 1, "token": "..."}`` and gets ``{"edl": 1}`` or an error. Requests and answers:

* ``{"op": "start", "role": "worker", "index": 3}``: ``{"uid": "worker-3-5e1f0a9c"}``;
* ``{"op": "delete", "uid": "...", "grace": 2.5}``: ``{}``;
* ``{"op": "watch"}``: a stream of ``{"pod": {...}}`` for every pod, then ``{"synced": true}``, then changes.

An error is ``{"error": "retryable" | "bad_input" | "refused", "message": "..."}``. Nothing is evaluated. A line longer
than ``MAX_LINE_BYTES`` ends the connection.
"""

from __future__ import annotations

import json
from typing import Any

from edl.api.cluster_port import PodPhase, PodStatus, Role
from edl.api.errors import BadInputError, EdlError, RefusedError, RetryableError
from edl.core.strict_json import decode_json

PROTOCOL_VERSION = 1
MAX_LINE_BYTES = 64 * 1024
"""A message usually has about 200 bytes."""

Message = dict[str, Any]

_ERRORS: dict[str, type[EdlError]] = {"retryable": RetryableError, "bad_input": BadInputError, "refused": RefusedError}


class MessageDecoder:
    """Splits a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that ``data`` completes; an incomplete line is kept for the next call.

        Raises:
            RefusedError: a line is too long or not a JSON object.
        """
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > MAX_LINE_BYTES or any(len(line) > MAX_LINE_BYTES for line in lines):
            raise RefusedError(f"A message is longer than {MAX_LINE_BYTES} bytes")
        return [_decode_line(line) for line in lines]


def _decode_line(line: bytes) -> Message:
    try:
        # the client need not be EDL's: any program of this user can connect
        message = decode_json(line)
    except ValueError as error:
        raise RefusedError(f"A message is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise RefusedError("A message is not a JSON object")
    return message


def encode_message(message: Message) -> bytes:
    """Return the line of a message."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def hello_message(token: str) -> Message:
    """Return a client's first message."""
    return {"edl": PROTOCOL_VERSION, "token": token}


def error_message(error: EdlError) -> Message:
    """Return the answer for an error."""
    kind = next((kind for kind, cls in _ERRORS.items() if isinstance(error, cls)), "retryable")
    return {"error": kind, "message": error.message}


def raise_error(answer: Message, *, where: str) -> None:
    """Raise the error that an answer contains, if any."""
    if "error" in answer:
        raise _ERRORS.get(str(answer["error"]), RefusedError)(str(answer.get("message", "")), where=where)


def pod_message(pod: PodStatus) -> Message:
    """What the supervisor sends when a pod's status has changed."""
    return {
        "pod": {
            "uid": pod.uid,
            "role": pod.role.value,
            "index": pod.index,
            "phase": pod.phase.value,
            "exit_code": pod.exit_code,
            "reason": pod.reason,
            "pid": pod.pid,
        }
    }


def pod_from_message(message: Message) -> PodStatus:
    """Parse the result of ``pod_message``.

    Raises:
        RefusedError: the message is not a pod's status.
    """
    try:
        fields = dict(message["pod"])
        return PodStatus(**{**fields, "role": Role(fields["role"]), "phase": PodPhase(fields["phase"])})
    except (KeyError, TypeError, ValueError) as error:
        raise RefusedError(f"A message is not a pod's state: {error!r}") from error
