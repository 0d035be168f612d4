"""Refusals: what a peer answers when it will not do a thing, now or ever."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc

from edl.api.errors import EdlError, RefusedError, RetryableError
from edl.core.strict_json import escape_surrogates

_MAX_TEXT_BYTES = 2048
_TRUNCATION_MARK = " …"


class PeerRefusedError(RefusedError):
    """A peer refused for good.

    Args:
        message: the peer's reason, for people.
        kind: what a program can act on: ``token``, ``version``, ``uninitialized``, ``revoked``, ``incarnation``,
            ``bad``, ``model``, ``pin``, ``internal`` (see ``QuotaRefusal`` in edl.proto).
        where: the peer's address.
        hint: what the user can do about it.
    """

    def __init__(self, message: str, *, kind: str, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, where=where, hint=hint)
        self.kind = kind


def refusal_kind(error: RefusedError) -> str:
    """Return the kind of a refusal, ``bad`` for one that does not say."""
    kind = getattr(error, "kind", None)
    return kind if isinstance(kind, str) and kind else "bad"


class BulkRefusedError(PeerRefusedError):
    """A REFUSED frame on the bulk plane; ``kind`` is that of its Refusal."""


def to_sendable_text(text: str) -> str:
    """Return the text of a refusal as every peer can be told it: what it quotes may be of any length, and no text.

    gRPC sends it in the trailers of an answer, three bytes for each that is not ASCII. A client takes 8 KiB of these,
    and takes an answer with more for one of a peer that is busy.
    """
    data = escape_surrogates(text).encode()
    return (
        data.decode()
        if len(data) <= _MAX_TEXT_BYTES
        else data[:_MAX_TEXT_BYTES].decode(errors="ignore") + _TRUNCATION_MARK
    )


# --------------------------------------------------------------------------------------------------
# What a gRPC status means for EDL, and the other way round: try again, or refused for good.


KIND_KEY = "edl-kind"
"""Trailing metadata: the kind of a refusal."""

_RETRYABLE_CODES = {
    grpc.StatusCode.UNAVAILABLE: "The peer is away",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "The peer is busy",
    grpc.StatusCode.CANCELLED: "The connection ended",  # a server that stops; EDL's own code cancels no call
}
_KIND_BY_CODE = {grpc.StatusCode.UNAUTHENTICATED: "token", grpc.StatusCode.UNKNOWN: "internal"}


def translate_rpc_error(error: Any, method: str, peer: str, timeout: float) -> EdlError:
    """Return EDL's error for a failed call.

    Args:
        error: a ``grpc.RpcError`` that is also a ``grpc.Call``, as unary calls raise it.
        method: the method's name.
        peer: its address.
        timeout: timeout of the call, in seconds.
    """
    code, details = error.code(), error.details() or "no details"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return RetryableError(f"{method}: no answer within {timeout:g} s", where=peer)
    if code in _RETRYABLE_CODES and not _is_message_too_large(code, details):
        return RetryableError(f"{method}: {_RETRYABLE_CODES[code]}: {details}", where=peer)
    kind = _kind_from_metadata(error.trailing_metadata() or ()) or _KIND_BY_CODE.get(code, "bad")
    return PeerRefusedError(f"{method}: {details}", kind=kind, where=peer)


def _is_message_too_large(code: grpc.StatusCode, details: str) -> bool:
    """Tell a message above the size limit, which gRPC reports like a server that is busy, from the latter."""
    return code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details


def _kind_from_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    return next((str(value) for key, value in metadata if key == KIND_KEY), None)
