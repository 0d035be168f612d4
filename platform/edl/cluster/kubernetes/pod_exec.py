"""Runs a program in a container and connects to its standard input and output: pods/exec over a websocket.

Each message begins with one byte, its channel: 0 standard input, 1 output, 2 errors, 3 the exit status.
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
from edl.cluster.kubernetes.api_client import KubeConnection
from edl.cluster.kubernetes.api_errors import NoResponseError, error_from_response
from edl.cluster.kubernetes.resource_kinds import PODS

EXEC_IDLE_SECONDS = 30.0
"""Maximum time without a message while one is expected."""
_SUBPROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_STDIN_CHANNEL, _STDOUT_CHANNEL, _STDERR_CHANNEL, _STATUS_CHANNEL = range(4)
_STDERR_TAIL_BYTES = 4096


class PodExec:
    """A running program. As a context manager it closes the connection, which also closes the program's standard input.

    Args:
        connection: connection to the API server.
        pod: name of the pod.
        command: the program and its arguments.
        namespace: namespace of the pod; by default that of the connection.

    Raises:
        RbacDeniedError: pods/exec is not allowed.
        ApiError: the pod does not exist or does not run; NoResponseError if there is no response.
    """

    def __init__(
        self, connection: KubeConnection, pod: str, command: Sequence[str], *, namespace: str | None = None
    ) -> None:
        options = [("container", names.ROLE_CONTAINER), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
        query = urlencode([*options, *(("command", word) for word in command)])
        path = PODS.path(namespace or connection.namespace, pod, "exec")
        self._where = f"exec in pod {pod}"
        self._socket = _connect_websocket(connection, f"{connection.host}{path}?{query}", self._where)
        self._stdout, self._stderr, self._ended = bytearray(), b"", False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, WebSocketException):  # the connection has ended already
            self._socket.close(timeout=1)
        # If the server closed the connection, ``close`` does not close the socket.
        self._socket.shutdown()  # type: ignore[no-untyped-call]

    @property
    def stderr_tail(self) -> str:
        """The end of the program's standard error output."""
        return self._stderr.decode(errors="replace").strip()

    def write(self, data: bytes) -> None:
        """Write to the program's standard input; raises NoResponseError if the connection broke."""
        try:
            self._socket.send(bytes([_STDIN_CHANNEL]) + data, ABNF.OPCODE_BINARY)
        except (OSError, WebSocketException) as error:
            raise self._connection_error(error) from error

    def read(self, size: int) -> bytes:
        """Exactly ``size`` bytes of the program's standard output; fewer only if it has exited.

        Raises:
            NoResponseError: the connection broke, or was silent for EXEC_IDLE_SECONDS.
        """
        spoke = time.monotonic()
        while len(self._stdout) < size and not self._ended:
            if self._receive_message():
                spoke = time.monotonic()
            elif time.monotonic() - spoke > EXEC_IDLE_SECONDS:  # pings arrive, but nothing from the program
                raise self._connection_error(TimeoutError(f"no message for {EXEC_IDLE_SECONDS:g} s"))
        part = bytes(self._stdout[:size])
        del self._stdout[:size]
        return part

    def has_pending_input(self) -> bool:
        """Whether there is unread output, or the program has exited. Does not wait.

        Messages that have arrived are processed: a ping, or standard error output, is not something to read. A caller
        that read because of it would wait for a program that itself waits for input.
        """
        while not self._stdout and not self._ended and self._is_readable():
            self._receive_message()
        return bool(self._stdout) or self._ended

    def _is_readable(self) -> bool:
        raw = self._socket.sock
        if raw is None:
            return True
        # TLS may have decrypted bytes that select() does not see
        pending = isinstance(raw, ssl.SSLSocket) and raw.pending() > 0
        return pending or bool(select.select([raw], [], [], 0)[0])

    def _receive_message(self) -> bool:
        """Process one message; return whether it is from the program, and not a control frame."""
        try:
            kind, message = self._socket.recv_data(control_frame=True)
        except (OSError, WebSocketException) as error:
            raise self._connection_error(error) from error
        if kind == ABNF.OPCODE_CLOSE:
            raise self._connection_error(ConnectionResetError("closed by the server"))
        if kind in (ABNF.OPCODE_PING, ABNF.OPCODE_PONG) or not message:
            return False
        channel, data = message[0], message[1:]
        if channel == _STDOUT_CHANNEL:
            self._stdout += data
        elif channel == _STDERR_CHANNEL:
            self._stderr = (self._stderr + data)[-_STDERR_TAIL_BYTES:]
        elif channel == _STATUS_CHANNEL:
            self._handle_status(data)
        return True

    def _handle_status(self, data: bytes) -> None:
        self._ended = True
        status = json.loads(data) if data else {}
        if status.get("status") == "Failure" and not self._stderr:
            self._stderr = str(status.get("message", "")).encode()

    def _connection_error(self, error: Exception) -> NoResponseError:
        return NoResponseError(f"The connection was lost: {error or type(error).__name__}", where=self._where)


def _connect_websocket(connection: KubeConnection, url: str, where: str) -> WebSocket:
    websocket: Any = WebSocket(sslopt=_tls_options(connection.http_pool), enable_multithread=False)
    head = [f"{name}: {value}" for name, value in connection.auth_headers().items()]
    try:
        websocket.connect(
            url.replace("http", "ws", 1),
            header=head,
            subprotocols=list(_SUBPROTOCOLS),
            timeout=EXEC_IDLE_SECONDS,
            suppress_origin=True,
            **_proxy_options(connection.http_pool),
        )
    except WebSocketBadStatusException as error:
        raise error_from_response(error.status_code, error.resp_body or b"", where=where) from error
    except (OSError, WebSocketException) as error:
        raise NoResponseError(f"The API server does not answer: {error}", where=where) from error
    connected: WebSocket = websocket
    return connected


def _tls_options(pool: urllib3.PoolManager) -> dict[str, Any]:
    """The TLS settings of a connection pool, with the names of the websocket library."""
    settings: Mapping[str, Any] = pool.connection_pool_kw
    names_of = {
        "ca_certs": "ca_certs",
        "certfile": "cert_file",
        "keyfile": "key_file",
        "cert_reqs": "cert_reqs",
        "server_hostname": "server_hostname",
    }
    options = {name: settings[theirs] for name, theirs in names_of.items() if settings.get(theirs) is not None}
    if settings.get("cert_reqs") == ssl.CERT_NONE or settings.get("assert_hostname") is False:
        options["check_hostname"] = False
    return options


def _proxy_options(pool: urllib3.PoolManager) -> dict[str, Any]:
    proxy = pool.proxy
    if proxy is None:
        return {}
    return {"http_proxy_host": proxy.host, "http_proxy_port": proxy.port, "proxy_type": proxy.scheme}
