"""A server that answers each connection with bytes from a script: for answers that no honest server gives."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress

STAY = b"<stay>"
"""At the end of a reply: the connection stays open, silent."""


def reply(body: bytes, status: str = "200 OK", *headers: str, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = [f"HTTP/1.1 {status}", f"Content-Length: {size}", "Connection: close", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def chunked(*chunks: bytes, end: bool = True) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in chunks) + (b"0\r\n\r\n" if end else b"")


class ByteServer:
    """Replies in the order of the script, one for each request; then it hangs up."""

    def __init__(self, replies: Sequence[bytes]) -> None:
        self._replies = list(replies)
        self.requests: list[bytes] = []
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def host(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for connection in self._open:
            connection.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        """One request a connection, so that replies may be cut off anywhere."""
        request = b""
        while b"\r\n\r\n" not in request and (part := connection.recv(1 << 16)):
            request += part
        self.requests.append(request)
        answer = self._replies.pop(0) if self._replies else b""
        with suppress(ConnectionError):
            connection.sendall(answer.removesuffix(STAY))
        if answer.endswith(STAY):
            self._open.append(connection)
        else:
            connection.close()
