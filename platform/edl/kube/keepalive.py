"""How a server that vanished without a word is noticed, also by a watch that waits: after 25 s."""

from __future__ import annotations

import socket

from urllib3.connection import HTTPConnection

_PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
SOCKET_OPTIONS = (
    *HTTPConnection.default_socket_options,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _PROBES.items() if hasattr(socket, name)),
)
"""For connections to an API server."""
