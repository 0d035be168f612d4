"""What a peer proves before it is heard, on both planes: the job's token and the protocol's version."""

from __future__ import annotations

import hmac

from edl.transport.peer_errors import PeerRefusedError

PROTOCOL_VERSION = 1
"""Version of the control messages and of the bulk frames; raised by every change that an older peer would misread."""

MAX_TOKEN_BYTES = 1024
"""Bytes; a token that is longer is refused before it is read."""

TOKEN_KEY = "edl-token"  # noqa: S105 - the name of the header, not a token
VERSION_KEY = "edl-version"
"""Metadata of every control call."""


def check_protocol_version(theirs: object) -> None:
    """Refuse a peer that speaks another version, naming both.

    Raises:
        Refused: with kind ``version``.
    """
    if theirs != PROTOCOL_VERSION:
        raise PeerRefusedError(
            f"The protocol versions differ: this process speaks {PROTOCOL_VERSION}, its peer {theirs}",
            kind="version",
            hint="Every role of a job must run the same version of edl-platform.",
        )


def check_job_token(theirs: bytes, expected: bytes) -> None:
    """Refuse a peer that does not know the job's token; takes the same time wherever the two differ.

    Raises:
        Refused: with kind ``token``.
    """
    if not hmac.compare_digest(theirs, expected):
        raise PeerRefusedError("The job's token is wrong or missing", kind="token")
