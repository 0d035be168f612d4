"""Addresses and listening sockets. Socket files of dead servers are replaced, and ports are never shared."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass

from edl.api.errors import BadInputError, RefusedError

# --------------------------------------------------------------------------------------------------
# Addresses of both planes: ``unix:<path>`` or ``host:port`` (``[host]:port`` for IPv6; with port 0 the kernel chooses).


UNIX_PATH_MAX = 107 if hasattr(socket, "SO_PEERCRED") else 103
"""Maximum bytes of a Unix socket's path: ``sun_path`` of Linux and the BSDs, without the final zero."""

CONTROL_PORT, BULK_PORT = 7070, 7071
"""Ports of pods, which are fixed because each pod has its own address."""


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
    """Parse an address.

    Raises:
        BadInputError: it has neither form, or its path is longer than the kernel allows.
    """
    if text.startswith("unix:"):
        return _parse_unix_address(text)
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise BadInputError("This is not an address", where=text, hint="Write unix:<path> or <host>:<port>.")
    return TcpAddress(host.removeprefix("[").removesuffix("]"), int(port))


def _parse_unix_address(text: str) -> UnixAddress:
    path = text.removeprefix("unix:")
    if not path:
        raise BadInputError("This address has no path", where=text)
    size = len(path.encode())
    if size > UNIX_PATH_MAX:
        raise BadInputError(
            f"The path of a Unix socket has {size} bytes, the kernel allows {UNIX_PATH_MAX}",
            where=text,
            hint="Set EDL_RUNTIME_DIR to a shorter folder.",
        )
    return UnixAddress(path)


_LISTEN_BACKLOG = 1 << 15
"""Connections that may wait to be accepted. Kernels limit it to less (``net.core.somaxconn``). On a Unix socket, a
further one is refused at once, unless its client waits."""
SOCKET_MODE = 0o600


class SocketListener:
    """A listening socket, and the address for clients.

    The socket file of a killed server is replaced. A Unix socket gets its mode before it listens, so that no other
    user can ever connect.

    Raises:
        RefusedError: another live server listens there, or the address cannot be bound.
    """

    def __init__(self, address_text: str) -> None:
        address = parse_address(address_text)
        try:
            if isinstance(address, UnixAddress):
                self.sock = _listen_unix_socket(address)
                self.address = address_text
                self._file: tuple[str, int] | None = (address.path, os.stat(address.path).st_ino)
            else:
                self.sock = _listen_tcp_socket(address)
                self.address = str(TcpAddress(address.host, self.sock.getsockname()[1]))
                self._file = None
        except OSError as error:
            raise RefusedError(f"The server cannot listen: {error}", where=address_text) from error
        self.sock.setblocking(False)

    def close(self) -> None:
        """Stop listening. A Unix socket's file is removed, unless another server has replaced it."""
        self.sock.close()
        if self._file is None:
            return
        path, inode = self._file
        with suppress(FileNotFoundError):
            if os.stat(path).st_ino == inode:
                os.unlink(path)


def check_socket_unused(address: UnixAddress) -> None:
    """Check that nobody listens on a socket file. A killed server may have left the file.

    Raises:
        RefusedError: a live server listens on the address.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.path)
        except (ConnectionRefusedError, FileNotFoundError):
            return
    raise RefusedError("Another live server listens here", where=str(address))


def _listen_unix_socket(address: UnixAddress) -> socket.socket:
    check_socket_unused(address)
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(address.path).st_mode):  # never remove another kind of file: bind() then fails
            os.unlink(address.path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(address.path)
        os.chmod(address.path, SOCKET_MODE)
        sock.listen(_LISTEN_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _listen_tcp_socket(address: TcpAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    return socket.create_server((address.host, address.port), family=family, backlog=_LISTEN_BACKLOG)
