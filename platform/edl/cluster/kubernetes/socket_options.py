"""How a server that vanished without a word is noticed, also by a watch that waits: after 25 s."""

from __future__ import annotations

import socket
import struct

from urllib3.connection import HTTPConnection

_KEEPALIVE_PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
KEEPALIVE_OPTIONS = (
    *HTTPConnection.default_socket_options,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in _KEEPALIVE_PROBES.items()
        if hasattr(socket, name)
    ),
)
"""For connections to an API server."""
NO_LINGER_OPTIONS = (*KEEPALIVE_OPTIONS, (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)))
"""The same; closing one throws away what it has not delivered.

Otherwise the kernel goes on for minutes, and a request that was given up on a node without a network would arrive when
the network is back.
"""
