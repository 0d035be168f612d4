"""Where servers listen: Unix socket files that survive nobody, TCP ports that nobody shares."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress

from edl.api.errors import RefusedError
from edl.transport.address import TcpAddress, UnixAddress, parse_address

_LISTEN_BACKLOG = 1 << 15
"""Connections that wait to be accepted: more than kernels allow, which take what they do (``net.core.somaxconn``). One
more is refused at once on a Unix socket, unless its client waits."""
_SOCKET_MODE = 0o600


class SocketListener:
    """A listening socket and the address that clients connect to.

    The file of a killed server is replaced. A Unix socket is private before it listens, so that nobody else can
    connect even for a moment.

    Raises:
        RefusedError: another live server listens there, or the address cannot be bound.
    """

    def __init__(self, text: str) -> None:
        wanted = parse_address(text)
        try:
            if isinstance(wanted, UnixAddress):
                self.sock = _listen_unix_socket(wanted)
                self.address = text
                self._file: tuple[str, int] | None = (wanted.path, os.stat(wanted.path).st_ino)
            else:
                self.sock = _listen_tcp_socket(wanted)
                self.address = str(TcpAddress(wanted.host, self.sock.getsockname()[1]))
                self._file = None
        except OSError as error:
            raise RefusedError(f"The server cannot listen: {error}", where=text) from error
        self.sock.setblocking(False)

    def close(self) -> None:
        """Stop listening; a Unix socket's file goes unless another server has replaced it."""
        self.sock.close()
        if self._file is None:
            return
        path, inode = self._file
        with suppress(FileNotFoundError):
            if os.stat(path).st_ino == inode:
                os.unlink(path)


def check_socket_unused(address: UnixAddress) -> None:
    """Make sure that nobody listens on a socket file; a killed server may have left one behind.

    Raises:
        RefusedError: a live server holds the address.
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
        if stat.S_ISSOCK(os.stat(address.path).st_mode):  # never a file of another sort: bind then fails
            os.unlink(address.path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(address.path)
        os.chmod(address.path, _SOCKET_MODE)
        sock.listen(_LISTEN_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _listen_tcp_socket(address: TcpAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    return socket.create_server((address.host, address.port), family=family, backlog=_LISTEN_BACKLOG)
