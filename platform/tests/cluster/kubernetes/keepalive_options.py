"""What a connection to an API server must ask of the kernel, so that a server that vanished is noticed."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any

SECONDS = 25
"""Seconds after which a silent peer is given up."""


def assert_keeps_alive(options: Iterable[tuple[int, int, Any]]) -> None:
    """Set on a socket, the options probe a peer that says nothing, and do not hold small requests back."""
    with socket.socket() as one:
        for option in options:
            one.setsockopt(*option)
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        if not hasattr(socket, "TCP_KEEPIDLE"):  # macOS has another name for it
            return
        idle, interval, count = (
            one.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
        )
        assert idle + interval * count == SECONDS
