"""Half-open gRPC streams: headers that announce a call, and no message, as raw HTTP/2.

gRPC's own clients never send them apart. Nothing here is compressed or indexed: every header is a literal.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence

STREAMS = 50

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _RST, _SETTINGS, _PING = 1, 3, 4, 6
_END_HEADERS, _ACK = 4, 1


class HalfOpenConnection:
    """One connection that opens calls and never finishes them; it answers pings, as a peer does that lives.

    Args:
        address: ``unix:<path>`` or ``host:port``.
        path: of the method: ``/edl.v1.Master/Progress``.
        metadata: of each call.
        partial: bytes that are sent of each message: less than it has.
    """

    def __init__(self, address: str, path: str, metadata: Sequence[tuple[str, str]] = (), partial: bytes = b"") -> None:
        self._headers = _literals(
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", path),
                (":authority", "localhost"),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                *metadata,
            ]
        )
        self._partial = partial
        self._next = 1
        self._lock = threading.Lock()
        self.open: set[int] = set()
        self._socket = _connected(address)
        self._send(_PREFACE + _frame(_SETTINGS, 0, 0, b""))
        self._reader = threading.Thread(target=self._read_all, daemon=True)
        self._reader.start()

    def open_streams(self, count: int) -> None:
        """Open calls until so many are open."""
        with self._lock:
            missing = count - len(self.open)
            numbers = [self._next + 2 * i for i in range(max(0, missing))]
            self._next += 2 * len(numbers)
            self.open.update(numbers)
        data = b"".join(
            _frame(_HEADERS, _END_HEADERS, n, self._headers)
            + (_frame(0, 0, n, self._partial) if self._partial else b"")
            for n in numbers
        )
        if data:
            self._send(data)

    def close(self) -> None:
        with self._lock:
            self._socket.close()

    def _send(self, data: bytes) -> None:
        with self._lock:
            self._socket.sendall(data)

    def _read_all(self) -> None:
        """Forget streams that the server ended; answer pings."""
        file = self._socket.makefile("rb")
        try:
            while len(head := file.read(9)) == 9:
                size, kind, flags, number = int.from_bytes(head[:3]), head[3], head[4], int.from_bytes(head[5:])
                body = file.read(size)
                if kind == _PING and not flags & _ACK:
                    self._send(_frame(_PING, _ACK, 0, body))
                elif kind == _SETTINGS and not flags & _ACK:
                    self._send(_frame(_SETTINGS, _ACK, 0, b""))
                elif kind == _RST or (kind in (0, _HEADERS) and flags & 1):
                    with self._lock:
                        self.open.discard(number)
        except (OSError, ValueError):
            pass
        with self._lock:
            self.open.clear()


def _connected(address: str) -> socket.socket:
    if address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(address.removeprefix("unix:"))
        return sock
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3) + struct.pack(">BBI", kind, flags, stream) + body


def _literals(headers: Sequence[tuple[str, str]]) -> bytes:
    """Headers without indexing; names and values are shorter than 127 bytes."""
    encoded = b""
    for pair in headers:
        encoded += b"\x00"
        for text in pair:
            data = text.encode()
            assert len(data) < 127
            encoded += bytes([len(data)]) + data
    return encoded


def flood(address: str, path: str, metadata: Sequence[tuple[str, str]], partial: bytes, connections: int) -> None:
    """Keep fifty calls open on each connection, until this process is killed: what the server ends is opened again."""
    opened = [HalfOpenConnection(address, path, metadata, partial) for _ in range(connections)]
    while True:
        for connection in opened:
            connection.open_streams(STREAMS)
        print("open", flush=True)
        time.sleep(1.0)


if __name__ == "__main__":
    flood(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), bytes.fromhex(sys.argv[4]), int(sys.argv[5]))
