"""A program in a running container, and its standard input and output: pods/exec over a websocket.

Channels of the protocol are one byte in front of each message: 0 standard input, 1 output, 2 errors, 3 the end.
Source: https://kubernetes.io/docs/reference/using-api/ (websocket subprotocol v5.channel.k8s.io).
"""

from __future__ import annotations

import json
import select
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self
from urllib.parse import urlencode

import urllib3
from websocket import ABNF, WebSocket, WebSocketBadStatusException, WebSocketException

from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import Connection
from edl.cluster.kubernetes.api_errors import AwayError, translate
from edl.cluster.kubernetes.resource_kinds import PODS

SILENCE_SECONDS = 30.0
"""How long the other end may say nothing while something is waited for."""
_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_INPUT, _OUTPUT, _ERRORS, _END = range(4)
_LAST_WORDS = 4096


class Execution:
    """A program that runs; a context manager that ends the connection, and the program with its standard input.

    Args:
        connection: to the API server.
        pod: where it runs.
        command: the program and its arguments.
        namespace: of the pod; the connection's by default.

    Raises:
        NoRightError: pods/exec is not allowed.
        ApiError: the pod is not there or does not run; AwayError when there is no answer.
    """

    def __init__(
        self, connection: Connection, pod: str, command: Sequence[str], *, namespace: str | None = None
    ) -> None:
        options = [("container", names.CONTAINER), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
        query = urlencode([*options, *(("command", word) for word in command)])
        path = PODS.path(namespace or connection.namespace, pod, "exec")
        self._where = f"exec in pod {pod}"
        self._socket = _connected(connection, f"{connection.host}{path}?{query}", self._where)
        self._unread, self._errors, self._ended = bytearray(), b"", False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, WebSocketException):  # it had ended by itself
            self._socket.close(timeout=1)
        # Of a connection that the server has closed, ``close`` leaves the socket open.
        self._socket.shutdown()  # type: ignore[no-untyped-call]

    @property
    def last_words(self) -> str:
        """The end of what the program wrote on standard error."""
        return self._errors.decode(errors="replace").strip()

    def write(self, data: bytes) -> None:
        """To the program's standard input; raises AwayError when the connection broke."""
        try:
            self._socket.send(bytes([_INPUT]) + data, ABNF.OPCODE_BINARY)
        except (OSError, WebSocketException) as error:
            raise self._broken(error) from error

    def read(self, size: int) -> bytes:
        """Exactly ``size`` bytes of its standard output; fewer only when the program has ended.

        Raises:
            AwayError: the connection broke, or nothing was said for SILENCE_SECONDS.
        """
        spoke = time.monotonic()
        while len(self._unread) < size and not self._ended:
            if self._receive():
                spoke = time.monotonic()
            elif time.monotonic() - spoke > SILENCE_SECONDS:  # the connection lives, the program says nothing
                raise self._broken(TimeoutError(f"nothing was said for {SILENCE_SECONDS:g} s"))
        taken = bytes(self._unread[:size])
        del self._unread[:size]
        return taken

    def waiting(self) -> bool:
        """Whether there is output that was not read, or the program has ended; waits for neither.

        What has arrived is looked at: a ping, or a word on standard error, is nothing to read, and who read then would
        wait for a program that waits for its input.
        """
        while not self._unread and not self._ended and self._readable():
            self._receive()
        return bool(self._unread) or self._ended

    def _readable(self) -> bool:
        raw = self._socket.sock
        if raw is None:
            return True
        pending = isinstance(raw, ssl.SSLSocket) and raw.pending() > 0
        return pending or bool(select.select([raw], [], [], 0)[0])

    def _receive(self) -> bool:
        """Take one message; whether it is one of the program, and none of the connection."""
        try:
            kind, message = self._socket.recv_data(control_frame=True)
        except (OSError, WebSocketException) as error:
            raise self._broken(error) from error
        if kind == ABNF.OPCODE_CLOSE:
            raise self._broken(ConnectionResetError("closed by the server"))
        if kind in (ABNF.OPCODE_PING, ABNF.OPCODE_PONG) or not message:
            return False
        channel, data = message[0], message[1:]
        if channel == _OUTPUT:
            self._unread += data
        elif channel == _ERRORS:
            self._errors = (self._errors + data)[-_LAST_WORDS:]
        elif channel == _END:
            self._end(data)
        return True

    def _end(self, data: bytes) -> None:
        self._ended = True
        status = json.loads(data) if data else {}
        if status.get("status") == "Failure" and not self._errors:
            self._errors = str(status.get("message", "")).encode()

    def _broken(self, error: Exception) -> AwayError:
        return AwayError(f"The connection broke: {error or type(error).__name__}", where=self._where)


def _connected(connection: Connection, url: str, where: str) -> WebSocket:
    websocket: Any = WebSocket(sslopt=_tls(connection.pool), enable_multithread=False)
    head = [f"{name}: {value}" for name, value in connection.headers().items()]
    try:
        websocket.connect(
            url.replace("http", "ws", 1),
            header=head,
            subprotocols=list(_PROTOCOLS),
            timeout=SILENCE_SECONDS,
            suppress_origin=True,
            **_proxy(connection.pool),
        )
    except WebSocketBadStatusException as error:
        raise translate(error.status_code, error.resp_body or b"", where=where) from error
    except (OSError, WebSocketException) as error:
        raise AwayError(f"The API server does not answer: {error}", where=where) from error
    found: WebSocket = websocket
    return found


def _tls(pool: urllib3.PoolManager) -> dict[str, Any]:
    """What the websocket library calls the pool's own settings."""
    told: Mapping[str, Any] = pool.connection_pool_kw
    names_of = {
        "ca_certs": "ca_certs",
        "certfile": "cert_file",
        "keyfile": "key_file",
        "cert_reqs": "cert_reqs",
        "server_hostname": "server_hostname",
    }
    found = {name: told[theirs] for name, theirs in names_of.items() if told.get(theirs) is not None}
    if told.get("cert_reqs") == ssl.CERT_NONE or told.get("assert_hostname") is False:
        found["check_hostname"] = False
    return found


def _proxy(pool: urllib3.PoolManager) -> dict[str, Any]:
    proxy = pool.proxy
    if proxy is None:
        return {}
    return {"http_proxy_host": proxy.host, "http_proxy_port": proxy.port, "proxy_type": proxy.scheme}
