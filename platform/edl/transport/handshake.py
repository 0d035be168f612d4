"""What a peer must prove on both planes: the job's token and the protocol's version."""

from __future__ import annotations

import hmac

from edl.transport.peer_errors import PeerRefusedError

PROTOCOL_VERSION = 1
"""Version of control messages and bulk frames; increased by every change that an older peer would misread."""

MAX_TOKEN_BYTES = 1024
"""Maximum bytes of a token; a longer one is refused before it is read."""

TOKEN_KEY = "edl-token"  # noqa: S105 - the name of the header, not a token
VERSION_KEY = "edl-version"
"""Metadata of every control call."""


def check_protocol_version(peer_version: object) -> None:
    """Refuse a peer with another protocol version; the message has both.

    Raises:
        PeerRefusedError: with kind ``version``.
    """
    if peer_version != PROTOCOL_VERSION:
        raise PeerRefusedError(
            f"The protocol versions differ: this process has {PROTOCOL_VERSION}, its peer has {peer_version}",
            kind="version",
            hint="Every role of a job must run the same version of edl-platform.",
        )


def check_job_token(peer_token: bytes, expected: bytes) -> None:
    """Refuse a peer without the job's token, in a time that does not depend on the position of the difference.

    Raises:
        PeerRefusedError: with kind ``token``.
    """
    if not hmac.compare_digest(peer_token, expected):
        raise PeerRefusedError("The job's token is wrong or missing", kind="token")
