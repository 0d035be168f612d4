"""Refusals of peers, and the translation between gRPC status codes and EDL's errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc

from edl.api.errors import EdlError, RefusedError, RetryableError
from edl.core.strict_json import escape_surrogates

_MAX_TEXT_BYTES = 2048
_TRUNCATION_MARK = " …"


class PeerRefusedError(RefusedError):
    """A peer refused, and would refuse again.

    Args:
        message: the peer's reason, for people.
        kind: the reason for programs: ``token``, ``version``, ``uninitialized``, ``revoked``, ``incarnation``, ``bad``,
            ``model``, ``pin``, ``internal`` (see ``Refusal`` in edl.proto).
        where: the peer's address.
        hint: what the user can do about it.
    """

    def __init__(self, message: str, *, kind: str, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, where=where, hint=hint)
        self.kind = kind


def refusal_kind(error: RefusedError) -> str:
    """Return the kind of a refusal; ``bad`` if it has none."""
    kind = getattr(error, "kind", None)
    return kind if isinstance(kind, str) and kind else "bad"


class BulkRefusedError(PeerRefusedError):
    """A REFUSED frame on the bulk plane; ``kind`` is that of its Refusal."""


def to_sendable_text(text: str) -> str:
    """Return the text of a refusal in a form that can be sent: what it quotes may be long, or invalid Unicode.

    gRPC sends it in the trailers of a response, with three bytes for each that is not ASCII. A client accepts 8 KiB of
    trailers, and takes a response with more for that of a busy peer.
    """
    data = escape_surrogates(text).encode()
    return (
        data.decode()
        if len(data) <= _MAX_TEXT_BYTES
        else data[:_MAX_TEXT_BYTES].decode(errors="ignore") + _TRUNCATION_MARK
    )


# --------------------------------------------------------------------------------------------------
# Translation between gRPC status codes and errors that are retryable or permanent.


KIND_KEY = "edl-kind"
"""Key of trailing metadata: the kind of a refusal."""

_RETRYABLE_CODES = {
    grpc.StatusCode.UNAVAILABLE: "The peer is unreachable",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "The peer is busy",
    grpc.StatusCode.CANCELLED: "The connection ended",  # the server stops; EDL itself cancels no calls
}
_KIND_BY_CODE = {grpc.StatusCode.UNAUTHENTICATED: "token", grpc.StatusCode.UNKNOWN: "internal"}


def translate_rpc_error(error: Any, method: str, peer: str, timeout: float) -> EdlError:
    """Return EDL's error for a failed call.

    Args:
        error: a ``grpc.RpcError`` that is also a ``grpc.Call``, as unary calls raise it.
        method: name of the method.
        peer: address of the peer.
        timeout: timeout of the call in seconds.
    """
    code, details = error.code(), error.details() or "no details"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return RetryableError(f"{method}: no answer within {timeout:g} s", where=peer)
    if code in _RETRYABLE_CODES and not _is_message_too_large(code, details):
        return RetryableError(f"{method}: {_RETRYABLE_CODES[code]}: {details}", where=peer)
    kind = _kind_from_metadata(error.trailing_metadata() or ()) or _KIND_BY_CODE.get(code, "bad")
    return PeerRefusedError(f"{method}: {details}", kind=kind, where=peer)


def _is_message_too_large(code: grpc.StatusCode, details: str) -> bool:
    """Whether a message exceeds the size limit, which gRPC reports with the status code of a busy server."""
    return code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details


def _kind_from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    return next((str(value) for key, value in metadata if key == KIND_KEY), None)
