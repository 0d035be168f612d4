"""Refusals: what a peer answers when it will not do a thing, now or ever."""

from __future__ import annotations

from edl.api.errors import RefusedError
from edl.core.strict_json import writable_text

_LONGEST = 2048
_CUT = " …"


class Refused(RefusedError):  # noqa: N818 - the name of what the peer did
    """A peer refused for good.

    Args:
        message: the peer's reason, for people.
        kind: what a program can act on: ``token``, ``version``, ``uninitialized``, ``revoked``, ``incarnation``,
            ``bad``, ``model``, ``pin``, ``internal`` (see ``Refusal`` in edl.proto).
        where: the peer's address.
        hint: what the user can do about it.
    """

    def __init__(self, message: str, *, kind: str, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, where=where, hint=hint)
        self.kind = kind


def kind_of(error: RefusedError) -> str:
    """Return the kind of a refusal, ``bad`` for one that does not say."""
    kind = getattr(error, "kind", None)
    return kind if isinstance(kind, str) and kind else "bad"


class BulkRefused(Refused):
    """A REFUSED frame on the bulk plane; ``kind`` is that of its Refusal."""


def sendable(text: str) -> str:
    """Return the text of a refusal as every peer can be told it: what it quotes may be of any length, and no text.

    gRPC sends it in the trailers of an answer, three bytes for each that is not ASCII. A client takes 8 KiB of these,
    and takes an answer with more for one of a peer that is busy.
    """
    data = writable_text(text).encode()
    return data.decode() if len(data) <= _LONGEST else data[:_LONGEST].decode(errors="ignore") + _CUT
