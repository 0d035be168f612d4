"""The supervisor's protocol: one JSON object a line over a Unix stream socket.

The client speaks first: ``{"edl": 1, "token": "..."}``, answered by ``{"edl": 1}`` or an error. Then requests:

* ``{"op": "start", "role": "worker", "index": 3}`` is answered by ``{"uid": "worker-3-5e1f0a9c"}``;
* ``{"op": "delete", "uid": "...", "grace": 2.5}`` is answered by ``{}``;
* ``{"op": "watch"}`` is answered by a stream: ``{"pod": {...}}`` for every pod, ``{"synced": true}``, then changes.

An error is ``{"error": "retryable" | "bad_input" | "refused", "message": "..."}``. Nothing is evaluated; a line longer
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
"""Bytes; a message is about 200."""

Message = dict[str, Any]

_ERRORS: dict[str, type[EdlError]] = {"retryable": RetryableError, "bad_input": BadInputError, "refused": RefusedError}


class MessageDecoder:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that ``data`` completes.

        Raises:
            RefusedError: a line is too long or not a JSON object.
        """
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if len(self._buffer) > MAX_LINE_BYTES or any(len(line) > MAX_LINE_BYTES for line in lines):
            raise RefusedError(f"A message is longer than {MAX_LINE_BYTES} bytes")
        return [_decode_line(line) for line in lines]


def _decode_line(line: bytes) -> Message:
    try:
        message = decode_json(line)
    except ValueError as error:
        raise RefusedError(f"A message is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise RefusedError("A message is not a JSON object")
    return message


def encode_message(message: Message) -> bytes:
    """Return the line that carries a message."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def hello_message(token: str) -> Message:
    """Return a client's first message."""
    return {"edl": PROTOCOL_VERSION, "token": token}


def error_message(error: EdlError) -> Message:
    """Return the answer that carries an error."""
    kind = next((kind for kind, cls in _ERRORS.items() if isinstance(error, cls)), "retryable")
    return {"error": kind, "message": error.message}


def raise_error(answer: Message, *, where: str) -> None:
    """Raise the error that an answer carries, if it carries one."""
    if "error" in answer:
        raise _ERRORS.get(str(answer["error"]), RefusedError)(str(answer.get("message", "")), where=where)


def pod_message(pod: PodStatus) -> Message:
    """Return the message that tells a pod's state."""
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
    """Read a pod's state back.

    Raises:
        RefusedError: the message is not one.
    """
    try:
        fields = dict(message["pod"])
        return PodStatus(**{**fields, "role": Role(fields["role"]), "phase": PodPhase(fields["phase"])})
    except (KeyError, TypeError, ValueError) as error:
        raise RefusedError(f"A message is not a pod's state: {error!r}") from error
