"""The control plane: the one door for gRPC. Here is the client's half; the server's is control_server.py.

Every call carries the job's token and the protocol's version, has a deadline, and ends in a reply, a RetryableError
or a Refused that names the peer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc

from edl.core.errors import EdlError, RetryableError
from edl.rpc.address import parse
from edl.rpc.control_server import ControlServer, serve
from edl.rpc.methods import Method, Reply, Request
from edl.rpc.proof import PROTOCOL_VERSION, TOKEN_KEY, VERSION_KEY
from edl.rpc.refusal import Refused
from edl.rpc.retry import Retry, Timing, pauses

__all__ = ["Channel", "ControlServer", "Retry", "connect", "serve"]

MAX_MESSAGE = 4 << 20
"""Bytes of the largest control message."""

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection
    ("grpc.enable_http_proxy", 0),
)

_TRANSIENT = frozenset({
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
})
_SUSPECT = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
"""After these the connection may lead nowhere (a vanished pod answers no packet): the next try gets a new one."""


class Channel:
    """A way to one peer, for any number of threads; it survives the peer's restarts.

    Args:
        address: ``unix:<path>`` or ``host:port``.
        token: the job's.
        timing: clock, sleep and randomness of retries.
    """

    def __init__(self, address: str, token: str, *, timing: Timing | None = None) -> None:
        parse(address)
        self.address = address
        self._metadata = ((TOKEN_KEY, token), (VERSION_KEY, str(PROTOCOL_VERSION)))
        self._timing = timing or Timing()
        self._lock = threading.Lock()
        self._closed = False
        self._line = _Line(address)

    def call(
        self, method: Method[Request, Reply], request: Request, *, deadline: float, retry: Retry | None = None
    ) -> Reply:
        """Call a method of the peer.

        Args:
            method: one of ``methods.Master`` or ``methods.PsControl``.
            request: its request.
            deadline: seconds for each try.
            retry: how long to keep trying when the peer is away, silent or busy; ``None``: one try.

        Raises:
            RetryableError: the peer was away, silent or busy to the end.
            Refused: the peer will not do it; trying again is of no use.
        """
        if retry is None:
            return self._try(method, request, deadline)
        until = self._timing.clock() + retry.within
        waits = pauses(retry, self._timing.uniform)
        while True:
            try:
                return self._try(method, request, deadline)
            except RetryableError:
                wait = next(waits)
                if self._timing.clock() + wait > until:
                    raise
            self._timing.sleep(wait)

    def close(self) -> None:
        """End the connection and the calls on it; again is harmless."""
        with self._lock:
            self._closed = True
            self._line.close()

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _try(self, method: Method[Request, Reply], request: Request, deadline: float) -> Reply:
        line = self._line
        try:
            return line.invoke(method, request, deadline, self._metadata)
        except grpc.RpcError as error:
            status = error.code()
            if status in _SUSPECT:
                self._replace(line)
            raise self._translate(method, error, replaced=line is not self._line) from error
        except ValueError as error:  # what grpc raises on a channel that is closed
            if self._closed:
                raise Refused("This channel was closed", kind="closed", where=self.address) from error
            raise RetryableError("The connection was replaced", where=self.address) from error
