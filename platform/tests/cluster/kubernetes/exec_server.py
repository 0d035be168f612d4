"""The websocket end of pods/exec, as an API server has it: one connection, and what a test lets it say."""

from __future__ import annotations

import base64
import hashlib
import socket
import struct
import threading
from collections.abc import Callable

import urllib3

from edl.cluster.kubernetes.api_client import KubeConnection

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class ExecChannel:
    """The server's side of an open connection: messages with a channel's number in front."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, channel: int, data: bytes) -> None:
        body = bytes([channel]) + data
        head = struct.pack(">BB", 0x82, len(body)) if len(body) < 126 else struct.pack(">BBH", 0x82, 126, len(body))
        self._connection.sendall(head + body)

    def control(self, opcode: int, data: bytes = b"") -> None:
        """A frame of the connection itself: 8 closes it, 9 is a ping."""
        self._connection.sendall(bytes([0x80 | opcode, len(data)]) + data)

    def receive(self) -> tuple[int, bytes]:
        """The next message: its channel and content."""
        first, size = self._take(2)
        size &= 0x7F
        if size == 126:
            (size,) = struct.unpack(">H", self._take(2))
        mask, body = self._take(4), self._take(size)
        plain = bytes(byte ^ mask[at % 4] for at, byte in enumerate(body))
        if first & 0x0F == 0x0A:  # the answer to a ping
            return self.receive()
        return plain[0], plain[1:]

    def _take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._connection.recv(size - len(data))
            assert more, "the client has gone"
            data += more
        return data


class ExecServer:
    """Listens on loopback; ``talk`` is called with the channel of the one connection, then that is closed."""

    def __init__(self, talk: Callable[[ExecChannel], None], refusal: bytes = b"") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._talk, self._refusal = talk, refusal
        self.request = ""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def connection(self, pool: urllib3.PoolManager) -> KubeConnection:
        host = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        return KubeConnection(host, pool, lambda: {"authorization": "Bearer t"}, "team")

    def close(self) -> None:
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += connection.recv(1)
            self.request = head.decode()
            if self._refusal:
                answer = f"HTTP/1.1 403 Forbidden\r\nContent-Length: {len(self._refusal)}\r\n\r\n".encode()
                connection.sendall(answer + self._refusal)
                return
            key = next(line for line in self.request.splitlines() if line.lower().startswith("sec-websocket-key"))
            proof = base64.b64encode(hashlib.sha1(key.split()[1].encode() + _MAGIC).digest()).decode()
            connection.sendall(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Accept: {proof}\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n".encode()
            )
            self._talk(ExecChannel(connection))
