"""Addresses of both planes: ``unix:<path>`` or ``host:port`` (``[host]:port`` for IPv6; port 0: the kernel chooses)."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from edl.api.errors import BadInputError

UNIX_PATH_MAX = 107 if hasattr(socket, "SO_PEERCRED") else 103
"""Bytes of a Unix socket's path: ``sun_path`` of Linux and of the BSDs, less the final zero."""

CONTROL_PORT, BULK_PORT = 7070, 7071
"""Where pods listen: each has an address of its own."""


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A socket file on this machine."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


PeerAddress = UnixAddress | TcpAddress


def parse_address(text: str) -> PeerAddress:
    """Read an address.

    Raises:
        BadInputError: it is neither form, or a path longer than the kernel takes.
    """
    if text.startswith("unix:"):
        return _parse_unix_address(text)
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise BadInputError("This is no address", where=text, hint="Write unix:<path> or <host>:<port>.")
    return TcpAddress(host.removeprefix("[").removesuffix("]"), int(port))


def _parse_unix_address(text: str) -> UnixAddress:
    path = text.removeprefix("unix:")
    if not path:
        raise BadInputError("This address has no path", where=text)
    size = len(path.encode())
    if size > UNIX_PATH_MAX:
        raise BadInputError(
            f"The path of a Unix socket is {size} bytes long, the kernel takes {UNIX_PATH_MAX}",
            where=text,
            hint="Set EDL_RUNTIME_DIR to a shorter folder.",
        )
    return UnixAddress(path)
