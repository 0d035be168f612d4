"""Refusals: what a peer answers when it will not do a thing, now or ever."""

from __future__ import annotations

from edl.api.errors import RefusedError
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
